"""TEST ONLY: a yardstick that nobody measured."""

from collections.abc import Sequence
from statistics import median
from typing import Any


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
