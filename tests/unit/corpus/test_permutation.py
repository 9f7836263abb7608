from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.corpus.permutation import permute

seeds = st.integers(min_value=0, max_value=2**80)
epochs = st.integers(min_value=0, max_value=2**40)


@given(size=st.integers(min_value=1, max_value=3000), seed=seeds, epoch=epochs)
def test_is_a_bijection(size: int, seed: int, epoch: int) -> None:
    values = permute(np.arange(size), size, seed, epoch)
    assert np.array_equal(np.sort(values), np.arange(size))


@given(
    size=st.integers(min_value=1, max_value=2**62),
    seed=seeds,
    epoch=epochs,
    data=st.data(),
)
def test_stays_in_range_and_does_not_collide_at_any_size(
    size: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    indices = data.draw(st.sets(st.integers(0, size - 1), max_size=50))
    values = permute(np.array(sorted(indices), dtype=np.int64), size, seed, epoch)
    assert len(set(values.tolist())) == len(indices)
    assert ((values >= 0) & (values < size)).all()


@given(size=st.integers(min_value=2, max_value=500), seed=seeds, epoch=epochs)
def test_an_index_goes_to_the_same_place_alone_and_in_company(
    size: int, seed: int, epoch: int
) -> None:
    together = permute(np.arange(size), size, seed, epoch)
    alone = permute(np.array([size - 1]), size, seed, epoch)
    assert alone[0] == together[-1]


def test_seeds_and_epochs_give_unrelated_orders() -> None:
    size = 5000
    orders = [permute(np.arange(size), size, s, e) for s, e in ((0, 0), (0, 1), (1, 0), (1, 1))]
    orders.append(np.arange(size))
    for i, first in enumerate(orders):
        for second in orders[:i]:
            # Two unrelated orders agree at one place in expectation.
            assert (first == second).sum() < 12
            assert abs(np.corrcoef(first, second)[0, 1]) < 0.06


@pytest.mark.parametrize("size", [5, 64, 100, 1000])
def test_every_value_is_as_likely_in_first_place(size: int) -> None:
    draws = [int(permute(np.array([0]), size, seed, 0)[0]) for seed in range(4000)]
    counts = np.bincount(np.array(draws) * 5 // size, minlength=5)
    expected = np.bincount(np.arange(size) * 5 // size, minlength=5) / size * 4000
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared < 23.5  # the 0.9999 quantile at 4 degrees of freedom
