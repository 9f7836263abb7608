"""In which order the runs were really executed, and whether the machine drifted meanwhile.

The plan is random within each repeat (`run_order` of pipeline/study/expansion.py); what happened is
in the records' `started_at`, since a repeated or resumed run starts later than planned.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.metrics.cells import Groups
from pipeline.metrics.ranks import NOT_TESTED, drift
from pipeline.metrics.runs import Run
from pipeline.metrics.table import row

ORDER = "random within each repeat, fixed by the seeds"


def executed(runs: Sequence[Run]) -> list[Run]:
    """The runs in the order in which they were started."""
    return sorted(
        runs,
        key=lambda run: (run.record.run["started_at"], run.record.run["ended_at"],
                         run.context["run_id"]),
    )  # fmt: skip


def order_rows(runs: Sequence[Run], groups: Groups, plan: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of level `study`: how far the plan was kept, and the drift over the order.

    `plan` holds the ids of all runs of the study in their planned order.
    """
    places = [plan.index(str(run.context["run_id"])) for run in executed(runs)]
    kept = longest_rise(places)
    text = f"{ORDER}; {kept} of {len(places)} runs were executed in this order"
    # Medians of the runs, each relative to that of its cell.
    relative = []
    for run in executed(runs):
        group = groups[run.context["cell"], run.context["nodes"]]
        if run.ok and len(group.ok) > 1:
            relative.append(float(np.median(run.timed_seconds)) / group.step_seconds.value)
    found = drift(np.asarray(relative, dtype=np.float64))
    return [
        row("order_kept", "count", float(kept), n=len(places), text=text),
        {"metric": "order_drift", "text": NOT_TESTED}
        if found is None
        else row("order_drift", "1", found.share, n=found.n, text=found.verdict),
    ]


def longest_rise(places: Sequence[int]) -> int:
    """Length of the longest subsequence that rises: how many stand in order at most."""
    ends: list[int] = []
    for place in places:
        at = bisect_left(ends, place)
        ends[at : at + 1] = [place]
    return len(ends)
