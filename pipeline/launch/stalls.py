"""Which runs on emulated nodes are marked as stalled: TCP timed out, or a step stands out.

Nothing is left out for it: the line in the record lets a reader look at the run first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from pipeline.emulation import tcp
from pipeline.records import Step

LEAST_SECONDS, TIMES_THE_MEDIAN = 1.0, 20.0
"""A step stands out where it is longer than both, in time of the emulated cluster."""


def stalled(steps: Sequence[Step], ranks: Sequence[Mapping[str, Any]]) -> str | None:
    """One line on which step and node stalled; None where none did, or nothing was counted.

    `ranks` are those of a record, with `tcp` where the nodes are emulated.
    """
    counted: dict[int, Mapping[str, int]] = {}
    for rank in ranks:  # of a node's ranks the one with the most time-outs
        if "tcp" in rank:
            other = counted.get(rank["node"], rank["tcp"])
            counted[rank["node"]] = max(other, rank["tcp"], key=_time_outs)
    if not counted:
        return None
    late = {node: found for node, found in counted.items() if _time_outs(found) > 0}
    slow = _slow_step(steps)
    if not late and slow is None:
        return None
    said = [f"node {node} had {_listed(found)}" for node, found in sorted(late.items())]
    return "; ".join([*([slow] if slow else []), *(said or ["no node had a TCP time-out"])])


def _time_outs(counters: Mapping[str, int]) -> int:
    """Time-outs of the rank's own connections where the kernel counts these, else of its node."""
    return counters.get(tcp.OPEN_TIMEOUTS, counters.get(tcp.NODE_TIMEOUTS, 0))


def _slow_step(steps: Sequence[Step]) -> str | None:
    """The longest timed step that stands out; a step is over when its last rank is."""
    seconds: dict[int, float] = {}
    for step in steps:
        if step.timed:
            seconds[step.step] = max(step.seconds, seconds.get(step.step, 0.0))
    if not seconds:
        return None
    usual = median(seconds.values())
    longest = max(seconds, key=lambda number: seconds[number])
    least = max(LEAST_SECONDS, TIMES_THE_MEDIAN * usual)
    count = sum(value > least for value in seconds.values())
    if not count:
        return None
    others = "" if count == 1 else f" (and {count - 1} other{'' if count == 2 else 's'})"
    return f"step {longest}{others} took {seconds[longest]:.3g} s where the median is {usual:.3g} s"


def _listed(counters: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counters.items() if count)
