"""Each strategy at the largest world, a line each; `python -m pipeline table summary`."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.format import NONE, ratio_interval, with_interval
from pipeline.metrics.headline import last_place
from pipeline.metrics.select import pick, records, speedup_name
from pipeline.study.profiling import COMMUNICATION
from pipeline.tables.write import PLACE, places, with_measures

CAPTION = (
    "Every cell at the largest world, the highest throughput first. Efficiency: speedup over the "
    "ratio of ranks. Exposed: share of a step that is communication which no computing hides. "
    "Memory: peak of the largest rank. The table of scaling has every link and node count."
)
COMPARES = {"precision"}
_SHARE = f"phase_share:{COMMUNICATION}"
_MEASURES = {
    "tokens_per_second": "tokens_per_second",
    "speedup": "speedup",
    "efficiency": "efficiency",
    _SHARE: "communication_share",
    "peak_memory_bytes": "peak_memory_bytes",
}
_MEBIBYTE = 2**20


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell of that place, the highest throughput first; bytes, shares of 1."""
    found = last_place(table)[[*PLACE, "label", "world_size", "scaling"]]
    found = with_measures(found, table, _MEASURES, bounded=True)
    base = pick(table, "cell", "speedup")[["cell", "nodes", "base"]]
    found = found.merge(base, on=["cell", "nodes"], how="left")
    return found.sort_values("tokens_per_second", ascending=False, ignore_index=True)


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text; shares in per cent, memory in MiB."""
    name, shown = speedup_name(frame).partition(",")[0].capitalize(), []
    for row in records(frame):
        speedup = (row[f"speedup{end}"] for end in ("", "_low", "_high"))
        rate = (row[f"tokens_per_second{end}"] for end in ("", "_low", "_high"))
        memory = row["peak_memory_bytes"]
        shown.append(
            {
                "Tokens/s": with_interval(*rate),
                name: ratio_interval(*speedup),
                "Efficiency": NONE if pd.isna(row["efficiency"]) else f"{row['efficiency']:.2f}",
                "Base": NONE if pd.isna(row["base"]) else row["base"],
                "Exposed [%]": _per_cent(row),
                "Memory [MiB]": NONE if pd.isna(memory) else f"{memory / _MEBIBYTE:,.0f}",
            }
        )
    columns = ["Tokens/s", name, "Efficiency", "Base", "Exposed [%]", "Memory [MiB]"]
    return pd.DataFrame(places(frame)).join(pd.DataFrame(shown, columns=columns))


def _per_cent(row: dict[str, float]) -> str:
    value, low, high = (100 * row[f"communication_share{end}"] for end in ("", "_low", "_high"))
    return ratio_interval(value, low, high, 0)
