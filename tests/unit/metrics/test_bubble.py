"""The bubble from made-up passes whose idle time is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.errors import RecordError
from pipeline.metrics.bubble import Pass, bubble, equalised, makespan, step_bubbles
from pipeline.records import RunRecord
from pipeline.strategies import load
from pipeline.strategies.pipeline_parallel.schedule import Schedule, Stages
from pipeline.study.spec import WorldSpec
from tests.fake_records import make_record, spec_of

F, B, W = "forward", "backward", "weights"


def gpipe(ranks: int, count: int, forward: float = 1, backward: float = 2) -> dict[int, list[Pass]]:
    return {
        rank: [
            (kind, rank, m, seconds)
            for kind, seconds in ((F, forward), (B, backward))
            for m in range(count)
        ]
        for rank in range(ranks)
    }


def one_f_one_b(ranks: int, count: int) -> dict[int, list[Pass]]:
    """Rank r runs p - r - 1 forward passes first, then alternates, then drains."""
    found: dict[int, list[Pass]] = {}
    for rank in range(ranks):
        ahead = min(count, ranks - rank - 1)
        order = [(F, m) for m in range(ahead)]
        for m in range(count - ahead):
            order += [(F, m + ahead), (B, m)]
        order += [(B, m) for m in range(count - ahead, count)]
        found[rank] = [(kind, rank, m, 1.0 if kind == F else 2.0) for kind, m in order]
    return found


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("ranks", "count"), [(2, 2), (2, 8), (4, 8)])
def test_equal_stages_have_the_bubble_of_the_formula(name: str, ranks: int, count: int) -> None:
    passes = gpipe(ranks, count) if name == "gpipe" else one_f_one_b(ranks, count)
    expected = Schedule(name, Stages(ranks, 1, ranks), count).bubble
    assert bubble(passes) == pytest.approx(expected) == pytest.approx((ranks - 1) / count)


def test_interleaved_stages_have_half_of_it() -> None:
    """Two ranks, two chunks each, two micro-batches: (p - 1) / (v m) is a quarter."""
    order = {
        0: [(F, 0, 0), (F, 0, 1), (F, 2, 0), (F, 2, 1), (B, 2, 0), (B, 2, 1), (B, 0, 0), (B, 0, 1)],
        1: [(F, 1, 0), (F, 1, 1), (F, 3, 0), (B, 3, 0), (F, 3, 1), (B, 3, 1), (B, 1, 0), (B, 1, 1)],
    }  # fmt: skip
    passes = {r: [(*one, 1.0 if one[0] == F else 2.0) for one in own] for r, own in order.items()}
    assert bubble(passes) == pytest.approx(1 / 4)


def test_gradients_of_weights_fill_the_bubble() -> None:
    """Two ranks, two micro-batches, all parts one second: a third of 1F1B's half."""
    order = {
        0: [(F, 0, 0), (F, 0, 1), (B, 0, 0), (W, 0, 0), (B, 0, 1), (W, 0, 1)],
        1: [(F, 1, 0), (B, 1, 0), (F, 1, 1), (B, 1, 1), (W, 1, 0), (W, 1, 1)],
    }
    passes = {r: [(*one, 1.0) for one in own] for r, own in order.items()}
    # rank 0 waits a second for the first gradient, rank 1 one for the first activation
    assert makespan(passes) == 7
    assert (
        bubble(passes)
        == pytest.approx(1 / 6)
        == pytest.approx(Schedule("zero_bubble", Stages(2, 1, 2), 2).bubble)
    )


def test_a_longer_last_stage_lengthens_it() -> None:
    passes = gpipe(2, 4)
    passes[1] = [(kind, stage, m, 2 * seconds) for kind, stage, m, seconds in passes[1]]
    # the last stage is busy for 24 s after 1 s of the first, whose last pass ends it: 27 s
    assert makespan(passes) == 27
    assert bubble(passes) == pytest.approx(2 * 27 / 36 - 1)
    assert bubble(equalised(passes)) == pytest.approx(1 / 4), "the schedule alone: (p - 1) / m"


def test_passes_that_wait_for_ever_are_refused() -> None:
    with pytest.raises(RecordError, match=r"rank 0 waits for ever before its pass \('backward', 0"):
        bubble({0: [(B, 0, 0, 1.0), (F, 0, 0, 1.0)], 1: [(F, 1, 0, 1.0), (B, 1, 0, 1.0)]})


def test_a_record_gives_a_bubble_for_each_timed_step() -> None:
    layout = load("pipeline_parallel", {"ranks": 2}).layout(WorldSpec(4, 1, "cpu", "gloo", "real"))
    record = make_record(spec_of(nodes=4, profile={"steps": 4}))
    # ranks 0 and 2 are one pipeline of two stages, 1 and 3 the other
    passes = {0: gpipe(2, 2)[0], 2: gpipe(2, 2)[1], 1: gpipe(2, 4)[0], 3: gpipe(2, 4)[1]}

    steps = [replace(step, passes=passes[step.rank]) for step in record.steps]
    made = RunRecord(record.run, steps)
    assert step_bubbles(made, layout) == pytest.approx([(1 / 2 + 1 / 4) / 2] * 4)
    assert step_bubbles(record, layout) == []
