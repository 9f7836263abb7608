"""What each condition of a link costs each strategy; `python -m pipeline table what_if`."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.contrasts import against_plain
from pipeline.metrics.format import probability, ratio_interval, with_interval
from pipeline.metrics.select import records
from pipeline.tables.write import once

CAPTION = (
    "Median step times without and under each condition, the ratio of the two and its interval, "
    "and the p-value of the exact rank-sum test between them, corrected for the cells over that "
    "link (Holm). 'Slower' or 'faster' stands where p is under 0.05 and the interval leaves out 1."
)
COMPARES = {"precision"}
NEEDS = "conditions"
_COLUMNS = ["Condition", "Cell", "Nodes", "Without [ms]", "Under it [ms]", "Ratio", "p", "Verdict"]


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each condition, cell and node count."""
    return against_plain(table)


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text, step times in milliseconds."""
    shown = [
        {
            "Condition": f"{row['condition']} ({row['link']})",
            "Cell": row["arm_label"],
            "Nodes": str(row["nodes"]),
            "Without [ms]": _milliseconds(row, "plain_seconds"),
            "Under it [ms]": _milliseconds(row, "seconds"),
            "Ratio": ratio_interval(row["ratio"], row["low"], row["high"]),
            "p": probability(row["p_value"]),
            "Verdict": row["verdict"],
        }
        for row in records(frame)
    ]
    return once(pd.DataFrame(shown, columns=_COLUMNS), "Condition")


def _milliseconds(row: dict[str, float], name: str) -> str:
    value, low, high = (1000 * row[f"{name}{end}"] for end in ("", "_low", "_high"))
    return with_interval(value, low, high)
