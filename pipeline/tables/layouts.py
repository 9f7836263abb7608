"""What each layout costs, beside its formulas; `python -m pipeline table layouts`."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pipeline.metrics.format import NONE, significant, with_interval
from pipeline.metrics.select import pick, records
from pipeline.tables.write import PLACE, places

CAPTION = (
    "Memory, time, bytes and waiting of each layout at equal work, each beside its formula. Memory "
    "is that of the rank that needs most above its base, median over the repeats, beside the "
    "model of the planner. Step time is the "
    "median over the repeats with its interval; its ideal is that of the single device divided by "
    "the ranks, times one and the formula of the bubble. Sent is what the rank that sends most "
    "sends in a step along all axes, counted in the profiled run. The bubble is the idle time of "
    "the ranks of a pipeline over that of their passes: measured from the computation of each pass "
    "in the profiled run, replayed in its order as if messages took no time, so that schedule and "
    "unequal stages alone make it; the schedule's part is that of the same passes made equally "
    "long, as in its formula. Waits are the share of a step "
    "of the profiled run in which a rank computes nothing: bubble, messages and reductions."
)
COMPARES = {"precision"}
NEEDS = "layouts"
_MEBIBYTE, _MEGABYTE = 2**20, 1e6
_MEMORY = {
    "peak_memory_bytes": "peak",
    "base_memory_bytes": "base",
    "predicted_memory_bytes": "predicted_memory_bytes",
}
_CELL = {
    "step_seconds": "step_seconds",
    "phase_bubble": "bubble",
    "phase_bubble_schedule": "bubble_schedule",
    "phase_bubble_formula": "bubble_formula",
    "phase_share:communication": "waits",
}


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell and node count: bytes, seconds, shares; NaN where nothing is known."""
    found = pick(table, "cell", "num_ok")[[*PLACE, "label", "strategy", "world_size"]]
    for metric, name in _CELL.items():
        columns = ["cell", "nodes", "value", *(["low", "high"] * (metric == "step_seconds"))]
        names = {"value": name, "low": f"{name}_low", "high": f"{name}_high"}
        rows = pick(table, "cell", metric)[columns].rename(columns=names)
        found = found.merge(rows, on=["cell", "nodes"], how="left")
    for more in (_memory(table), _sent(table, "predicted_sent_bytes"), _sent(table, "sent_bytes")):
        found = found.merge(more, on=["cell", "nodes"], how="left")
    alone = found.loc[found["world_size"] == 1, "step_seconds"].dropna()
    single = alone.iloc[0] if len(alone) else float("nan")
    ideal = single / found["world_size"] * (1 + found["bubble_formula"].fillna(0))
    found["ideal_seconds"] = ideal.where(found["step_seconds"].notna())
    return found


def _memory(table: pd.DataFrame) -> pd.DataFrame:
    """Of the rank that needs most: bytes above its base, measured and predicted."""
    rows = pick(table, "rank", *_MEMORY)
    keys = ["cell", "nodes", "rank"]
    each = rows.groupby([*keys, "metric"], sort=False)["value"].median().unstack("metric")
    each = each.reindex(columns=list(_MEMORY)).rename(columns=_MEMORY).reset_index()
    each["memory_bytes"] = each["peak"] - each["base"]
    most = each.sort_values("memory_bytes", ascending=False, kind="stable")
    most = most.drop_duplicates(["cell", "nodes"])
    return most[["cell", "nodes", "memory_bytes", "predicted_memory_bytes"]]


def _sent(table: pd.DataFrame, prefix: str) -> pd.DataFrame:
    """Bytes along all axes of the rank that sends most; NaN where an axis is not known."""
    rows = table[(table["level"] == "profile") & (table["status"] == "ok")]
    names = [name for name in rows["metric"].unique() if str(name).startswith(f"{prefix}:")]
    found = pick(rows, "profile", *names)
    if prefix.startswith("predicted"):
        found = found[found["text"].notna()]  # an axis that no formula names was counted alone
    total = found.groupby(["cell", "nodes", "rank"], sort=False)["value"].sum().reset_index()
    return total.groupby(["cell", "nodes"])["value"].max().rename(prefix).reset_index()


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text: MiB, milliseconds, MB and percent."""

    def of(value: float, scale: float = 1.0) -> str:
        return NONE if pd.isna(value) else significant(value * scale)

    def row(one: dict[str, Any]) -> dict[str, str]:
        time, low, high = (1000 * one[f"step_seconds{end}"] for end in ("", "_low", "_high"))
        return {
            "Ranks": str(one["world_size"]),
            "Memory [MiB]": of(one["memory_bytes"], 1 / _MEBIBYTE),
            "Model [MiB]": of(one["predicted_memory_bytes"], 1 / _MEBIBYTE),
            "Step [ms]": NONE if pd.isna(time) else with_interval(time, low, high),
            "Ideal [ms]": of(one["ideal_seconds"], 1000),
            "Sent [MB]": of(one["sent_bytes"], 1 / _MEGABYTE),
            "Formula [MB]": of(one["predicted_sent_bytes"], 1 / _MEGABYTE),
            "Bubble [%]": of(one["bubble"], 100),
            "Schedule [%]": of(one["bubble_schedule"], 100),
            "Formula [%]": of(one["bubble_formula"], 100),
            "Waits [%]": of(one["waits"], 100),
        }

    return pd.DataFrame(places(frame)).join(pd.DataFrame([row(one) for one in records(frame)]))
