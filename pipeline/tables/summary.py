"""Each strategy at the largest world, a line each; `python -m pipeline table summary`."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.format import ratio_interval
from pipeline.metrics.headline import last_place
from pipeline.metrics.select import beside, speedup_name
from pipeline.study.profiling import COMMUNICATION
from pipeline.tables import columns as col

CAPTION = (
    "Every cell at the largest world, the highest throughput first. Efficiency: speedup over the "
    "ratio of ranks. Exposed: share of a step that is communication which no computing hides. "
    "Memory: peak of the largest rank. The table of scaling has every link and node count."
)
COMPARES = {"precision"}
_MEASURES = {
    "tokens_per_second": "tokens_per_second",
    "speedup": "speedup",
    "efficiency": "efficiency",
    f"phase_share:{COMMUNICATION}": "communication_share",
    "peak_memory_bytes": "peak_memory_bytes",
}


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell of that place, the highest throughput first; bytes, shares of 1."""
    found = last_place(table)[[*col.PLACE, "label", "world_size", "scaling"]]
    found = col.with_measures(found, table, _MEASURES, bounded=_MEASURES)
    found = beside(found, table, "speedup", {"base": "base"})
    return found.sort_values("tokens_per_second", ascending=False, ignore_index=True)


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text; shares in per cent, memory in MiB."""

    def per_cent(value: float, low: float, high: float) -> str:
        return ratio_interval(value, low, high, 0)

    columns = [
        col.interval("Tokens/s", "tokens_per_second"),
        col.ratio(speedup_name(frame).partition(",")[0].capitalize(), "speedup"),
        col.Column("Efficiency", "efficiency", write=col.hundredths),
        col.text("Base", "base"),
        col.Column("Exposed [%]", "communication_share", col.PER_CENT, per_cent, bounded=True),
        col.Column("Memory [MiB]", "peak_memory_bytes", col.MEBIBYTES, col.whole),
    ]
    return col.shown(frame, columns)
