"""What became of every run; `python -m pipeline table status`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.metrics.comparison import FIELDS
from pipeline.metrics.format import NONE
from pipeline.metrics.ranks import DRIFT, NOT_TESTED
from pipeline.metrics.select import pick, records
from pipeline.tables.columns import PLACE, places

CAPTION = (
    "Runs that did not end as planned; all others ended ok and without drift. A status other than "
    "ok is a result: such runs are listed with their reason and enter no average. 'Drift' counts "
    "the runs whose step time changed by over 5 % from the first to the last third of the timed "
    "steps, beyond chance."
)
# A list of outcomes compares nothing.
COMPARES = FIELDS
STATUSES = ("ok", "disturbed", "oom", "unsupported", "failed", "timeout")


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell and node count: runs planned, a count for each status, reasons."""
    found = []
    runs = pick(table, "run", "status")[[*PLACE, "label", "cell_order", "text", "reason"]]
    drifts: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for row in records(pick(table, "run", "drift")[["cell", "nodes", "repeat", "value", "text"]]):
        drifts.setdefault((row["cell"], row["nodes"]), []).append(row)
    for (_, cell, nodes), part in runs.groupby(["cell_order", "cell", "nodes"], sort=True):
        counts = {status: int((part["text"] == status).sum()) for status in STATUSES}
        reasons = "; ".join(sorted(part["reason"].dropna().unique()))
        found.append(
            {**{name: part[name].iloc[0] for name in [*PLACE, "label"]}, "runs": len(part),
             **counts, "reasons": reasons,
             **_drift(drifts.get((cell, nodes), []))}
        )  # fmt: skip
    return pd.DataFrame(found)


def _drift(rows: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Runs tested for drift, how many of them drifted, and which by how much."""
    tested = [row for row in rows if row["text"] != NOT_TESTED]
    drifted = [row for row in tested if row["text"] == DRIFT]
    which = [f"r{row['repeat']} {100 * row['value']:+.1f} %" for row in drifted]
    return {"drift_tested": len(tested), "drifted": len(drifted), "drifts": ", ".join(which)}


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The exceptions as text: rows of which a run did not end ok, or drifted."""
    drifted = frame["drifted"] > 0
    frame = frame[(frame["ok"] < frame["runs"]) | drifted].reset_index(drop=True)
    shown = [
        {
            "Runs": str(row["runs"]),
            "Status": ", ".join(f"{row[status]} {status}" for status in STATUSES if row[status]),
            "Drift": _shown_drift(row),
            "Reason": row["reasons"] or NONE,
        }
        for row in records(frame)
    ]
    columns = ["Runs", "Status", "Drift", "Reason"]
    return pd.DataFrame(places(frame)).join(pd.DataFrame(shown, columns=columns))


def _shown_drift(row: dict[str, Any]) -> str:
    if not row["drift_tested"]:
        return NONE
    which = f" ({row['drifts']})" if row["drifts"] else ""
    return f"{row['drifted']} of {row['drift_tested']}{which}"
