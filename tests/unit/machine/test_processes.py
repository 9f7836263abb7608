"""No process outlives the one that started it."""

import mmap
import os
import platform
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from pipeline.machine import processes
from tests.programs import ran, wait_until

CHILD = (
    "from pipeline.machine.processes import start; from pathlib import Path; import time, sys;"
    "p = start([sys.executable, '-c', 'import time; time.sleep(60)'], {}, Path(sys.argv[1]));"
    "print(p.pid, flush=True); time.sleep(60)"
)


def test_children_die_with_a_parent_that_is_killed(tmp_path) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path / "log")]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    with suppress(psutil.NoSuchProcess):
        wait_until(lambda: child.status() == psutil.STATUS_ZOMBIE, 5)


def test_stop_ends_what_ignores_the_polite_signal(tmp_path) -> None:
    code = (
        "import signal, time; signal.signal(15, signal.SIG_IGN);"
        "print('up', flush=True); time.sleep(60)"
    )
    log = tmp_path / "log"
    child = processes.start([sys.executable, "-c", code], os.environ, log)
    while not log.read_text():
        time.sleep(0.02)
    processes.stop([child], grace_seconds=0.3)
    assert child.returncode == -9


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
