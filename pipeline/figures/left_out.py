"""Figures that page and paper leave out, since a table says as much; their files are drawn."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.select import pick

EVEN = 1.25
"""The largest peak of memory over the smallest one, up to which points would lie on each other."""
_MEBIBYTE = 2**20


def left_out(table: pd.DataFrame) -> dict[str, str]:
    """By the name of each figure that is not worth its place the sentence that stands there.

    Whether it is follows from the results alone, so page and paper leave out the same ones.
    """
    peaks = pick(table, "rank", "peak_memory_bytes")
    if peaks.empty:
        return {}
    # As the figure and the tables have them: a rank's median over the repeats.
    over = peaks.groupby(["cell", "nodes", "rank"])["value"].median() / _MEBIBYTE
    least, most = float(over.min()), float(over.max())
    if most > EVEN * least:
        return {}
    ends = list(dict.fromkeys(f"{end:,.0f}" for end in (least, most)))
    reached = f"between {' and '.join(ends)}" if len(ends) > 1 else f"at {ends[0]}"
    return {
        "memory": f"All ranks of all cells peaked {reached} MiB, within a factor of {EVEN:g}: too "
        "even for a figure."
    }
