"""What became of every run; `python -m pipeline table status`."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.select import pick, records
from pipeline.tables.format import NONE

CAPTION = (
    "What became of every planned run. A status other than ok is a result: such runs are listed "
    "with their reason and enter no average."
)
# A list of outcomes compares nothing.
COMPARES = {"global_batch", "schedule", "updates_per_step", "precision", "data", "model"}
STATUSES = ("ok", "oom", "unsupported", "failed", "timeout")


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell and node count: runs planned, a count for each status, reasons."""
    found = []
    runs = pick(table, "run", "status")
    for (_, cell, label, nodes), part in runs.groupby(
        ["cell_order", "cell", "label", "nodes"], sort=True
    ):
        counts = {status: int((part["text"] == status).sum()) for status in STATUSES}
        reasons = "; ".join(sorted(part["reason"].dropna().unique()))
        found.append(
            {"cell": cell, "label": label, "nodes": nodes, "runs": len(part), **counts,
             "reasons": reasons}
        )  # fmt: skip
    return pd.DataFrame(found)


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text; the short name of a cell is what a base is named by."""
    shown = []
    for row in records(frame):
        counts = [f"{row[status]} {status}" for status in STATUSES if row[status]]
        shown.append(
            {
                "Cell": row["label"],
                "Short name": row["cell"],
                "Nodes": str(row["nodes"]),
                "Runs": str(row["runs"]),
                "Status": ", ".join(counts),
                "Reason": row["reasons"] or NONE,
            }
        )
    return pd.DataFrame(shown)
