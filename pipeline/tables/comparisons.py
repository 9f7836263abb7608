"""Which cell is faster, and do the data decide? `python -m pipeline table comparisons`."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.format import NONE, probability, ratio_interval, significant
from pipeline.metrics.select import pick, records

CAPTION = (
    "Cells against each other at the same number of nodes, against the base of their speedup and, "
    "where links set conditions, against themselves without these, by short name: ratio of "
    "throughputs with its interval, p-value of the exact rank-sum test on the runs (Wilcoxon, "
    "Mann and Whitney), corrected for the number of comparisons (Holm), effect size (epsilon "
    "squared) of the largest that so many runs can have, and whether the two intervals overlap. "
    "'Faster' or 'slower' stands where p is under 0.05 and the interval of the ratio leaves out "
    "1, on emulated nodes also all that their times are known to be off by."
)
# Equal work is checked for every pair; one that did not do it reads `not compared`.
COMPARES = {"global_batch", "schedule", "updates_per_step", "precision", "data", "model"}
_FIGURES = (
    "p_value",
    "p_value_uncorrected",
    "smallest_p_value",
    "effect_size",
    "largest_effect_size",
    "intervals_overlap",
)


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each comparison; the ratio is that of the cell over the other one."""
    keys = ["cell", "nodes", "other", "other_nodes"]
    found = pick(table, "comparison", "speed_verdict")[[*keys, "base", "text"]]
    found = found.rename(columns={"text": "verdict"})
    ratio = pick(table, "comparison", "rate_ratio")
    ratio = ratio[[*keys, "value", "low", "high", "n", "interval"]]
    names = {"value": "rate_ratio", "low": "rate_ratio_low", "high": "rate_ratio_high",
             "n": "repeats"}  # fmt: skip
    found = found.merge(ratio.rename(columns=names), on=keys, how="left")
    for metric in _FIGURES:
        rows = pick(table, "comparison", metric)[[*keys, "value"]]
        found = found.merge(rows.rename(columns={"value": metric}), on=keys, how="left")
    return found


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text."""
    shown = []
    for row in records(frame):
        overlap = row["intervals_overlap"]
        ratio = (row["rate_ratio"], row["rate_ratio_low"], row["rate_ratio_high"])
        shown.append(
            {
                "Cell": row["cell"],
                "Nodes": str(row["nodes"]),
                "Against": row["base"],
                "Ratio": ratio_interval(*ratio),
                "p": probability(row["p_value"]),
                "Effect": _of_largest(row["effect_size"], row["largest_effect_size"]),
                "Overlap": NONE if pd.isna(overlap) else ("yes" if overlap else "no"),
                "Verdict": row["verdict"],
            }
        )
    columns = ["Cell", "Nodes", "Against", "Ratio", "p", "Effect", "Overlap", "Verdict"]
    return pd.DataFrame(shown, columns=columns)


def _of_largest(effect: float, largest: float) -> str:
    """`0.62 of 0.76`: an effect size and what it would be if the two did not overlap at all."""
    if pd.isna(effect):
        return NONE
    return f"{significant(effect, 2)} of {significant(largest, 2)}"
