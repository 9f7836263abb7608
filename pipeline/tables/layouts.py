"""What each layout costs, beside its formulas; `python -m pipeline table layouts`."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.select import KEYS, pick
from pipeline.tables import columns as col

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
_MEGABYTES = 1e-6
_MEMORY = ["peak_memory_bytes", "base_memory_bytes", "predicted_memory_bytes"]
_CELL = {
    "step_seconds": "step_seconds",
    "phase_bubble": "bubble",
    "phase_bubble_schedule": "bubble_schedule",
    "phase_bubble_formula": "bubble_formula",
    "phase_share:communication": "waits",
}


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell and node count: bytes, seconds, shares; NaN where nothing is known."""
    found = col.every_cell(table, "strategy", "world_size")
    found = col.with_measures(found, table, _CELL, bounded=["step_seconds"])
    for more in (_memory(table), _sent(table, "predicted_sent_bytes"), _sent(table, "sent_bytes")):
        found = found.merge(more, on=KEYS, how="left")
    alone = found.loc[found["world_size"] == 1, "step_seconds"].dropna()
    single = alone.iloc[0] if len(alone) else float("nan")
    ideal = single / found["world_size"] * (1 + found["bubble_formula"].fillna(0))
    found["ideal_seconds"] = ideal.where(found["step_seconds"].notna())
    return found


def _memory(table: pd.DataFrame) -> pd.DataFrame:
    """Of the rank that needs most: bytes above its base, measured and predicted."""
    rows = pick(table, "rank", *_MEMORY)
    each = rows.groupby([*KEYS, "rank", "metric"], sort=False)["value"].median().unstack("metric")
    each = each.reindex(columns=_MEMORY).reset_index()
    each["memory_bytes"] = each["peak_memory_bytes"] - each["base_memory_bytes"]
    most = each.sort_values("memory_bytes", ascending=False, kind="stable").drop_duplicates(KEYS)
    return most[[*KEYS, "memory_bytes", "predicted_memory_bytes"]]


def _sent(table: pd.DataFrame, prefix: str) -> pd.DataFrame:
    """Bytes along all axes of the rank that sends most; NaN where an axis is not known."""
    rows = table[(table["level"] == "profile") & (table["status"] == "ok")]
    names = [name for name in rows["metric"].unique() if str(name).startswith(f"{prefix}:")]
    found = pick(rows, "profile", *names)
    if prefix.startswith("predicted"):
        found = found[found["text"].notna()]  # an axis that no formula names was counted alone
    total = found.groupby([*KEYS, "rank"], sort=False)["value"].sum().reset_index()
    return total.groupby(KEYS)["value"].max().rename(prefix).reset_index()


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text: MiB, milliseconds, MB and percent."""
    columns = [
        col.text("Ranks", "world_size"),
        col.Column("Memory [MiB]", "memory_bytes", col.MEBIBYTES),
        col.Column("Model [MiB]", "predicted_memory_bytes", col.MEBIBYTES),
        col.interval("Step [ms]", "step_seconds", col.MILLISECONDS),
        col.Column("Ideal [ms]", "ideal_seconds", col.MILLISECONDS),
        col.Column("Sent [MB]", "sent_bytes", _MEGABYTES),
        col.Column("Formula [MB]", "predicted_sent_bytes", _MEGABYTES),
        col.Column("Bubble [%]", "bubble", col.PER_CENT),
        col.Column("Schedule [%]", "bubble_schedule", col.PER_CENT),
        col.Column("Formula [%]", "bubble_formula", col.PER_CENT),
        col.Column("Waits [%]", "waits", col.PER_CENT),
    ]
    return col.shown(frame, columns)
