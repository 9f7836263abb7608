"""How the ranks of emulated nodes end, all together."""

from __future__ import annotations

import json
import os
import signal
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.launch.emulated import ranks as emulated_ranks
from pipeline.launch.emulated.ranks import Rank, follow
from pipeline.study.expansion import expand
from pipeline.study.load import load_study

FIRST, SECOND = 0, 1


@pytest.fixture
def start() -> Iterator[Callable[..., Rank]]:
    """Start a rank of a copy that ends with a code after some seconds; all are killed then."""
    started: list[Rank] = []

    def one(copy: int, code: int, seconds: float = 0.0, *, store: bool = False) -> Rank:
        def work() -> int:
            time.sleep(seconds)
            return code

        started.append(Rank(copy, emulated_ranks.fork(work), store=store))
        return started[-1]

    yield one
    for rank in started:
        rank.kill()


def test_all_is_well_when_the_measured_copy_ends_while_the_others_are_busy(start) -> None:
    assert follow([start(FIRST, 0, 60, store=True), start(FIRST, 0), start(SECOND, 0, 60)]) == 0


def test_one_bad_rank_of_the_measured_copy_is_a_bad_end(start) -> None:
    assert follow([start(FIRST, 0, 0.1), start(FIRST, 3), start(SECOND, 0, 60)]) == 1


@pytest.mark.parametrize("victim", [FIRST, SECOND])
def test_a_killed_rank_of_any_copy_is_told_by_its_signal(start, victim) -> None:
    ranks = [start(FIRST, 3 if victim == FIRST else 0, 0.3), start(SECOND, 0, 60)]
    ranks.append(start(victim, 0, 60))
    os.kill(ranks[-1].pid, signal.SIGKILL)
    assert follow(ranks) == 128 + signal.SIGKILL


@pytest.mark.parametrize("code", [0, 3])
def test_a_copy_that_keeps_the_machine_busy_may_not_end_first(start, code) -> None:
    with pytest.raises(RuntimeError, match=rf"copy 1 .* exit code {code} before it; see log.txt"):
        follow([start(FIRST, 0, 0.3), start(SECOND, code)])


def test_nobody_waits_long_for_a_rank_that_hangs_then(start, monkeypatch) -> None:
    monkeypatch.setattr(emulated_ranks, "GRACE_SECONDS", 0.1)
    with pytest.raises(RuntimeError, match="copy 1"):
        follow([start(FIRST, 0, 60), start(SECOND, 0)])


def test_the_other_copies_do_not_end_by_themselves(tmp_path) -> None:
    spec = expand(load_study(Path("workflow/config/smoke/study.yaml")))[0]
    left = tmp_path / "copy1" / "rank0.steps"
    left.parent.mkdir()
    left.write_text("of a killed attempt")
    own = emulated_ranks._arguments(spec, Namespace(out=tmp_path, launch="token"), SECOND)
    assert not left.exists()
    assert json.loads(own.spec.read_text())["workload"]["steps"] == emulated_ranks.ENDLESS_STEPS
