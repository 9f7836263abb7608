"""Children that tell values, fail in their own words, and are gone with whom they work for."""

import os
import signal
from functools import partial

import pytest

from pipeline.errors import LaunchError
from pipeline.machine.forks import Child, Tell, Teller, measured_by, measuring


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
def test_a_measuring_process_that_fails_is_told(work, said) -> None:
    with pytest.raises(LaunchError, match=rf"a measuring process failed: .*{said}"):
        measured_by(measuring(work, os.sched_getaffinity(0)))


def test_a_result_is_that_of_a_process_on_its_cores() -> None:
    core = min(os.sched_getaffinity(0))
    assert measured_by(measuring(lambda: [*os.sched_getaffinity(0)], [core])) == [core]


def test_an_exit_code_is_that_of_the_work() -> None:
    assert [Child(partial(int, code), at_exit=False).wait() for code in (0, 3)] == [0, 3]
    assert Child(lambda: None, at_exit=False).wait() == 0
