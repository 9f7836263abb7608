"""That both of a pair of `bench.reference` take the same steps, on one rank and a tiny model."""

import pytest

from bench.reference import PAIRS, Pair, compare, row, sent
from tests.ranks import group_alone

HERE = [pair for pair in PAIRS if pair.strategy != "horovod"]


@pytest.mark.parametrize("pair", HERE, ids=lambda pair: f"{pair.strategy}{pair.options}")
def test_a_pair_takes_the_same_steps(pair: Pair) -> None:
    with group_alone():
        compared = compare(pair, "tiny", ends=0.0, steps=2)
        assert compared["loss_deviation"] < 1e-6 and compared["rounds"] == 6
        compared |= {"sent_bytes": sent(pair, "tiny")}
    assert row(compared).startswith(f"| `{pair.strategy}`")
