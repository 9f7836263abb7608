"""The measurement behind the bands of parity, with trainings of a few steps."""

import numpy as np
import pytest

import bench.parity_drift as drift
from bench.parity_drift import Training, in_pieces, largest, spec_of


def training(loss: list[float], norm: list[float]) -> Training:
    return Training(np.asarray(loss), np.asarray(norm))


def test_the_largest_deviation_so_far_is_kept_and_skipped_steps_are_left_out() -> None:
    one = training([1.0, 1.1, 1.0], [1.0, float("nan"), 2.0])
    other = training([1.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    assert largest([(one, other)], [1, 2, 3]) == {
        "loss": [0.0, 0.0, 0.0], "norm": [0.0, 0.0, 1.0], "skipped": 1,
    }  # fmt: skip


def test_every_training_is_the_beginning_of_the_longest() -> None:
    short, long = spec_of("fp32", 1, 10), spec_of("fp32", 1, 4000)
    rates = [[s.optimiser.rate(t, s.workload.steps) for t in range(10)] for s in (short, long)]
    assert rates[0] == rates[1]
    assert in_pieces(short).workload.accumulation_steps == drift.PIECES


def test_pieces_sum_in_another_order_and_a_wire_loses_digits(small_tokens) -> None:
    spec = spec_of("fp32", 1, 3)
    whole, pieces = drift.train(spec, small_tokens), drift.train(in_pieces(spec), small_tokens)
    wire = drift.train(in_pieces(spec), small_tokens, drift.Float16Wire())
    assert pieces.norm == pytest.approx(whole.norm, rel=1e-5)
    assert wire.norm == pytest.approx(whole.norm, rel=1e-2) and (wire.norm != pieces.norm).any()
