"""That both of a pair of `bench.reference` take the same steps, on one rank and a tiny model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from bench.reference import PAIRS, Pair, compare, row, sent


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


HERE = [pair for pair in PAIRS if pair.strategy != "horovod"]


@pytest.mark.parametrize("pair", HERE, ids=lambda pair: f"{pair.strategy}{pair.options}")
def test_a_pair_takes_the_same_steps(group: None, pair: Pair) -> None:
    compared = compare(pair, "tiny", ends=0.0, steps=2)
    assert compared["loss_deviation"] < 1e-6 and compared["rounds"] == 6
    compared |= {"sent_bytes": sent(pair, "tiny")}
    assert row(compared).startswith(f"| `{pair.strategy}`")
