"""What each condition of a link costs each strategy; `python -m pipeline table what_if`."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.format import probability
from pipeline.metrics.verdicts import against_plain
from pipeline.tables import columns as col

CAPTION = (
    "Median step times without and under each condition, the ratio of the two and its interval, "
    "and the p-value of the exact rank-sum test between them, corrected for the cells over that "
    "link (Holm). 'Slower' or 'faster' stands where p is under 0.05 and the interval leaves out 1."
)
COMPARES = {"precision"}
NEEDS = "conditions"
_COLUMNS = (
    col.text("Cell", "arm_label"),
    col.text("Nodes", "nodes"),
    col.interval("Without [ms]", "plain_seconds", col.MILLISECONDS),
    col.interval("Under it [ms]", "seconds", col.MILLISECONDS),
    col.ratio("Ratio", "ratio"),
    col.Column("p", "p_value", write=probability),
    col.text("Verdict", "verdict"),
)


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each condition, cell and node count."""
    return against_plain(table)


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text, step times in milliseconds."""
    frame = frame.rename(columns={"low": "ratio_low", "high": "ratio_high"})
    found = pd.DataFrame({one.title: one.texts(frame) for one in _COLUMNS})
    pairs = zip(frame["condition"], frame["link"], strict=True)
    found.insert(0, "Condition", [f"{condition} ({link})" for condition, link in pairs])
    return col.once(found, "Condition")
