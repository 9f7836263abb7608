"""What the manuscript says of how it was measured (intervals, order, drift, clock), and of what."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pipeline.metrics.cells import WITHIN
from pipeline.metrics.facts import FORMER_CLOCK
from pipeline.metrics.format import scientific, significant
from pipeline.metrics.ranks import ALPHA, DRIFT, DRIFT_ALPHA, DRIFT_SHARE, NOT_TESTED
from pipeline.metrics.runs import TIMER_SHARE
from pipeline.metrics.select import fact, listed, not_profiled, pick, plural, records
from pipeline.metrics.statistics import CONFIDENCE, MIN_REPEATS


def measurement(table: pd.DataFrame) -> dict[str, Any]:
    """Facts for the section on measurement; JSON types only."""
    share = pick(table, "run", "timer_overhead_share")
    of_study = {row["metric"]: row for row in records(table[table["level"] == "study"])}
    # How exact the speedups are; nothing where none has several runs.
    sizing = {}
    if (exact := of_study.get("exact_speedups")) and exact["n"]:
        sizing = {
            "exact": f"{int(exact['value'])} of {plural(int(exact['n']), 'speedup')}",
            "within": f"{100 * WITHIN:g}",
            "spread": significant(100 * of_study["spread_of_runs"]["value"], 2),
        }
    drifts, order = pick(table, "run", "drift")["text"], of_study["order_drift"]
    return {
        "percent": f"{100 * CONFIDENCE:g}",
        "min_repeats": MIN_REPEATS,
        "alpha": f"{ALPHA:g}",
        "few": bool((pick(table, "cell", "num_ok")["value"] < MIN_REPEATS).any()),
        "sizing": sizing,
        "order": fact(table, "order_kept"),
        "drift": {
            "percent": f"{100 * DRIFT_SHARE:g}",
            "alpha": f"{DRIFT_ALPHA:g}",
            "tested": plural(int((drifts != NOT_TESTED).sum()), "run"),
            "drifted": int((drifts == DRIFT).sum()),
            "order_drifted": str(order["text"]) == DRIFT,
            "order_share": "" if pd.isna(order["value"]) else f"{100 * order['value']:+.1f} %",
        },
        # Runs of which reading the clock took too much, and whether any had the former clock.
        "slow_clock": listed(share.loc[share["value"] > TIMER_SHARE, "run_id"]),
        "timer_percent": f"{100 * TIMER_SHARE:g}",
        "former_clock": FORMER_CLOCK in set(pick(table, "run", "clock")["text"]),
    }


def split(table: pd.DataFrame) -> dict[str, Any]:
    """Number of profiled runs, and how far they are from the timed ones; empty where none is asked.

    `deviation` is relative, of losses and norms, `slowdown` of the median step.
    """
    status = pick(table, "profile", "status")
    if status.empty:
        return {}
    ended = table[(table["level"] == "profile") & (table["status"] == "ok")]
    apart = pick(table, "profile", "profile_deviation")["value"]
    slower = pick(table, "profile", "profile_slowdown")["value"]
    return {
        "runs": plural(len(status), "profiled run"),
        "finished": int((status["text"] == "ok").sum()),
        "sent": bool(ended["metric"].str.startswith("predicted_sent_bytes:").any()),
        "missing": not_profiled(table),
        # Once for all numbers of nodes.
        "pipelines": listed(dict.fromkeys(pick(table, "cell", "phase_bubble")["label"])),
        "compared": len(apart),
        "same": bool((apart == 0).all()),
        "deviation": scientific(float(apart.max())) if len(apart) else "",
        "slowdown": " to ".join(
            dict.fromkeys(f"{value:.2f}" for value in (slower.min(), slower.max()))
        ),
    }


def loss(table: pd.DataFrame) -> dict[str, Any]:
    """First and final loss over all cells and repeats, in nats per token."""
    steps = pick(table, "step", "loss").dropna(subset=["value"])
    if steps.empty:
        return {}
    first = steps[steps["step"] == steps["step"].min()]["value"]
    last = steps[steps["step"] == steps["step"].max()]["value"]
    ends = dict.fromkeys(f"{value:.3f}" for value in (last.min(), last.max()))
    return {
        "first": f"{first.median():.2f}",
        "last": " to ".join(ends),
        "falls": bool(last.max() < first.min()),
    }
