"""Metrics of the profiled runs: the phases of a step, bytes sent, bubbles.

Rows of level `profile` are about one profiled run or one of its ranks, rows of level `cell` about
all profiled runs of a cell at a node count. A step takes what its slowest rank takes, here as in
the timed runs, so its phases are those of that rank and add up to its time. No time of a profiled
run goes anywhere else.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pipeline.cost.schedule import in_turn, replayed
from pipeline.cost.traffic import RECEIVE, Traffic
from pipeline.metrics.cells import CellRuns, Groups, group_runs
from pipeline.metrics.parity import relative_deviation
from pipeline.metrics.runs import Run, outcome_rows
from pipeline.metrics.statistics import median_interval, repeats_interval
from pipeline.metrics.table import Rows, interval_row, row
from pipeline.parallel.mesh import PIPELINE, Layout
from pipeline.planner.memory import predict_sent, sent_between_nodes
from pipeline.records import RunRecord
from pipeline.study.profiling import IN_STEP, PHASES
from pipeline.text import plural

MEAN = "arithmetic mean over the profiled steps, each of its slowest rank; the parts add up to it"


def profile_rows(profiled: Sequence[Run], groups: Groups) -> list[Rows]:
    """All rows of the profiled runs; one that is not ok has its status and times only."""
    parts = []
    for run in profiled:
        values = outcome_rows(run.record)
        if run.ok:
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
            if bubbles := step_bubbles(run.record, run.resolved.layout):
                bubble, count = float(np.median(bubbles)), len(bubbles)
                values.append(row("phase_bubble", "1", bubble, n=count, text="median of its steps"))
            if (timed := groups.get((run.context["cell"], run.context["nodes"]))) is not None:
                values += _against_timed(run, timed)
        parts.append(Rows({**run.context, "level": "profile"}, values))
    for place, group in group_runs([run for run in profiled if run.ok]).items():
        # Where a profiled run alone fell back to the loopback, no timed one is beside it.
        parts.append(Rows(groups.get(place, group).context, _cell(group.runs)))
    return parts


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
        calls = rank["sent"]["collectives"] if "sent" in rank else ()
        about = {"rank": rank["rank"]}
        for axis in dict.fromkeys([*predicted, *(each["axis"] for each in calls)]):
            formula = predicted.get(axis, Traffic(axis, "", 0.0))
            values.append(row(f"predicted_sent_bytes:{axis}", "bytes", formula.bytes,
                              text=formula.formula or None, **about))  # fmt: skip
            leaving = sent_between_nodes(run.resolved.layout, rank["rank"], formula)
            if leaving is not None:
                between = f"predicted_between_nodes_bytes:{axis}"
                values.append(row(between, "bytes", leaving, **about))
            own = [each for each in calls if each["axis"] == axis]
            if "sent" in rank and None not in (each["wire_bytes"] for each in own):
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
    asked = spec.cell, spec.repeat
    timed = next((r for r in group.ok if (r.record.spec.cell, r.record.spec.repeat) == asked), None)
    if timed is None:
        return []
    pairs = ((own.loss, timed.loss), (own.grad_norm, timed.grad_norm))
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


# The bubble of a pipeline: how long ranks wait because of the order of passes, and nothing else.
#
# A profiled run records each pass of a micro-batch through a stage, in the order in which its rank
# ran them. These are replayed as if every message took no time: a pass begins as soon as its rank
# has ended the one before and what it needs is there, a forward pass the one of the stage before, a
# backward pass the one of the stage after. Where ranks then wait, schedule and unequal stages alone
# are the reason. What the run waited besides, in its phase of communication, are messages,
# reductions, and ranks that were late. It needs no common clock of the ranks.

Pass = Sequence[Any]
"""Kind, stage, micro-batch, seconds of computation."""


def step_bubbles(record: RunRecord, layout: Layout, *, equal: bool = False) -> list[float]:
    """The bubble of each timed step, the mean over the pipelines of the layout.

    On emulated nodes, which share cores, each pass counts with the median of all that its rank ran
    of its kind and stage, in steps on different cores: the work is the same, and a replay waits for
    the longest, so that passes which other work or a slower core delayed would make a bubble that
    no pipeline on equal cores of its own has. Stages that have more to do stay longer. Elsewhere a
    pass counts with what it took.

    `equal` gives every pass the mean of its kind over all stages and micro-batches: what is left is
    the schedule's alone, the rest is that of stages of unequal length.

    Empty where the layout has no pipeline of several ranks, or the record is older.
    """
    if dict(layout.axes).get(PIPELINE, 1) < 2:
        return []
    # Of each step and rank.
    lines: Mapping[tuple[int, int], Sequence[Pass]] = {
        (one.step, one.rank): one.passes for one in record.steps if one.timed and one.passes
    }
    if record.spec.world.network == "emulated":
        lines = levelled(lines, lambda line, one: (line[1], *one[:2]), statistics.median)
    ranks = range(layout.num_processes)
    pipelines = sorted({tuple(layout.along(PIPELINE, rank)) for rank in ranks})
    bubbles = []
    for step in sorted({step for step, _ in lines}):
        # A step of which a rank recorded no passes is no whole pipeline.
        if all((step, rank) in lines for rank in ranks):
            each: list[Mapping[int, Sequence[Pass]]] = [
                {rank: lines[step, rank] for rank in pipeline} for pipeline in pipelines
            ]
            if equal:
                each = [levelled(one, lambda _, own: own[0], statistics.fmean) for one in each]
            bubbles.append(statistics.fmean(map(bubble, each)))
    return bubbles


def bubble(lines: Mapping[int, Sequence[Pass]]) -> float:
    """Idle time of a pipeline's ranks / time of their passes; RecordError on a deadlock."""
    # All ranks are there until the last one ends, and what they do not compute they wait.
    busy = sum(seconds for own in lines.values() for *_, seconds in own)
    return len(lines) * makespan(lines) / busy - 1 if busy else 0.0


def levelled(
    lines: Mapping[Any, Sequence[Pass]],
    alike: Callable[[Any, Pass], Any],
    average: Callable[[list[float]], float],
) -> dict[Any, list[Pass]]:
    """The same passes, each of the average length of those for which `alike(line, pass)` agrees."""
    seconds: dict[Any, list[float]] = {}
    for line, passes in lines.items():
        for one in passes:
            seconds.setdefault(alike(line, one), []).append(one[3])
    length = {group: average(each) for group, each in seconds.items()}
    return {
        line: [(*one[:3], length[alike(line, one)]) for one in passes]
        for line, passes in lines.items()
    }


def makespan(lines: Mapping[int, Sequence[Pass]]) -> float:
    """Seconds from the first pass to the end of the last, where messages take none."""
    return replayed((one[3], before, needed) for one, before, needed in in_turn(lines))
