"""Chakra execution traces of profiled runs and of predicted steps: one file for each rank.

Simulators such as ASTRA-sim replay them. A file is a `GlobalMetadata` and the `Node`s of one step,
messages of protobuf, each behind its length; numbers of fields and types are those of
schema/protobuf/et_def.proto (mlcommons/chakra 6dc63e1). So few are needed that they are written
here, without protobuf.

A record has the order of a step's passes and the bytes of a step, not where in a pass a collective
begins. So a rank's collectives stand behind its passes; their seconds are what was exposed, waits
included, shared out by bytes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.cost.predict import Prediction
from pipeline.cost.schedule import order
from pipeline.cost.traffic import ALL_REDUCE, HALVES, RECEIVE, SEND
from pipeline.errors import RecordError
from pipeline.files import atomic_path, write_text
from pipeline.parallel.mesh import PIPELINE, Degrees, Layout
from pipeline.planner.memory import predict_sent
from pipeline.records import RunRecord
from pipeline.resolved import ResolvedRun, resolve
from pipeline.study.profiling import BACKWARD, COMMUNICATION, FORWARD, OPTIMISER, REST, WEIGHTS

COMPUTE, SENDS, RECEIVES, COLLECTIVE = 4, 5, 6, 7  # NodeType
COLLECTIVES = {"all_reduce": 0, "reduce": 1, "all_gather": 2, "gather": 3, "scatter": 4,
               "broadcast": 5, "all_to_all": 6, "reduce_scatter": 7}  # fmt: skip
"""CollectiveCommType of the kinds of `pipeline.parallel.counted`."""
KINDS = {HALVES: ("reduce_scatter", "all_gather"), ALL_REDUCE: (ALL_REDUCE,)}
"""Collectives of a predicted kind; the others are messages."""
VALUES = {"is_cpu_op": 27, "comm_src": 7, "comm_dst": 7, "comm_tag": 7, "comm_type": 9,
          "comm_size": 9, "wire_bytes": 9, "pg_name": 29, "source": 29, "origin": 29}  # fmt: skip
"""Attributes with the field of their value: bool 27, int32 7, int64 9, string 29.

As Chakra's feeder reads them; `wire_bytes`, `source` and `origin` are ours.
"""
Place = tuple[Any, ...]
START, END = ("start",), ("end",)
"""Places of messages: a pass (kind, stage, micro-batch), or before all passes, or behind them."""


@dataclass(frozen=True)
class RankStep:
    """Work of a rank in a step: passes, then communication, then the rest; seconds.

    A pass is (kind, stage, micro-batch, seconds); without a pipeline there is one forward and one
    backward pass of stage 0. `calls` are as a record has them in `sent`.
    """

    passes: Sequence[Sequence[Any]]
    communication: float
    after: Mapping[str, float]
    calls: Sequence[Mapping[str, Any]]


@dataclass
class Node:
    """One node; each waits for the one before it on its rank."""

    kind: int
    name: str
    seconds: float
    attributes: Mapping[str, bool | int | str]


def of_record(record: RunRecord) -> tuple[Layout, list[RankStep]]:
    """The last step of a profiled run, or its last round where one step of several sends.

    Raises RecordError for another run, and for one that did not count what it sent.
    """
    spec, ranks = record.spec, record.run["ranks"]
    if not (spec.profile and ranks and all("sent" in rank for rank in ranks)):
        raise RecordError(
            f"{spec.run_id} ({record.status}) has not counted what its ranks sent; give a profiled "
            "run that is ok, as results/smoke/runs/dps/n2/p0"
        )
    steps = []
    for rank in ranks:
        timed = [one for one in record.steps if one.rank == rank["rank"] and one.timed]
        own = timed[-rank["sent"].get("period", 1) :]
        spent = {name: sum((one.phases or {})[name] for one in own)
                 for name in (FORWARD, BACKWARD, COMMUNICATION, OPTIMISER)}  # fmt: skip
        passes = own[-1].passes or [(kind, 0, 0, spent[kind]) for kind in (FORWARD, BACKWARD)]
        known = sum(one[3] for one in passes) + spent[COMMUNICATION] + spent[OPTIMISER]
        rest = max(0.0, sum(one.seconds for one in own) - known)
        after = {OPTIMISER: spent[OPTIMISER], REST: rest}
        steps.append(RankStep(passes, spent[COMMUNICATION], after, rank["sent"]["collectives"]))
    return resolve(spec).layout, steps


def of_prediction(run: ResolvedRun, prediction: Prediction) -> tuple[Layout, list[RankStep]]:
    """A predicted step: what the strategy says that it sends, and the same parts on every rank.

    A forward pass is a third of the computation, and passes have their schedule's order; the
    bubble is what follows from that, so it is no node.
    """
    spec, layout = run.spec, run.layout
    size = layout.size(PIPELINE)
    pieces = run.strategy.pieces(spec, layout) if size > 1 else 1
    degrees = run.strategy.degrees(spec, layout) or Degrees()
    schedule, chunks = degrees.schedule or "1f1b", degrees.chunks
    each = prediction.computation / (pieces * chunks) / 3
    lengths = {FORWARD: each, BACKWARD: 2 * each}
    if schedule == "zero_bubble":
        lengths |= {BACKWARD: each, WEIGHTS: each}
    after = {OPTIMISER: prediction.optimiser, "host": prediction.host}
    steps = []
    for rank in range(layout.num_processes):
        place = layout.coordinate(rank).get(PIPELINE, 0)
        own = order(schedule, size, chunks, pieces, place)
        passes = [(*one, lengths[one[0]]) for one in own]
        calls = []
        for one in predict_sent(run, rank):
            ranks, kinds = len(layout.along(one.axis, rank)), KINDS.get(one.kind, (SEND,))
            # Around a ring a payload is sent (n-1)/n times, and twice that by an all-reduce.
            times = ranks / (ranks - 1) / 2 if one.kind in KINDS else 1.0
            alike = {"axis": one.axis, "ranks": ranks, "count": max(1, round(one.messages)),
                     "payload_bytes": round(times * one.bytes)}  # fmt: skip
            for number, kind in enumerate(kinds):
                wire_bytes = _share(round(one.bytes), len(kinds), number)
                calls.append({"kind": kind, **alike, "wire_bytes": wire_bytes})
        steps.append(RankStep(passes, prediction.communication, after, calls))
    return layout, steps


def trace(
    layout: Layout, steps: Sequence[RankStep]
) -> tuple[list[list[Node]], dict[tuple[int, ...], str]]:
    """The nodes of each rank, and the `pg_name` of each group of ranks that is not all of them.

    Raises RecordError where sends have no known receiver, or calls no known group.
    """
    placed = defaultdict[tuple[int, int, Place], list[Node]](list)
    for tag, (source, target, axis, size, left, arrived) in enumerate(_messages(layout, steps)):
        about = {"comm_src": source, "comm_dst": target, "comm_tag": tag, "comm_size": size}
        send = Node(SENDS, f"send {axis}", 0.0, {**about, "wire_bytes": size})
        receive = Node(RECEIVES, f"receive {axis}", 0.0, {**about, "wire_bytes": 0})
        placed[SENDS, source, left].append(send)
        placed[RECEIVES, target, arrived].append(receive)
    nodes: list[list[Node]] = []
    groups: dict[tuple[int, ...], str] = {}
    for rank, step in enumerate(steps):
        own = placed[SENDS, rank, START] + placed[RECEIVES, rank, START]
        for kind, stage, piece, seconds in step.passes:
            own += placed[RECEIVES, rank, (kind, stage, piece)]
            own.append(Node(COMPUTE, f"{kind} stage {stage} micro-batch {piece}", seconds, {}))
            own += placed[SENDS, rank, (kind, stage, piece)]
        for call in step.calls:
            if call["kind"] not in (SEND, RECEIVE):
                own += _collectives(layout, steps, rank, call, groups)
        own += placed[SENDS, rank, END] + placed[RECEIVES, rank, END]
        sizes = {place: int(node.attributes["comm_size"]) for place, node in enumerate(own)
                 if node.kind != COMPUTE}  # fmt: skip
        total = sum(sizes.values())
        for place, size in sizes.items():
            own[place].seconds = step.communication * size / max(1, total)
        # Where nothing is sent, waiting is other work.
        after = step.after if total else {**step.after, COMMUNICATION: step.communication}
        nodes.append([*own, *(Node(COMPUTE, name, each, {}) for name, each in after.items())])
    return nodes, groups


def _messages(
    layout: Layout, steps: Sequence[RankStep]
) -> Iterator[tuple[int, int, str, int, Place, Place]]:
    """Sender, receiver, axis, bytes, place on the sender and on the receiver of each message.

    A tally of calls names no receiver. Between stages the passes tell; along another axis the first
    rank sends to each of the others and they to it, or each sends to the next around a ring.
    """
    for rank, step in enumerate(steps):
        for call in step.calls:
            axis, count = call["axis"], call["count"]
            if call["kind"] != SEND:
                continue
            line = layout.along(axis, rank)
            counts = [c["count"] for r in line for c in steps[r].calls
                      if (c["kind"], c["axis"]) == (SEND, axis)]  # fmt: skip
            # Two ranks may be either; a ring's scattered sums are gathered by collectives.
            kinds = {c["kind"] for c in step.calls if c["axis"] == axis}
            only_messages = kinds <= {SEND, RECEIVE}
            targets: list[tuple[int, Place, Place]] = []
            if axis == PIPELINE:
                holder = {one[1]: r for r in line for one in steps[r].passes}
                for kind, stage, piece, _ in step.passes:
                    to = stage + {FORWARD: 1, BACKWARD: -1}.get(kind, 0)
                    if holder.get(to, rank) != rank:
                        targets.append((holder[to], (kind, stage, piece), (kind, to, piece)))
            elif only_messages and counts == [len(line) - 1] + [1] * (len(line) - 1):
                targets = [(line[0], END, END)]
                if rank == line[0]:
                    targets = [(other, START, START) for other in line[1:]]
            elif counts == [count] * len(line):
                targets = [(line[(line.index(rank) + 1) % len(line)], END, END)] * count
            if len(targets) != count:
                raise RecordError(
                    f"rank {rank} sent {count} messages along axis {axis}, and the receivers of "
                    f"{len(targets)} are known; this strategy cannot be traced"
                )
            for number, (target, left, arrived) in enumerate(targets):
                size = _share(call["payload_bytes"], count, number)
                yield rank, target, axis, size, left, arrived


def _collectives(
    layout: Layout, steps: Sequence[RankStep], rank: int, call: Mapping[str, Any],
    groups: dict[tuple[int, ...], str],
) -> Iterator[Node]:  # fmt: skip
    """A node for each call of a tally, with its share of the bytes."""
    kind, axis, count = call["kind"], call["axis"], call["count"]
    alike = ("kind", "axis", "ranks", "count")
    members = [
        r for r in layout.along(axis, rank)
        if any(all(own[name] == call[name] for name in alike) for own in steps[r].calls)
    ]  # fmt: skip
    if kind not in COLLECTIVES or len(members) != call["ranks"]:
        raise RecordError(
            f"rank {rank}: {kind} among {call['ranks']} ranks along {axis} cannot be traced; known "
            f"are {', '.join(COLLECTIVES)}, of ranks that count equally many (here {members})"
        )
    about: dict[str, int | str] = {"comm_type": COLLECTIVES[kind]}
    if len(members) < len(steps):
        about["pg_name"] = groups.setdefault(tuple(members), str(len(groups) + 1))
    for number in range(count):
        size, sent = (_share(call[f"{of}_bytes"], count, number) for of in ("payload", "wire"))
        sizes = {"comm_size": size, "wire_bytes": sent}
        yield Node(COLLECTIVE, f"{kind} {axis}", 0.0, {**about, **sizes})


def _share(total: int, parts: int, number: int) -> int:
    """One of so many parts in whole bytes, which add up."""
    return total * (number + 1) // parts - total * number // parts


def write(out: Path, layout: Layout, steps: Sequence[RankStep], source: str, origin: str) -> int:
    """Write `trace.<rank>.et` of each rank below `out`; returns the number of nodes.

    `comm_group.json` names the ranks of each group, as ASTRA-sim reads them. `origin`: measured or
    predicted.
    """
    nodes, groups = trace(layout, steps)
    for rank, own in enumerate(nodes):
        about = _attribute(2, "source", source) + _attribute(2, "origin", origin)
        content, ended = bytearray(_delimited(_field(1, "0.0.4") + about)), 0.0
        for number, node in enumerate(own):
            # Whole microseconds, of which all add up to the step.
            start, ended = round(1e6 * ended), ended + node.seconds
            message = _field(1, number) + _field(2, node.name) + _field(3, node.kind)
            message += _field(5, _varint(number - 1)) if number else b""
            message += _field(6, start) + _field(7, round(1e6 * ended) - start)
            for name, value in {"is_cpu_op": False, **node.attributes}.items():
                message += _attribute(10, name, value)
            content += _delimited(message)
        with atomic_path(out / f"trace.{rank}.et") as temporary:
            temporary.write_bytes(content)
    ranks_of = {name: ranks for ranks, name in groups.items()}
    write_text(out / "comm_group.json", json.dumps(ranks_of) + "\n")
    return sum(map(len, nodes))


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the eighth bit says that more follow."""
    low, more = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(more) if more else bytes([low])


def _delimited(content: bytes) -> bytes:
    """Bytes behind their length."""
    return _varint(len(content)) + content


def _field(number: int, value: int | str | bytes) -> bytes:
    """A field of a message: its number with the wire type (0 varint, 2 bytes), and its value."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _delimited(content)


def _attribute(field: int, name: str, value: bool | int | str) -> bytes:
    """An AttributeProto."""
    return _field(field, _field(1, name) + _field(VALUES[name], value))
