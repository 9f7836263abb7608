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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.cost.schedule import in_turn, replayed
from pipeline.parallel.mesh import PIPELINE, Layout
from pipeline.records import RunRecord

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


def undisturbed(steps: Iterable[Mapping[int, Sequence[Pass]]]) -> list[dict[int, list[Pass]]]:
    """The passes of several steps, each of the median length of its rank, kind and stage."""
    steps = list(steps)
    seconds: dict[tuple[int, str, int], list[float]] = {}
    for lines in steps:
        for rank, own in lines.items():
            for kind, stage, _, length in own:
                seconds.setdefault((rank, kind, stage), []).append(length)
    median = {which: statistics.median(each) for which, each in seconds.items()}
    return [
        {r: [(kind, s, m, median[r, kind, s]) for kind, s, m, _ in own] for r, own in lines.items()}
        for lines in steps
    ]


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
    found: dict[int, dict[int, Sequence[Pass]]] = {}
    for step in record.steps:
        if step.timed and step.passes:
            found.setdefault(step.step, {})[step.rank] = step.passes
    ranks = range(layout.num_processes)
    # A step of which a rank recorded no passes is no whole pipeline.
    steps: Sequence[Mapping[int, Sequence[Pass]]]
    steps = [own for _, own in sorted(found.items()) if set(own) == set(ranks)]
    if record.spec.world.network == "emulated":
        steps = undisturbed(steps)
    pipelines = sorted({tuple(layout.along(PIPELINE, rank)) for rank in ranks})
    bubbles = []
    for own in steps:
        lines = [{r: own[r] for r in line} for line in pipelines]
        each = [bubble(equalised(line) if equal else line) for line in lines]
        bubbles.append(sum(each) / len(each))
    return bubbles
