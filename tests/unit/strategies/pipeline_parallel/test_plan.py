"""Stages and schedules of a pipeline: layers, micro-batches, bubbles, what is refused."""

from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest

from pipeline import strategies
from pipeline.cost.schedule import in_flight, order
from pipeline.errors import StudyError
from pipeline.strategies.pipeline_parallel.plan import CHUNKS, Stages, bubble
from pipeline.study.profiling import BACKWARD, FORWARD, WEIGHTS
from tests.parity.cases import Case


def test_stages_have_the_layers_that_are_stated() -> None:
    stages = Stages(2, 2, 7, (1, 3, 2, 1))
    numbers = [list(stages.layers_of(stage)) for stage in range(4)]
    assert numbers == [[0], [1, 2, 3], [4, 5], [6]]
    assert [stages.held_by(rank) for rank in range(2)] == [(3, True, False), (4, False, True)]


def of(ranks: int = 4, layers: int = 4, sequences: int = 8, pieces: int = 1, **knobs: Any) -> Any:
    """A strategy and a run on so many pipeline ranks, in so many micro-batches of the study."""
    run, chosen = Case("pipeline_parallel").spec(ranks), strategies.load("pipeline_parallel", knobs)
    work = replace(run.workload, global_batch=sequences * pieces, accumulation_steps=pieces)
    return chosen, replace(run, workload=work, model=replace(run.model, num_layers=layers))


def test_the_bubble_is_that_of_the_papers() -> None:
    assert bubble("1f1b", 4, 1, 4) == 3 / 4
    assert bubble("interleaved", 4, 2, 8) == 3 / 16
    assert bubble("zero_bubble", 4, 1, 4) == 1 / 4
    strategy, run = of(microbatches=8)
    assert strategy.idle_share(run) == pytest.approx(3 / 11), "GPipe: (K - 1) / (M + K - 1)"


def test_micro_batches_default_to_one_for_each_rank() -> None:
    def count(**given: Any) -> int:
        strategy, run = of(**given)
        return strategy.pieces(run, strategy.layout(run.world))

    assert count() == count(pieces=2) == 4
    assert count(schedule="gpipe", sequences=2) == 2, "no more than sequences"
    assert count(sequences=6) == 6


@pytest.mark.parametrize("name", CHUNKS)
@pytest.mark.parametrize(("ranks", "count"), [(1, 4), (2, 4), (4, 8), (4, 4), (3, 9)])
def test_activations_in_flight_are_those_of_the_order_of_passes(name, ranks, count) -> None:
    frees = WEIGHTS if name == "zero_bubble" else BACKWARD
    for rank in range(ranks):
        passes = order(name, ranks, CHUNKS[name], count, rank)
        changes = [{FORWARD: 1, frees: -1}.get(one[0], 0) for one in passes]
        assert sum(changes) == 0
        assert max(accumulate(changes)) == in_flight(name, ranks, CHUNKS[name], count, rank)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"schedule": "interleaved", "layers": 6},
     r"4 pipeline ranks x 2 chunks are 8 stages, but the model has 6 layers, .* nearest that "
     r"fits is 3 ranks x 2 chunks, or model.num_layers 8"),
    ({"layers": 2}, "nearest that fits is 2 ranks x 1 chunks"),
    ({"microbatches": 16},
     "16 pipeline micro-batches do not divide the 8 sequences .* option microbatches is 8"),
    ({"microbatches": 3}, "3 pipeline micro-batches do not .* nearest option microbatches is 2"),
    ({"schedule": "interleaved", "layers": 8, "microbatches": 3, "sequences": 9, "pieces": 3},
     r"interleaved passes 9 micro-batches \(3 x 3\) through 4 pipeline ranks in 2 rounds, .*; "
     "set microbatches to 1"),
    ({"schedule": "zero_bubble", "ranks": 2, "layers": 8, "microbatches": 1, "sequences": 1,
      "pieces": 5}, "set schedule to 1f1b"),
    ({"microbatches": 2},
     "1f1b passes 2 micro-batches through 4 pipeline ranks.*; set schedule to gpipe"),
    ({"schedule": "gpipe", "chunks": 2}, "gpipe has one stage on each rank, given 2 chunks"),
    ({"schedule": "interleaved", "chunks": 1}, "interleaved needs 2 chunks or more"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "said"), REFUSED)
def test_what_does_not_fit_names_the_factors_and_the_nearest(given, said) -> None:
    strategy, run = of(**given)
    with pytest.raises(StudyError, match=said):
        strategy.check_spec(run)


@pytest.mark.parametrize("sizes", [(2, 1), (2, 1, 1), (4, 0), ("a", 3)])
def test_layers_that_do_not_make_the_stages_are_refused(sizes) -> None:
    strategy, run = of(ranks=2)
    said = r"option layers is \[.*\], but the 4 layers are cut into 2 stages; give so many"
    with pytest.raises(StudyError, match=said):
        replace(strategy, layers=[*sizes]).check_spec(run)
