"""Processes end, tell and fail as they should; tests/system sees that none outlives another."""

import mmap
import os
import platform
import signal
import subprocess
import sys
from functools import partial

import psutil
import pytest

from pipeline.errors import LaunchError
from pipeline.machine import processes
from pipeline.machine.processes import Child, Tell, Teller, at_once
from tests.programs import ran


@pytest.mark.parametrize(
    ("status", "code"), [(0, 0), (3, 3), (128 + 9, -9), (128 + 15, -15)], ids=str
)
def test_a_process_ends_as_another_one_did(status, code) -> None:
    words = (
        "import signal, sys; from pipeline.machine.processes import end_as;"
        "signal.signal(15, signal.SIG_IGN); end_as(int(sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", words, str(status)])
    assert done.returncode == code


def test_a_wait_for_one_of_several_ends_with_it(tmp_path) -> None:
    short, long = (
        processes.start(["sleep", seconds], {"PATH": os.environ["PATH"]}, tmp_path / "log")
        for seconds in ("0.2", "60")
    )
    processes.wait_for_one([short, long], 60)
    assert short.poll() == 0 and long.poll() is None
    processes.wait_for_one([short, long], 0.01)  # the one that still runs
    processes.stop([long])


STEPS = """
import resource, sys
from pipeline.machine.processes import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def step():
    blocks = [bytearray(size << 20) for size in (1, 8, 40)]
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")
def test_blocks_of_a_step_are_used_again() -> None:
    def faults(how: str) -> int:
        command = [sys.executable, "-c", STEPS, how]
        return int(ran(command, check=True).stdout)

    pages = (40 << 20) // mmap.PAGESIZE
    assert faults("keep") < 100 < pages <= faults("leave")


def _fail() -> None:
    raise ValueError("two\nlines")


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_values_come_in_their_order_and_what_fails_says_why() -> None:
    def work(tell: Tell) -> None:
        tell([1.5])
        tell("two")
        _fail()

    child = Teller(work)
    assert [child.hear(), child.hear()] == [[1.5], "two"]
    with pytest.raises(LaunchError, match=r"^ValueError: two lines$"):
        child.hear()
    assert child.wait() == 1
    child.kill()


@pytest.mark.parametrize(("work", "said"), [(_fail, "ValueError: two lines"), (_kill, "code -9")])
def test_a_measuring_process_that_fails_is_told_and_ends_the_others(work, said) -> None:
    before = psutil.Process().children()
    with pytest.raises(LaunchError, match=rf"a measuring process failed: .*{said}"):
        at_once([work, signal.pause], [os.sched_getaffinity(0)] * 2)
    assert psutil.Process().children() == before


def test_results_are_those_of_processes_on_their_cores() -> None:
    core = min(os.sched_getaffinity(0))
    assert at_once([lambda: [*os.sched_getaffinity(0)], lambda: 2], [[core]] * 2) == [[core], 2]


def test_an_exit_code_is_that_of_the_work() -> None:
    assert [Child(partial(int, code), at_exit=False).wait() for code in (0, 3)] == [0, 3]
    assert Child(lambda: None, at_exit=False).wait() == 0
