"""The bubble of a pipeline: how long ranks wait because of the order of passes, and nothing else.

A profiled run records each pass of a micro-batch through a stage: kind, stage, micro-batch, seconds
of computation, in the order in which its rank ran them. These are replayed as if every message took
no time: a pass begins as soon as its rank has ended the one before and what it needs is there, a
forward pass the one of the stage before, a backward pass the one of the stage after. Where ranks
then wait, schedule and unequal stages alone are the reason. What the run waited besides, in its
phase of communication, are messages, reductions, and ranks that were late.

On emulated nodes, which share cores, each pass counts with the median of all that its rank ran of
its kind and stage: the work is the same, and a replay waits for the longest, so that passes which
other work slowed would make a bubble that no pipeline on cores of its own has. Stages that have
more to do stay longer. Elsewhere a pass counts with what it took.

A second replay gives every pass the mean of its kind over all stages and micro-batches: what is
left is the schedule's alone, the rest is that of stages of unequal length.

It needs no common clock of the ranks.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.cost.schedule import in_turn, replayed
from pipeline.parallel.mesh import PIPELINE, Layout
from pipeline.records import RunRecord

Pass = Sequence[Any]
"""Kind, stage, micro-batch, seconds."""


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


def step_bubbles(record: RunRecord, layout: Layout, *, equal: bool = False) -> list[float]:
    """The bubble of each timed step, the mean over the pipelines of the layout.

    `equal` is the part of the schedule alone. Empty where the layout has no pipeline of several
    ranks, or the record is older.
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
    bubbles, each = list[float](), list[Mapping[int, Sequence[Pass]]]()
    for step in sorted({step for step, _ in lines}):
        # A step of which a rank recorded no passes is no whole pipeline.
        if all((step, rank) in lines for rank in ranks):
            each = [{rank: lines[step, rank] for rank in pipeline} for pipeline in pipelines]
            if equal:
                each = [levelled(one, lambda _, own: own[0], statistics.fmean) for one in each]
            bubbles.append(statistics.fmean(map(bubble, each)))
    return bubbles
