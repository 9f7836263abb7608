"""Orders of passes, their replay against that of the measured bubble, and cuts of stages."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cost.schedule import ROUNDS, even, order, pipelined
from pipeline.metrics.profile import makespan
from pipeline.study.profiling import BACKWARD, FORWARD, WEIGHTS

SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zero_bubble": 1}


def measured(schedule, ranks, forward, backward, count):
    """Seconds of these passes as the bubble of a profiled run has them."""
    parts = 2 if schedule == "zero_bubble" else 1
    seconds = {FORWARD: forward, BACKWARD: [b / parts for b in backward]}
    seconds[WEIGHTS] = seconds[BACKWARD]
    lines = {
        rank: [(*one, seconds[one[0]][one[1]])
               for one in order(schedule, ranks, len(forward) // ranks, count, rank)]
        for rank in range(ranks)
    }  # fmt: skip
    return makespan(lines)


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(st.integers(1, 4), st.integers(1, 2 * ROUNDS), st.data())
@settings(deadline=None, max_examples=25)
def test_a_predicted_step_takes_what_its_passes_take_as_if_they_were_measured(
    schedule, ranks, rounds, data
) -> None:
    stage = st.lists(st.floats(0.8, 2), min_size=ranks * SCHEDULES[schedule],
                     max_size=ranks * SCHEDULES[schedule])  # fmt: skip
    forward, backward = data.draw(stage), data.draw(stage)
    count = ranks * rounds
    exact = measured(schedule, ranks, forward, backward, count)
    # Rounds beyond those that are replayed are like the last one.
    within = 1e-9 if rounds <= ROUNDS else 0.02
    assert pipelined(schedule, ranks, forward, backward, count) == pytest.approx(exact, rel=within)


@pytest.mark.parametrize("count", [4, 5, 16, 64])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_even_stages_take_what_the_closed_form_says(ranks, count) -> None:
    for schedule in ("gpipe", "1f1b"):
        seconds = pipelined(schedule, ranks, [1.0] * ranks, [2.0] * ranks, count)
        assert seconds == pytest.approx(3.0 * (count + ranks - 1))
    if count % ranks == 0:
        stages_of = 2 * ranks
        seconds = pipelined("interleaved", ranks, [0.5] * stages_of, [1.0] * stages_of, count)
        assert seconds == pytest.approx(3.0 * (count + (ranks - 1) / 2))


def test_a_part_of_a_micro_batch_and_a_part_of_a_round_take_their_share() -> None:
    whole, more = (pipelined("1f1b", 4, [1.0] * 4, [2.0] * 4, count) for count in (8, 8.5))
    assert more - whole == pytest.approx(1.5)
    cut = [pipelined("interleaved", 4, [0.5] * 8, [1.0] * 8, count) for count in (8, 11)]
    assert cut[1] - cut[0] == pytest.approx(9.0)


def test_a_message_is_waited_for_where_no_other_pass_is_ready() -> None:
    """Two ranks: a forward pass, a message, the other rank's passes, and a message back."""
    alone = pipelined("1f1b", 2, [1.0, 1.0], [2.0, 2.0], 1, message=0.25)
    assert alone == pytest.approx(2 * (1 + 2) + 2 * 0.25)
    many = [pipelined("interleaved", 2, [1.0] * 4, [2.0] * 4, 8, message=m) for m in (0.0, 0.01)]
    assert many[0] < many[1] < many[0] + 32 * 0.01


@settings(deadline=None)
@given(st.integers(1, 9), st.sampled_from([0.0, 1.0, 2.5]) | st.floats(0, 9), st.data())
def test_stages_are_the_most_even_of_all(layers, head, data) -> None:
    count = data.draw(st.integers(1, layers))

    def slowest(sizes):
        return max(*sizes, sizes[-1] + head)

    sizes = even(layers, head, count)
    assert (len(sizes), sum(sizes)) == (count, layers) and min(sizes) > 0
    every = combinations(range(1, layers), count - 1)
    cuts = [[b - a for a, b in pairwise((0, *cut, layers))] for cut in every]
    assert slowest(sizes) == min(map(slowest, cuts))


def test_a_stage_with_the_output_layer_has_fewer_layers() -> None:
    assert even(24, 4.0, 4) == (7, 7, 7, 3)
    assert even(7, 0.0, 3) == (3, 2, 2), "where all are alike the first ones have more"
