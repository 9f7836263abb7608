"""The bubble of a pipeline: how long ranks wait because of the order of passes, and nothing else.

A profiled run records each pass of a micro-batch through a stage: kind, stage, micro-batch, seconds
of computation, in the order in which its rank ran them. These are replayed as if every message took
no time: a pass begins as soon as its rank has ended the one before and what it needs is there, a
forward pass the one of the stage before, a backward pass the one of the stage after. Where ranks
then wait, schedule and unequal stages alone are the reason. What the run waited besides, in its
phase of communication, are messages, reductions, and ranks that were late.

A second replay gives every pass the mean of its kind over all stages and micro-batches: what is
left is the schedule's alone, the rest is that of passes of unequal length.

It needs no common clock of the ranks. It cannot tell a stage that has more to do from one that was
slowed by other work on its cores: a pass counts with what it took.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.cost.schedule import in_turn, replayed
from pipeline.parallel.mesh import PIPELINE, Layout
from pipeline.records import RunRecord, Step

Pass = Sequence[Any]
"""Kind, stage, micro-batch, seconds."""


def bubble(lines: Mapping[int, Sequence[Pass]]) -> float:
    """Idle time of the ranks of one pipeline / time of their passes; ranks by any number.

    Raises RecordError where the passes wait for one another for ever.
    """
    # All ranks are there until the last one ends, and what they do not compute they wait.
    busy = sum(seconds for own in lines.values() for *_, seconds in own)
    return len(lines) * makespan(lines) / busy - 1 if busy else 0.0


def equalised(lines: Mapping[int, Sequence[Pass]]) -> dict[int, list[Pass]]:
    """The same passes, each of the mean length of its kind."""
    seconds: dict[str, list[float]] = {}
    for own in lines.values():
        for kind, *_, length in own:
            seconds.setdefault(kind, []).append(length)
    mean = {kind: sum(each) / len(each) for kind, each in seconds.items()}
    return {
        rank: [(kind, stage, microbatch, mean[kind]) for kind, stage, microbatch, _ in own]
        for rank, own in lines.items()
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
    steps: dict[int, dict[int, Step]] = {}
    for step in record.steps:
        if step.timed and step.passes:
            steps.setdefault(step.step, {})[step.rank] = step
    ranks = range(layout.num_processes)
    pipelines = sorted({tuple(layout.along(PIPELINE, rank)) for rank in ranks})
    bubbles = []
    for _, own in sorted(steps.items()):
        # A step of which a rank recorded no passes is no whole pipeline.
        if set(own) == set(ranks):
            lines = [{r: own[r].passes or () for r in line} for line in pipelines]
            each = [bubble(equalised(line) if equal else line) for line in lines]
            bubbles.append(sum(each) / len(each))
    return bubbles
