"""Metrics of the profiled runs: the phases of a step, bytes sent, bubbles.

Rows of level `profile` are about one profiled run or one of its ranks, rows of level `cell` about
all profiled runs of a cell at a node count. A step takes what its slowest rank takes, here as in
the timed runs, so its phases are those of that rank and add up to its time. No time of a profiled
run goes anywhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pipeline.cost.traffic import Traffic
from pipeline.metrics.bubble import step_bubbles
from pipeline.metrics.cells import CellRuns, Groups
from pipeline.metrics.labels import Labels, label_of, run_context
from pipeline.metrics.parity import relative_deviation
from pipeline.metrics.runs import Run, load_run, outcome_rows
from pipeline.metrics.statistics import median_interval, repeats_interval
from pipeline.metrics.table import Rows, interval_row, row, rows
from pipeline.parallel.wire import RECEIVE
from pipeline.planner.memory import predict_sent, sent_between_nodes
from pipeline.records import RunRecord
from pipeline.study.profiling import IN_STEP, PHASES
from pipeline.text import plural

MEAN = "arithmetic mean over the profiled steps, each of its slowest rank; the parts add up to it"


def profile_rows(records: Iterable[RunRecord], labels: Labels, groups: Groups) -> list[Rows]:
    """All rows of the profiled runs; one that is not ok has its status and times only."""
    frames = []
    places: dict[tuple[str, int], list[Run]] = {}
    for record in records:
        context = run_context(record, label_of(labels, record))
        place = (context["cell"], record.spec.world.nodes)
        values = outcome_rows(record)
        if record.status == "ok":
            run = load_run(record, context)
            places.setdefault(place, []).append(run)
            # Each rank has its own rows, so that it is seen which one waits for which.
            values += [
                interval_row(
                    f"phase_seconds:{name}", "s", median_interval(np.asarray(own[name])), rank=rank
                )
                for rank, own in phase_steps(run).groupby("rank", sort=True)
                for name in PHASES
            ]
            values += _sent(run)
            # A value a run, by which claims on bubbles are tested.
            if bubbles := step_bubbles(record, run.resolved.layout):
                bubble, count = float(np.median(bubbles)), len(bubbles)
                values.append(row("phase_bubble", "1", bubble, n=count, text="median of its steps"))
            if place in groups:
                values += _against_timed(run, groups[place])
        frames.append(rows({**context, "level": "profile"}, values))
    for place, runs in places.items():
        # Where a profiled run alone fell back to the loopback, no timed one is beside it.
        frames.append(rows(groups.get(place, CellRuns(runs)).context, _cell(runs)))
    return frames


def phase_steps(run: Run) -> pd.DataFrame:
    """One row for each profiled step and rank: its phases and `step`, all in seconds.

    Of a strategy that sends in one step of a round alone, for each round: its mean step.
    """
    # A median of single steps would not see the one step of a round that communicates.
    size, first = run.resolved.strategy.period, run.record.spec.workload.untimed_steps
    lines = [
        {"at": (s.step - first) // size, "rank": s.rank, "step": s.seconds, **(s.phases or {})}
        for s in run.record.steps
        if s.timed
    ]
    return pd.DataFrame(lines).groupby(["at", "rank"], as_index=False).mean()


def slowest(steps: pd.DataFrame) -> pd.DataFrame:
    """Of `phase_steps` the row of each step's slowest rank, in the order of the steps."""
    # Means of the phases over ranks would not add up to the time of the step, which this one sets.
    return steps.loc[steps.groupby("at", sort=True)["step"].idxmax()]


def _sent(run: Run) -> list[dict[str, Any]]:
    """Bytes that each rank sends in a step along each axis: by its strategy's formula and counted.

    A record that counted nothing, as older ones, has the formula alone.
    """
    values = []
    for rank in run.record.run["ranks"]:
        predicted = {one.axis: one for one in predict_sent(run.resolved, rank["rank"])}
        calls = rank["sent"]["collectives"] if "sent" in rank else None
        counted = () if calls is None else [each["axis"] for each in calls]
        about = {"rank": rank["rank"]}
        for axis in dict.fromkeys([*predicted, *counted]):
            formula = predicted.get(axis, Traffic(axis, "", 0.0))
            values.append(row(f"predicted_sent_bytes:{axis}", "bytes", formula.bytes,
                              text=formula.formula or None, **about))  # fmt: skip
            leaving = sent_between_nodes(run.resolved.layout, rank["rank"], formula)
            if leaving is not None:
                between = f"predicted_between_nodes_bytes:{axis}"
                values.append(row(between, "bytes", leaving, **about))
            own = [each for each in calls or () if each["axis"] == axis]
            if calls is not None and None not in (each["wire_bytes"] for each in own):
                steps = rank["sent"].get("period", 1)
                total = sum(each["wire_bytes"] for each in own) / steps
                # `2 all-reduces, 1 send`: the calls of a step; what the rank receives is left out.
                names = [plural(each["count"], each["kind"].replace("_", "-")) for each in own
                         if each["kind"] != RECEIVE]  # fmt: skip
                text = ", ".join(names) + f" in {steps} steps" * (steps > 1) or None
                values.append(row(f"sent_bytes:{axis}", "bytes", total, text=text, **about))
                # Older records do not say to which node.
                if all("between_nodes_bytes" in each for each in calls):
                    leaving = sum(each["between_nodes_bytes"] for each in own) / steps
                    values.append(row(f"between_nodes_bytes:{axis}", "bytes", leaving, **about))
    return values


def _against_timed(own: Run, group: CellRuns) -> list[dict[str, Any]]:
    """Distance of the profiled run from the timed one of its repeat, in training and in time."""
    spec = own.record.spec
    asked, count = (spec.cell, spec.repeat), spec.workload.steps
    timed = next((r for r in group.ok if (r.record.spec.cell, r.record.spec.repeat) == asked), None)
    if timed is None:
        return []
    pairs = ((own.loss, timed.loss[:count]), (own.grad_norm, timed.grad_norm[:count]))
    apart = max(float(relative_deviation(one, other).max()) for one, other in pairs)
    slower = float(np.median(own.timed_seconds)) / group.step_seconds.value
    base = str(timed.context["run_id"])
    return [
        row("profile_deviation", "1", apart, base=base,
             text="largest of loss and gradient norm over all steps; 0 is the same to the bit"),
        row("profile_slowdown", "1", slower, base="the timed runs",
             text="median step of the profiled run over that of the timed ones"),
    ]  # fmt: skip


def _cell(profiled: Sequence[Run]) -> list[dict[str, Any]]:
    """Seconds of each phase, its share of the step, the means that add up, and the bubble.

    Each run counts once; of one run it is its steps that give the interval.
    """
    each = [slowest(phase_steps(run)) for run in profiled]
    whole = pd.concat(each)
    values = {f"phase_seconds:{name}": [np.asarray(run[name]) for run in each] for name in PHASES}
    values |= {
        f"phase_share:{name}": [np.asarray(run[name] / run["step"]) for run in each]
        for name in IN_STEP
    }
    cell_values = [
        interval_row(metric, "s" if "seconds" in metric else "1", repeats_interval(runs))
        for metric, runs in values.items()
    ]
    cell_values += [
        row(f"phase_mean_seconds:{name}", "s", float(whole[name].mean()), n=len(whole), text=MEAN)
        for name in PHASES
    ]
    # The bubble by its formula and from the passes, besides the phase that has it in it.
    first = profiled[0].resolved
    if (share := first.strategy.idle_share(first.spec)) is None:
        return cell_values
    about = "bubble / time of computation, by the formula of the schedule, not measured"
    cell_values.append(row("phase_bubble_formula", "1", share / (1 - share), text=about))
    for metric, equal in (("phase_bubble", False), ("phase_bubble_schedule", True)):
        bubbles = [step_bubbles(run.record, run.resolved.layout, equal=equal) for run in profiled]
        if runs := [np.asarray(steps) for steps in bubbles if steps]:
            cell_values.append(interval_row(metric, "1", repeats_interval(runs)))
    return cell_values
