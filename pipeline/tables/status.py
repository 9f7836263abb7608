"""What became of every run; `python -m pipeline table status`."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pipeline.metrics.format import NONE
from pipeline.metrics.ranks import DRIFT, NOT_TESTED
from pipeline.metrics.select import pick, records

CAPTION = (
    "What became of every planned run. A status other than ok is a result: such runs are listed "
    "with their reason and enter no average. 'Drift' counts the runs whose step time changed by "
    "over 5 % from the first to the last third of the timed steps, beyond chance."
)
# A list of outcomes compares nothing.
COMPARES = {"global_batch", "schedule", "updates_per_step", "precision", "data", "model"}
STATUSES = ("ok", "oom", "unsupported", "failed", "timeout")


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell and node count: runs planned, a count for each status, reasons."""
    found = []
    runs, drifts = pick(table, "run", "status"), pick(table, "run", "drift")
    for (_, cell, label, nodes), part in runs.groupby(
        ["cell_order", "cell", "label", "nodes"], sort=True
    ):
        counts = {status: int((part["text"] == status).sum()) for status in STATUSES}
        reasons = "; ".join(sorted(part["reason"].dropna().unique()))
        found.append(
            {"cell": cell, "label": label, "nodes": nodes, "runs": len(part), **counts,
             "reasons": reasons,
             **_drift(drifts[(drifts["cell"] == cell) & (drifts["nodes"] == nodes)])}
        )  # fmt: skip
    return pd.DataFrame(found)


def _drift(rows: pd.DataFrame) -> dict[str, object]:
    """Runs tested for drift, how many of them drifted, and which by how much."""
    tested = rows[rows["text"] != NOT_TESTED]
    drifted = tested[tested["text"] == DRIFT]
    which = [f"r{row['repeat']} {100 * row['value']:+.1f} %" for row in records(drifted)]
    return {"drift_tested": len(tested), "drifted": len(drifted), "drifts": ", ".join(which)}


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
                "Drift": _shown_drift(row),
                "Reason": row["reasons"] or NONE,
            }
        )
    return pd.DataFrame(shown)


def _shown_drift(row: dict[str, Any]) -> str:
    if not row["drift_tested"]:
        return NONE
    which = f" ({row['drifts']})" if row["drifts"] else ""
    return f"{row['drifted']} of {row['drift_tested']}{which}"
