"""What became of every run; `python -m pipeline table status`."""

from __future__ import annotations

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
    runs, drifts = pick(table, "run", "status"), pick(table, "run", "drift")
    tested = drifts[drifts["text"] != NOT_TESTED]
    for (_, cell, nodes), part in runs.groupby(["cell_order", "cell", "nodes"], sort=True):
        own = tested[(tested["cell"] == cell) & (tested["nodes"] == nodes)]
        drifted = records(own[own["text"] == DRIFT])
        found.append({
            **{name: part[name].iloc[0] for name in [*PLACE, "label"]},
            "runs": len(part),
            **{status: int((part["text"] == status).sum()) for status in STATUSES},
            "reasons": "; ".join(sorted(part["reason"].dropna().unique())),
            "drift_tested": len(own),
            "drifted": len(drifted),
            "drifts": ", ".join(f"r{r['repeat']} {100 * r['value']:+.1f} %" for r in drifted),
        })  # fmt: skip
    return pd.DataFrame(found)


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The exceptions as text: rows of which a run did not end ok, or drifted."""
    drifted = frame["drifted"] > 0
    frame = frame[(frame["ok"] < frame["runs"]) | drifted].reset_index(drop=True)
    shown = []
    for row in records(frame):
        which = f" ({row['drifts']})" if row["drifts"] else ""
        drift = f"{row['drifted']} of {row['drift_tested']}{which}"
        status = ", ".join(f"{row[one]} {one}" for one in STATUSES if row[one])
        drift = drift if row["drift_tested"] else NONE
        shown.append((str(row["runs"]), status, drift, row["reasons"] or NONE))
    texts = pd.DataFrame(shown, columns=["Runs", "Status", "Drift", "Reason"])
    return pd.DataFrame(places(frame)).join(texts)
