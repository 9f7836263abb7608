"""Stages and schedules of a pipeline: layers, micro-batches, bubbles, what is refused."""

from itertools import accumulate
from typing import Any, cast

import pytest

from pipeline.errors import StudyError
from pipeline.strategies.pipeline_parallel import schedule as schedules
from pipeline.strategies.pipeline_parallel.schedule import Schedule, Stages
from pipeline.study.profiling import BACKWARD, FORWARD, WEIGHTS


@pytest.mark.parametrize(("ranks", "chunks", "layers"), [(1, 1, 2), (3, 1, 8), (2, 3, 7)])
def test_every_layer_is_in_one_stage_and_stages_are_in_order(ranks, chunks, layers) -> None:
    stages = Stages(ranks, chunks, layers)
    numbers = [n for stage in range(stages.count) for n in stages.layers_of(stage)]
    assert numbers == list(range(layers))
    sizes = [len(stages.layers_of(stage)) for stage in range(stages.count)]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True), "the last stage, which has the logits, is smallest"
    held = [stage for rank in range(ranks) for stage in stages.of_rank(rank)]
    assert sorted(held) == list(range(stages.count))
    assert all(stages.rank_of(s) == rank for rank in range(ranks) for s in stages.of_rank(rank))


def test_stages_have_the_layers_that_are_stated() -> None:
    stages = Stages(2, 2, 7, (1, 3, 2, 1))
    numbers = [list(stages.layers_of(stage)) for stage in range(4)]
    assert numbers == [[0], [1, 2, 3], [4, 5], [6]]
    assert [stages.held_by(rank) for rank in range(2)] == [(3, True, False), (4, False, True)]


def make(**changed: Any) -> Schedule:
    given: dict[str, Any] = {"asked": 4, "sequences": 8, "accumulation": 1} | changed
    name, stages = given.pop("name", "1f1b"), given.pop("stages", Stages(4, 1, 4))
    return schedules.make("r", name, stages, **given)


def test_the_bubble_is_that_of_the_papers() -> None:
    assert make().bubble == 3 / 4
    assert make(asked=8).idle_share == pytest.approx(3 / 11), "GPipe: (K - 1) / (M + K - 1)"
    halved = make(name="interleaved", stages=Stages(4, 2, 8), asked=8)
    assert halved.bubble == 3 / 16
    assert make(name="zero_bubble").bubble == 1 / 4


def test_micro_batches_default_to_one_for_each_rank() -> None:
    assert make(asked=0).microbatches == 4
    assert make(asked=0, accumulation=2).microbatches == 4
    assert make(name="gpipe", asked=0, sequences=2).microbatches == 2, "no more than sequences"
    assert make(asked=0, sequences=6).microbatches == 6


@pytest.mark.parametrize("name", schedules.CHUNKS)
@pytest.mark.parametrize(("ranks", "count"), [(1, 4), (2, 4), (4, 8), (4, 4), (3, 9)])
def test_activations_in_flight_are_those_of_the_order_of_passes(name, ranks, count) -> None:
    chunks = schedules.CHUNKS[name]
    schedule = Schedule(name, Stages(ranks, chunks, ranks * chunks), count)
    frees = WEIGHTS if name == "zero_bubble" else BACKWARD
    for rank in range(ranks):
        changes = [{FORWARD: 1, frees: -1}.get(one[0], 0) for one in schedule.passes(rank)]
        assert sum(changes) == 0
        assert max(accumulate(changes)) == schedule.in_flight(rank)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"stages": Stages(4, 2, 6)},
     r"r: 4 pipeline ranks x 2 chunks are 8 stages, but the model has 6 layers, .* nearest that "
     r"fits is 3 ranks x 2 chunks, or model.num_layers 8"),
    ({"stages": Stages(4, 1, 2)}, "nearest that fits is 2 ranks x 1 chunks"),
    *(({"stages": Stages(2, 1, 4, cast("Any", sizes))},
       r"option layers is \[.*\], but the 4 layers are cut into 2 stages; give so many")
      for sizes in ((2, 1), (2, 1, 1), (4, 0), ("a", 3))),
    ({"asked": 16},
     "16 pipeline micro-batches do not divide the 8 sequences .* option microbatches is 8"),
    ({"asked": 3}, "3 pipeline micro-batches do not divide .* nearest option microbatches is 2"),
    ({"name": "interleaved", "stages": Stages(4, 2, 8), "asked": 3, "sequences": 9,
      "accumulation": 3},
     r"interleaved passes 9 micro-batches \(3 x 3\) through 4 pipeline ranks in 2 rounds, .*; "
     "set microbatches to 1"),
    ({"name": "zero_bubble", "stages": Stages(2, 1, 8), "asked": 1, "sequences": 1,
      "accumulation": 5}, "set schedule to 1f1b"),
    ({"asked": 2}, "1f1b passes 2 micro-batches through 4 pipeline ranks.*; set schedule to gpipe"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "said"), REFUSED)
def test_what_does_not_fit_names_the_factors_and_the_nearest(changed, said) -> None:
    with pytest.raises(StudyError, match=said):
        make(**changed)


def test_names_and_chunks_are_checked() -> None:
    assert [schedules.check_name(name, 0) for name in schedules.CHUNKS] == [1, 1, 2, 1]
    assert schedules.check_name("interleaved", 3) == 3
    with pytest.raises(StudyError, match="gpipe has one stage on each rank, given 2 chunks"):
        schedules.check_name("gpipe", 2)
    with pytest.raises(StudyError, match="interleaved needs 2 chunks or more"):
        schedules.check_name("interleaved", 1)
