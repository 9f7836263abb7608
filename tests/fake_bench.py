"""TEST ONLY: results of `bench/emulation.py`, and a yardstick, that nobody measured."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

CELLS = ("single", "sps", "dps")
RATIO: dict[str, Any] = {"value": 0.98, "low": 0.95, "high": 1.02, "n": 6, "how": "median"}
PARTS = {"cpu_seconds": 1.03, "at_equal_cpu_seconds": 0.99}
QUIET = {"dropped": 0, "disturbed": 0}
FORMER = {"measured_at": "2026-01-02T03:04:05+00:00", "dilated_over_undilated": [RATIO]}
"""What matters of results of an earlier version."""


def make_result(**changes: Any) -> dict[str, Any]:
    """Valid results of three cells on a machine of two cores; `changes` replace top-level keys."""
    return {
        "version": 2,
        "measured_at": "2026-01-02T03:04:05+00:00",
        "hardware": {"cpu_model": "Synthetic CPU", "num_cores": 2},
        "git_commit": None,
        "repeats": 6,
        "mtu": 9000,
        "rate_mbits": 1000.0,
        "num_parameters": 171_000,
        "invariance": [_variants(cell, 2, 1, 2, 4, 8) for cell in CELLS],
        "eight_nodes": [_variants(cell, 8, 5, 10) for cell in CELLS[1:]],
        "largest_bias": 0.0204,
        "cpu_seconds": {
            "runs": 72,
            "steps": {"number": 1440, "shorter": 0, "least": 1.0012},
            "phases": {"number": 360, "shorter": 2, "least": 0.9},
        },
        "phase_length": [
            {"factor": factor, "cpu_seconds": seconds, "value": 1.02, "p5": 0.99, "p95": 1.25,
             "n": 90, **QUIET}
            for seconds in (0.0005, 0.008)
            for factor in (1, 2, 4, 8)
        ],
        "bandwidth": [
            {"nodes": n, "rate_mbits": rate, **RATIO, "dropped": n, "disturbed": n // 4}
            for rate in (100.0, 1000.0)
            for n in (2, 4)
        ],
        "twice_as_slow": [{"nodes": 2, "predicted_seconds": 0.1, **RATIO}],
    } | changes  # fmt: skip


def _variants(cell: str, nodes: int, first: int, *others: int) -> dict[str, Any]:
    return {
        "cell": cell,
        "nodes": 1 if cell == "single" else nodes,
        "reference": {"factor": first, "step_seconds": 0.04},
        "ratios": [{"factor": one, **RATIO, **PARTS} for one in others],
        **QUIET,
    }


def make_yardstick(*passes: Sequence[float]) -> dict[str, Any]:
    """A valid yardstick whose passes took these seconds in its rounds."""

    def shape(number: int, seconds: Sequence[float]) -> dict[str, Any]:
        names = ("step", "waited_step", "waited_forward", "forward_seconds")
        return {
            "precision": "fp32",
            "sequences": number,
            "forward_seconds": median(map(float, seconds)),
            "step_seconds": 0.1,
            "rounds": [dict.fromkeys(names, float(one)) for one in seconds],
        }

    return {
        "version": 1,
        "measured_at": "2026-01-01T00:00:00+00:00",
        "hardware": {},
        "git_commit": None,
        "cores_per_node": 1,
        "model": {},
        "compile": False,
        "passes": [shape(number, seconds) for number, seconds in enumerate(passes, 1)],
    }
