from __future__ import annotations

import time

import pytest

from pipeline.emulation import pacing
from pipeline.parallel.horovod import environment as env

hvd = pytest.importorskip("horovod.torch", reason=f"Horovod is {env.why_unusable()}")
step = pytest.importorskip("pipeline.parallel.horovod.step")


class Collectives:
    """Handles that are done after so many looks."""

    def __init__(self, looks: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks = looks
        self.seen: list[int] = []
        self.slept: list[float] = []
        monkeypatch.setattr(hvd, "poll", self.poll)
        monkeypatch.setattr(time, "sleep", self.slept.append)

    def poll(self, handle: int) -> bool:
        self.seen.append(handle)
        self.looks[handle] -= 1
        return self.looks[handle] == 0


def test_on_emulated_nodes_it_sleeps_between_two_looks(monkeypatch) -> None:
    monkeypatch.setenv(pacing.VARIABLE, "4")
    given = Collectives({7: 3, 8: 1}, monkeypatch)
    step.wait_asleep([7, None, 8])
    assert given.seen == [7, 7, 7, 8]
    assert given.slept == [4 * pacing.PAUSE_SECONDS] * 2


def test_elsewhere_horovod_waits_as_it_does(monkeypatch) -> None:
    monkeypatch.delenv(pacing.VARIABLE, raising=False)
    given = Collectives({7: 3}, monkeypatch)
    step.wait_asleep([7])
    assert given.seen == given.slept == []
