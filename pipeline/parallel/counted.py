"""Counts what this rank sends in the steps of a profiled run.

Collectives are read from torch's flight recorder, which every process group of Gloo and NCCL writes
as it runs, whoever called it: Python, DDP's reducer or FSDP2. It names the algorithm that ran:
Gloo's reduce-scatter stands there as an all-reduce. It has no messages of Gloo between two ranks,
nor pieces of an all-to-all, of which `collectives` tells; of what torch does not see (Horovod) the
strategy tells by `sent`. Nothing of the training is changed or waited for.

Gloo, torch's and Horovod's, reduces and gathers around a ring (Patarasuk and Yuan 2009). NCCL may
choose a tree; its bytes are counted as those of a ring too.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.cost.traffic import ALL_TO_ALL, RECEIVE, SEND, ring
from pipeline.emulation import tcp
from pipeline.errors import StrategyError
from pipeline.parallel.mesh import Layout
from pipeline.text import plural

ENTRIES_VARIABLE, ENTRIES = "TORCH_FR_BUFFER_SIZE", 20_000
"""Number of collectives that the flight recorder keeps; torch's default is 2,000."""

ITEM_BYTES = {
    "Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2,
    "Byte": 1, "Char": 1, "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1,
}  # fmt: skip
"""By the flight recorder's names of types."""

BETWEEN_STEPS = 256
"""Most bytes of a rank's collectives between two steps: a few numbers, such as a mean loss."""

KINDS = (
    "reduce_scatter", "all_reduce", "all_gather", "all_to_all", "broadcast", "scatter", "reduce",
    "gather",
)  # fmt: skip
"""Collectives whose algorithm is known here, none before one that has its name within its own."""


class Call(NamedTuple):
    """One collective, or one message, among so many ranks, and what this rank sends by it.

    `between_nodes_bytes` go to another node. Both are None where the algorithm is not known here.
    """

    kind: str
    axis: str
    ranks: int
    payload_bytes: int
    wire_bytes: float | None
    between_nodes_bytes: float | None


@dataclass
class _Step:
    start_ns: int
    stop_ns: int = 0
    noted: list[Call] = field(default_factory=list)
    communication: list[tuple[int, int]] = field(default_factory=list)


class Counted:
    """Made before the process group is; `start` begins, `step` surrounds each, `summary` ends.

    Between steps a rank may send a few numbers, which are left out, and nothing else. `period` is
    that of the strategy: so many steps are a round, of which one may send all.
    """

    def __init__(self, layout: Layout, rank: int, period: int = 1) -> None:
        os.environ.setdefault(ENTRIES_VARIABLE, str(ENTRIES))
        self.layout, self.rank, self.period = layout, rank, period
        self._steps: list[_Step] = []
        self._between: list[Call] = []
        self._interface: int | None = None

    def start(self) -> None:
        """Forget the steps so far."""
        self._steps.clear()
        self._between.clear()
        self._interface = tcp.sent_bytes()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Count what is sent within this context as one step's."""
        step = _Step(time.time_ns())
        self._steps.append(step)
        yield
        step.stop_ns = time.time_ns()

    def sent(self, kind: str, payloads: Callable[[], Iterable[int]]) -> None:
        """Collectives among all ranks that torch does not see, with the bytes of each."""
        everyone = range(self.layout.num_processes)
        if len(everyone) > 1 and self._steps:
            self._note(*(self._call(kind, everyone, size) for size in payloads()))

    def message(self, way: str, group: dist.ProcessGroup, tensors: list[Tensor], peer: int) -> None:
        """Tensors go to (`way` is `send`) or come from a peer of the group, whose axis counts."""
        axis = self.layout.axis_of(dist.get_process_group_ranks(group))
        pair = (self.rank, dist.get_global_rank(group, peer))
        size = sum(tensor.nbytes for tensor in tensors)
        kind, sent = (SEND, size) if way == "send" else (RECEIVE, 0)
        leaving = sent * self.layout.leaves_node(self.rank, pair)
        self._note(Call(kind, axis, len(pair), size, sent, leaving))

    def exchange(self, group: dist.ProcessGroup, tensor: Tensor, pieces: Sequence[int]) -> None:
        """An all-to-all that gives each rank of the group so many rows; as many, where none say."""
        ranks = dist.get_process_group_ranks(group)
        if len(ranks) < 2:
            return
        rows = [*pieces] or [len(tensor) // len(ranks)] * len(ranks)
        row_bytes, sent, leaving = tensor.nbytes // max(1, len(tensor)), 0, 0
        for peer, count in zip(ranks, rows, strict=True):
            if peer != self.rank:
                sent += row_bytes * count
                pair = (self.rank, peer)
                leaving += row_bytes * count * self.layout.leaves_node(self.rank, pair)
        axis = self.layout.axis_of(ranks)
        self._note(Call(ALL_TO_ALL, axis, len(ranks), tensor.nbytes, sent, leaving))

    def _note(self, *calls: Call) -> None:
        """Keep what the recorder leaves out: the step's under way, or between it and the next."""
        last = self._steps[-1]
        (self._between if last.stop_ns else last.noted).extend(calls)

    def communication(self, start_ns: int, stop_ns: int) -> None:
        """A stretch of the step under way in which collectives are known to start."""
        self._steps[-1].communication.append((start_ns, stop_ns))

    def summary(self) -> dict[str, Any] | None:
        """Tally of the last round, and the number of steps in rounds that sent something else.

        JSON types; None where the recorder is off or no round was whole. Collective nowhere, but
        the groups must still be there. Raises StrategyError where a collective of that round was no
        phase of its own: its time would count as computation, and an emulated node would send
        before that is paid for; and where more than a few numbers were sent between steps.
        """
        if os.environ[ENTRIES_VARIABLE] == "0":
            return None
        trace: list[dict[str, Any]] = []
        if dist.is_initialized():
            # With a backend for each device, those of the CPU carry single numbers: left out.
            gloo = dist.get_backend() == "gloo"
            dump = "_dump_fr_trace_json" if gloo else "_dump_nccl_trace_json"
            content = json.loads(getattr(torch._C._distributed_c10d, dump)(True, False))
            trace = sorted(content.get("entries", []), key=lambda entry: entry["record_id"])
        # What the recorder no longer keeps began before its first entry.
        first = trace[0]["time_created_ns"] if trace and trace[0]["record_id"] else 0
        steps = [one for one in self._steps if one.start_ns >= first]
        # From the end on, so that the last round is whole.
        size = self.period
        rounds = [steps[end - size : end] for end in range(len(steps), size - 1, -size)]
        if not rounds:
            return None
        entries = list(self._calls(trace))
        if unseen := {
            call.kind
            for last in rounds[0]
            for at, call in entries
            if last.start_ns <= at <= last.stop_ns
            and not any(start <= at <= stop for start, stop in last.communication)
        }:
            raise StrategyError(
                f"{' and '.join(sorted(unseen))} of a step started outside of Python, where nobody "
                "sees that it is communication; call torch.distributed's function instead, or give "
                "the shared step the DistributedDataParallel itself as `forward`"
            )

        between = self._between + [
            call
            for at, call in entries
            # Exchanges were noted already.
            if call.kind != ALL_TO_ALL
            and at > steps[0].start_ns
            and not any(s.start_ns <= at <= s.stop_ns for s in steps)
        ]
        if (beside := sum(call.payload_bytes for call in between)) > BETWEEN_STEPS * len(steps):
            raise StrategyError(
                f"{' and '.join(sorted({call.kind for call in between}))} of {beside:,} bytes "
                f"outside of {plural(len(steps), 'step')}, neither timed nor counted; there a rank "
                f"may send {BETWEEN_STEPS} bytes, as its loss in `report`: send the rest in `step`"
            )

        def recorded(step: _Step) -> list[Call]:
            # Exchanges were noted already, with their pieces.
            again = {ALL_TO_ALL} & {call.kind for call in step.noted}
            inside = [call for at, call in entries if step.start_ns <= at <= step.stop_ns]
            return [call for call in inside if call.kind not in again]

        tallies = [
            tallied(call for s in steps for call in (*recorded(s), *s.noted)) for steps in rounds
        ]
        # Whatever the order in which a round's collectives began, which may differ.
        kinds = [sorted(tuple(one.values()) for one in tally) for tally in tallies]
        differing = size * sum(one != kinds[0] for one in kinds)
        counted = size * len(rounds)
        summary = {"steps": counted, "differing_steps": differing, "collectives": tallies[0]}
        if size > 1:
            summary["period"] = size
        # The cable's counter is of all steps together, so each of them must have been counted.
        if self._interface is not None and counted == len(self._steps):
            summary["interface_bytes"] = (tcp.sent_bytes() or 0) - self._interface
        return summary

    def _calls(self, trace: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, Call]]:
        """The collectives among several ranks that carry something, and when each began."""
        groups = {
            name: dist.get_process_group_ranks(group)
            for group, name in dist.distributed_c10d._world.pg_names.items()
        }
        for entry in trace:
            kind = kind_of(entry["profiling_name"])
            ranks = groups.get(entry["process_group"][0], ())
            if not entry["is_p2p"] and kind != "barrier" and len(ranks) > 1:
                call = self._call(kind, ranks, payload_bytes(kind, entry))
                yield entry["time_created_ns"], call

    def _call(self, kind: str, ranks: Sequence[int], payload: int) -> Call:
        """A collective among these ranks, of which this rank is one."""
        sent = wire_bytes(kind, payload, len(ranks))
        leaving = sent and sent * self.layout.leaves_node(self.rank, ranks)
        return Call(kind, self.layout.axis_of(ranks), len(ranks), payload, sent, leaving)


def wire_bytes(kind: str, payload: int, ranks: int) -> float | None:
    """Bytes that each of n ranks sends in a collective, for those with a root in the mean.

    The payload is the whole tensor: what is reduced, or what has been gathered. A ring all-reduce
    is a reduce-scatter and an all-gather; a broadcast is n-1 messages, whatever its tree. None for
    an algorithm that is not known here.
    """
    times = 2 if kind == "all_reduce" else 1
    return ring(times * payload, ranks) if kind in KINDS else None


def tallied(calls: Iterable[Call]) -> list[dict[str, Any]]:
    """Calls of one kind, axis and number of ranks added up, in the order of their first.

    Each is JSON types by the names of `Call`, with their `count`.
    """
    alike: dict[tuple[str, str, int], list[Call]] = {}
    for call in calls:
        alike.setdefault((call.kind, call.axis, call.ranks), []).append(call)
    return [
        {
            "kind": kind,
            "axis": axis,
            "ranks": ranks,
            "count": len(same),
            "payload_bytes": sum(call.payload_bytes for call in same),
            "wire_bytes": _sum([call.wire_bytes for call in same]),
            "between_nodes_bytes": _sum([call.between_nodes_bytes for call in same]),
        }
        for (kind, axis, ranks), same in alike.items()
    ]


def _sum(sizes: Sequence[float | None]) -> int | None:
    # Of an algorithm that is not known there is no sum, rather than one that is too small.
    known = [size for size in sizes if size is not None]
    return round(sum(known)) if len(known) == len(sizes) else None


def kind_of(profiling_name: str) -> str:
    """`all_reduce` of `gloo:all_reduce` or `nccl:all_reduce_coalesced`; else the name as it is."""
    name = profiling_name.partition(":")[2].replace("allreduce", "all_reduce")
    return next((kind for kind in KINDS if kind in name), name)


def payload_bytes(kind: str, entry: Mapping[str, Any]) -> int:
    """Bytes of the whole tensor of one entry of the flight recorder."""
    side = "output" if kind == "all_gather" else "input"
    sizes, dtypes = entry[f"{side}_sizes"], entry[f"{side}_dtypes"]
    return sum(
        math.prod(size) * ITEM_BYTES[dtype] for size, dtype in zip(sizes, dtypes, strict=True)
    )
