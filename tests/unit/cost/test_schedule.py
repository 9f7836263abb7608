"""The exact form of 1F1B against a replay of every pass."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.cost.schedule import even, one_forward_one_backward, stages


def replay(seconds, accum):
    """Seconds of 1F1B where a pass starts when its input is there and its stage is free."""
    last = len(seconds)
    done: dict[tuple[str, int, int], float] = {}
    free, place = [0.0] * last, [0] * last
    orders = []
    for stage in range(last):
        warm = min(last - stage - 1, accum)
        order = [("f", i) for i in range(warm)]
        for i in range(accum - warm):
            order += [("f", warm + i), ("b", i)]
        orders.append(order + [("b", i) for i in range(accum - warm, accum)])
    while any(place[s] < len(orders[s]) for s in range(last)):
        for stage in range(last):
            if place[stage] == len(orders[stage]):
                continue
            kind, i = orders[stage][place[stage]]
            before = stage - 1 if kind == "f" else stage + 1
            needs = (kind, i, before)
            if 0 <= before < last and needs not in done:
                continue
            start = max(free[stage], done.get(needs, 0.0))
            share = 1 / 3 if kind == "f" else 2 / 3
            free[stage] = done[kind, i, stage] = start + share * seconds[stage]
            place[stage] += 1
    return max(free)


@pytest.mark.parametrize("accum", [4, 5, 16])
@pytest.mark.parametrize("pp", [1, 2, 4])
def test_equal_stages_take_what_a_replay_takes(pp, accum) -> None:
    seconds = [3.0] * pp
    assert one_forward_one_backward(seconds, accum, 1) == pytest.approx(replay(seconds, accum))


def test_unequal_stages_take_what_a_replay_takes_within_a_tenth() -> None:
    for seconds in ([3.0, 3.0, 3.0, 4.5], [2.0, 4.0, 3.0, 3.0], [4.0, 3.0, 3.0, 3.0]):
        exact = replay(seconds, 16)
        assert one_forward_one_backward(seconds, 16, 1) == pytest.approx(exact, rel=0.1)


def test_interleaving_divides_the_bubble() -> None:
    whole, cut = (one_forward_one_backward([1.0] * 8, 16, vpp) for vpp in (1, 2))
    assert (whole - 16, cut - 16) == (7.0, 3.5)


def test_layers_of_stages() -> None:
    assert stages(78, 12, 1.0, balance=False) == [6] * 3 + [7] * 6 + [6] * 3
    assert stages(32, 4, 0.0, balance=True) == [8, 8, 8, 8]
    assert stages(32, 4, 4.0, balance=True) == [9, 9, 9, 5]
    assert stages(16, 8, 4.0, balance=True) == [3, 2, 3, 2, 3, 2, 1, 0]
    assert stages(5, 1, 4.0, balance=True) == [5]


def slowest(seconds, sizes):
    """Seconds of the slowest of stages of so many layers."""
    ends = [0, *(sum(sizes[: n + 1]) for n in range(len(sizes)))]
    return max(sum(seconds[a:b]) for a, b in pairwise(ends))


LAYERS = st.lists(st.sampled_from([1.0, 2.5]) | st.floats(0, 9), min_size=1, max_size=9)


@settings(deadline=None)
@given(LAYERS, st.data())
def test_stages_cut_by_dynamic_programming_are_the_best_of_all(seconds, data) -> None:
    count = data.draw(st.integers(1, len(seconds)))
    sizes = even(tuple(seconds), count)
    assert (len(sizes), sum(sizes)) == (count, len(seconds)) and min(sizes) > 0
    every = combinations(range(1, len(seconds)), count - 1)
    cuts = [[b - a for a, b in pairwise((0, *cut, len(seconds)))] for cut in every]
    assert slowest(seconds, sizes) <= min(slowest(seconds, cut) for cut in cuts) + 1e-9


def test_a_stage_with_the_output_layer_has_fewer_layers() -> None:
    assert even((1.0,) * 23 + (5.0,), 4) == (7, 7, 7, 3)
    assert even((1.0,) * 7, 3) == (3, 2, 2), "where all are alike the first ones have more"
    with pytest.raises(ValueError, match="2 layers do not make 3 stages"):
        even((1.0, 1.0), 3)
