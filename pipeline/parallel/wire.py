"""Bytes that a collective puts on the wire, by the algorithm that runs it: arithmetic, no torch.

Gloo, torch's and Horovod's, reduces and gathers around a ring (Patarasuk and Yuan 2009). NCCL may
choose a tree; its bytes are counted as those of a ring too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pipeline.cost.traffic import SEND, ring
from pipeline.parallel.mesh import Layout

SHARES = {
    "all_reduce": 2.0,
    "reduce_scatter": 1.0,
    "all_gather": 1.0,
    "all_to_all": 1.0,
    "broadcast": 1.0,
    "reduce": 1.0,
    "gather": 1.0,
    "scatter": 1.0,
}
"""Times (n-1)/n and the payload: what each of n ranks sends, for those with a root in the mean.

The payload is the whole tensor: what is reduced, or what has been gathered. A ring all-reduce is a
reduce-scatter and an all-gather; a broadcast is n-1 messages, whatever its tree.
"""

RECEIVE = "receive"


@dataclass(frozen=True)
class Call:
    """One collective, or one message: `payload_bytes` among `ranks`, which are numbers.

    `leaves_node`: the receiver, or the rank that follows in the ring, is on another node. `pieces`
    of an exchange that tells them go to the other ranks: bytes, and whether to another node.
    """

    kind: str
    axis: str
    ranks: int
    payload_bytes: int
    leaves_node: bool = False
    pieces: tuple[tuple[int, bool], ...] | None = None

    @property
    def wire_bytes(self) -> float | None:
        """Bytes that this rank sends; None for a kind whose algorithm is not known here."""
        if self.pieces is not None:
            return float(sum(size for size, _ in self.pieces))
        if self.kind in (SEND, RECEIVE):
            return float(self.payload_bytes if self.kind == SEND else 0)
        share = SHARES.get(self.kind)
        return None if share is None else ring(self.payload_bytes * share, self.ranks)

    @property
    def between_nodes_bytes(self) -> float | None:
        """Those of `wire_bytes` that go to another node."""
        if self.pieces is not None:
            return float(sum(size for size, leaves in self.pieces if leaves))
        return self.wire_bytes if self.leaves_node else 0.0


def axis_of(layout: Layout, ranks: Iterable[int]) -> str:
    """The axis along which these ranks differ; several are joined by `x`."""
    places = [layout.coordinate(rank) for rank in ranks]
    return " x ".join(name for name, _ in layout.axes if len({p[name] for p in places}) > 1)


def tallied(calls: Iterable[Call]) -> list[dict[str, Any]]:
    """Calls of one kind, axis and number of ranks added up, in the order of their first.

    Each is `kind`, `axis`, `ranks`, `count`, `payload_bytes`, `wire_bytes` and of these
    `between_nodes_bytes`, JSON types.
    """
    alike: dict[tuple[str, str, int], list[Call]] = {}
    for call in calls:
        alike.setdefault((call.kind, call.axis, call.ranks), []).append(call)
    tally = []
    for (kind, axis, ranks), same in alike.items():
        # Of an algorithm that is not known there is no sum, rather than one that is too small.
        sent = [one.wire_bytes or 0.0 for one in same]
        known = all(one.wire_bytes is not None for one in same)
        between = sum(one.between_nodes_bytes or 0.0 for one in same)
        tally.append(
            {
                "kind": kind,
                "axis": axis,
                "ranks": ranks,
                "count": len(same),
                "payload_bytes": sum(call.payload_bytes for call in same),
                "wire_bytes": round(sum(sent)) if known else None,
                "between_nodes_bytes": round(between) if known else None,
            }
        )
    return tally
