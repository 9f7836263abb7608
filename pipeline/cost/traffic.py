"""Traffic of a rank in a step: strategies state it, and the cost room prices it.

A strategy's `sends` gives its own; `Network` prices it by links and cards of GPUs, a calibration by
what was timed here. Arithmetic, no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

SEND, RECEIVE, ANSWERED = "send", "receive", "answered"
ALL_REDUCE, HALVES, GATHER = "all_reduce", "halves", "all_gather"
ALL_TO_ALL = "all_to_all"


@dataclass(frozen=True)
class Traffic:
    """Bytes that a rank puts on the wire along one axis of its layout, as collectives round a ring.

    `formula` has the symbols that `pipeline.strategies` explains; `bytes` is its value. They go in
    `messages` of equal size, of a kind: all-reduces; as many reduce-scatters and all-gathers, each
    of which is half of one; gathers or reduce-scatters alone; messages to one rank, or such that
    are answered by one as large; exchanges of each rank with each, of which `bytes` is the mean
    over the ranks if their pieces are equal. `overlap`: sent during the backward pass; of messages
    to one rank, which begin with the forward pass, during both, and where they are answered the
    answers alone. `leaving`: of messages to one rank and of exchanges the bytes to other nodes,
    where the strategy states them. `last`: share of the last of messages that overlap, where they
    are not equal.
    """

    axis: str
    formula: str
    bytes: float
    messages: float = 1.0
    kind: str = ALL_REDUCE
    overlap: bool = False
    leaving: float | None = None
    last: float = 0.0


def one_of_each_axis(*every: Traffic) -> Sequence[Traffic]:
    """The same in one entry for each axis, of the kind of the first."""
    found: dict[str, Traffic] = {}
    for one in every:
        if (first := found.get(one.axis)) is not None:
            one = replace(
                first,
                formula=f"{first.formula} + {one.formula}",
                bytes=first.bytes + one.bytes,
                messages=first.messages + one.messages,
            )
        found[one.axis] = one
    return [*found.values()]


def ring(payload: float, ranks: int) -> float:
    """(n-1)/n of the payload: what a rank sends when a ring of n scatters or gathers it once."""
    return payload * (ranks - 1) / ranks
