"""What the manuscript says about where the time of a step goes, from the profiled runs."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pipeline.metrics.counts import run_counts
from pipeline.metrics.format import ratio_interval, scientific, significant
from pipeline.metrics.network_bound import least_milliseconds
from pipeline.metrics.select import listed, not_profiled, pick, plural, records, unmarked
from pipeline.study.profiling import COMMUNICATION


def split_facts(table: pd.DataFrame) -> dict[str, Any]:
    """Facts about the profiled runs; empty where the study asks for none."""
    status = pick(table, "profile", "status")
    if status.empty:
        return {}
    labels = dict(zip(status["cell"], status["label"], strict=True))
    finished = int((status["text"] == "ok").sum())
    shares = pick(table, "cell", f"phase_share:{COMMUNICATION}")
    # A strategy without marks shows no communication; that is no finding.
    shares = shares[(shares["world_size"] > 1) & ~shares["cell"].isin(unmarked(table))]
    steps = pick(table, "cell", f"phase_mean_seconds:{COMMUNICATION}")["n"]
    return {
        "runs": plural(run_counts(table).profiled, "profiled run"),
        "finished": finished,
        "all_finished": finished == len(status),
        "missing": not_profiled(table),
        "steps": listed(plural(n, "step") for n in sorted({int(n) for n in steps})),
        "places": [_place(int(str(nodes)), rows) for nodes, rows in shares.groupby("nodes")],
        "largest": _largest(shares),
        "pipelines": listed(
            dict.fromkeys(pick(table, "cell", "phase_bubble")["label"])  # once for all nodes
        ),
        "unmarked": listed(labels[cell] for cell in unmarked(table)),
        **_against_timed(table),
        "bound": _against_bound(table),
    }


def _place(nodes: int, rows: pd.DataFrame) -> dict[str, Any]:
    """The cells with the largest and the smallest share at one node count."""
    ranked = records(rows.sort_values("value", ascending=False, kind="stable"))
    return {
        "nodes": plural(nodes, "node"),
        "most": ranked[0]["label"],
        "most_share": _percent(ranked[0]),
        "least": ranked[-1]["label"] if len(ranked) > 1 else "",
        "least_share": _percent(ranked[-1]),
    }


def _largest(shares: pd.DataFrame) -> dict[str, Any]:
    if shares.empty:
        return {}
    top = records(shares.sort_values("value", kind="stable"))[-1]
    return {
        "label": top["label"],
        "nodes": plural(int(top["nodes"]), "node"),
        "share": _percent(top),
    }


def _against_bound(table: pd.DataFrame) -> dict[str, Any]:
    """How exposed communication compares with the least time on a link, at the most nodes.

    Empty where no bound is known. The factors are of the cells over every link.
    """
    least = least_milliseconds(table)
    rows = pick(table, "cell", f"phase_mean_seconds:{COMMUNICATION}")
    rows = rows[~rows["cell"].isin(unmarked(table))]
    factors = [
        (1000 * row["value"] / least[place], row["label"], place[0])
        for row in records(rows)
        if (place := (int(row["nodes"]), row["cell"])) in least
    ]
    most = max((nodes for *_, nodes in factors), default=0)
    ranked = sorted((one for one in factors if one[2] == most), key=lambda one: one[0])
    if not ranked:
        return {}
    (low, least_cell, _), (high, most_cell, _) = ranked[0], ranked[-1]
    return {
        "nodes": plural(most, "node"),
        "low": significant(low, 2), "low_cell": least_cell,
        "high": significant(high, 2), "high_cell": most_cell,
        "several": len(ranked) > 1,
    }  # fmt: skip


def _percent(row: dict[str, Any]) -> str:
    value, low, high = (100 * float(row[key]) for key in ("value", "low", "high"))
    number, *ends = ratio_interval(value, low, high, 0).split(" ", 1)
    return " ".join([number, "%", *ends])


def _against_timed(table: pd.DataFrame) -> dict[str, Any]:
    """Whether the profiled runs trained like the timed ones, and how much longer they took."""
    apart = pick(table, "profile", "profile_deviation")["value"]
    slower = pick(table, "profile", "profile_slowdown")["value"]
    if apart.empty:
        return {"compared": 0, "same": False, "deviation": "", "slowdown": ""}
    low, high = (f"{value:.2f}" for value in (slower.min(), slower.max()))
    return {
        "compared": len(apart),
        "same": bool((apart == 0).all()),
        "deviation": scientific(float(apart.max())),
        "slowdown": low if low == high else f"{low} to {high}",
    }
