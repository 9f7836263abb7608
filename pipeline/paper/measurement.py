"""What the manuscript says of how it was measured (intervals, order, drift, clock), and of what."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pipeline.metrics.facts import FORMER_CLOCK
from pipeline.metrics.format import probability, scientific, significant
from pipeline.metrics.ranks import ALPHA, DRIFT, DRIFT_ALPHA, DRIFT_SHARE, NOT_TESTED
from pipeline.metrics.runs import TIMER_SHARE
from pipeline.metrics.select import fact, listed, not_profiled, pick, plural, records, unmarked
from pipeline.metrics.sizing import SHARE, WITHIN
from pipeline.metrics.statistics import CONFIDENCE, MIN_REPEATS


def measurement(table: pd.DataFrame) -> dict[str, Any]:
    """Facts for the section on measurement; JSON types only."""
    # Runs of the former kind of clock of a step.
    former = int((pick(table, "run", "clock")["text"] == FORMER_CLOCK).sum())
    runs = table.loc[table["level"] == "run", "run_id"].nunique()
    share = pick(table, "run", "timer_overhead_share")
    seconds = pick(table, "run", "timer_overhead_seconds")["value"]
    of_study = {row["metric"]: row for row in records(table[table["level"] == "study"])}
    # How exact the speedups are, and what that would take; nothing where there are none.
    sizing = {}
    if wanted := of_study.get("repeats_for_speedups"):
        exact = of_study["exact_speedups"]
        sizing = {
            "exact": f"{int(exact['value'])} of {plural(int(exact['n']), 'speedup')}",
            "within": f"{100 * WITHIN:g}",
            "share": f"{100 * SHARE:g}",
            "repeats": plural(int(wanted["value"]), "repeat"),
        }
    drifts, order = pick(table, "run", "drift"), of_study["order_drift"]
    tested = drifts[drifts["text"] != NOT_TESTED]
    drifted = records(tested[tested["text"] == DRIFT])
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
            "tested": plural(len(tested), "run"),
            "any_tested": len(tested) > 0,
            "runs": [f"{r['run_id']} ({100 * r['value']:+.1f} %)" for r in drifted],
            "order_tested": str(order["text"]) != NOT_TESTED,
            "order_drifted": str(order["text"]) == DRIFT,
            "order_share": "" if pd.isna(order["value"]) else f"{100 * order['value']:+.1f} %",
        },
        "timer": {
            "measured": len(share) > 0,
            "microseconds": significant(1e6 * float(seconds.max()), 2) if len(share) else "",
            "percent": probability(100 * float(share["value"].max())) if len(share) else "",
            "limit": f"{100 * TIMER_SHARE:g}",
            "over": listed(share.loc[share["value"] > TIMER_SHARE, "run_id"]),
        },
        "clock": {
            "all_former": former == runs,
            "some_former": 0 < former < runs,
            "former": plural(former, "run"),
        },
    }


def split(table: pd.DataFrame) -> dict[str, Any]:
    """How many profiled runs there are, and what they could not see; empty where none is asked for.

    `deviation` and `slowdown` are against the timed runs: relative, of losses and norms, and of the
    median step.
    """
    status = pick(table, "profile", "status")
    if status.empty:
        return {}
    ended = table[(table["level"] == "profile") & (table["status"] == "ok")]
    labels = dict(zip(status["cell"], status["label"], strict=True))
    apart = pick(table, "profile", "profile_deviation")["value"]
    slower = pick(table, "profile", "profile_slowdown")["value"]
    return {
        "runs": plural(len(status), "profiled run"),
        "finished": int((status["text"] == "ok").sum()),
        "sent": bool(ended["metric"].str.startswith("predicted_sent_bytes:").any()),
        "missing": not_profiled(table),
        # Once for all numbers of nodes.
        "pipelines": listed(dict.fromkeys(pick(table, "cell", "phase_bubble")["label"])),
        "unmarked": listed(labels[cell] for cell in unmarked(table)),
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
