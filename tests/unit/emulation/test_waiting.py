import time

import pytest

from pipeline.emulation import waiting


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    return pauses


def test_pauses_are_stretched_with_the_time_of_the_run(slept, monkeypatch) -> None:
    monkeypatch.setenv(waiting.VARIABLE, "2.5")
    answers = iter([False, False, True])
    waiting.asleep(lambda: next(answers))
    assert slept == [2.5 * waiting.PAUSE_SECONDS] * 2


def test_on_a_real_node_nothing_is_waited_for(slept, monkeypatch) -> None:
    monkeypatch.delenv(waiting.VARIABLE, raising=False)
    waiting.asleep(lambda: pytest.fail("it looked"))
    assert (slept, waiting.dilation()) == ([], 1.0)
