"""Uncertainty of times on emulated nodes: validation of the emulation, and the yardstick."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.errors import RecordError
from pipeline.metrics.select import pick
from pipeline.metrics.statistics import interpolated_bounds
from pipeline.schemas import read


def load_bias(validation: Path | None, yardstick: Path | None = None) -> float | None:
    """Share by which times on emulated nodes may be off, of the results of `make bench`.

    A yardstick adds its own uncertainty. None where the bench was not run, or by a version before
    0.3; raises RecordError on unfit files.
    """
    result = load_validation(validation) if validation else {}
    if "largest_bias" not in result:
        return None
    bias, own = float(result["largest_bias"]), load_uncertainty(yardstick)
    return bias + own + bias * own


def bias_of(table: pd.DataFrame) -> float | None:
    """The bias that a table of metrics was made with."""
    values = pick(table, "study", "emulation_bias")["value"]
    return None if values.empty else float(values.iloc[0])


def bias_sentence(table: pd.DataFrame) -> str:
    """The one number by which all documents say how far emulated times may be off; else empty."""
    bias = bias_of(table)
    if bias is None or not (pick(table, "run", "status")["network"] == "emulated").any():
        return ""
    return (
        f"Times on emulated nodes may be off by {100 * bias:.1f} % either way, and only what is "
        "outside of that is decided."
    )


def load_uncertainty(path: Path | None) -> float:
    """By how much the passes of a yardstick may be off against each other; 0 without a file.

    All runs of a study have the same yardstick, so that an error which all its passes share changes
    what the emulated processor is, and no comparison. What is left is how far each pass is off the
    geometric mean of all passes of its round: the largest half-width of their medians' 95 %
    intervals.
    """
    if path is None:
        return 0.0
    content = read(path, "yardstick", "python -m pipeline yardstick")
    rounds = [[one["forward_seconds"] for one in shape["rounds"]] for shape in content["passes"]]
    if len({len(ones) for ones in rounds}) != 1:
        raise RecordError(
            f"{path} at $.passes: all need as many rounds; remove the file, it is measured again"
        )
    logs = np.log(np.asarray(rounds))
    own = logs - logs.mean(axis=0)
    bounds = [(np.median(one), *interpolated_bounds(one)) for one in own]
    return float(np.expm1(max(max(high - mid, mid - low) for mid, low, high in bounds)))


def load_validation(path: Path) -> dict[str, Any]:
    """What `make bench` found of emulated nodes; raises RecordError on an unfit file.

    Of results of a version before 0.3 nothing is read, so nothing is checked.
    """
    result = read(path, "emulation", "make bench")
    if "version" not in result:
        return result
    again = "run `make bench` again"
    try:
        datetime.fromisoformat(result["measured_at"])
    except ValueError:
        raise RecordError(
            f"{path} at $.measured_at: {result['measured_at'][:80]!r} is no date; {again}"
        ) from None
    ratios = [(part, one) for part in ("bandwidth", "twice_as_slow") for one in result[part]]
    ratios += [
        (part, one)
        for part in ("invariance", "eight_nodes")
        for variant in result[part]
        for one in variant["ratios"]
    ]
    for part, one in ratios:
        if not one["low"] <= one["value"] <= one["high"]:
            raise RecordError(
                f"{path} at $.{part}: {one['value']} is outside its interval [{one['low']}, "
                f"{one['high']}]; {again}"
            )
    return result
