"""Steps of a study on the machine that `calibrate` has measured: sums of operators and messages.

An operator that was not timed takes the time of the most alike one of its kind, by work; between
and beyond sizes of a collective its time is a line, and never under that of either size.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import models, schemas
from pipeline.cost.constants import Constants, content
from pipeline.cost.predict import Prediction
from pipeline.cost.schedule import ONE_STAGE, exposed, pipelined
from pipeline.cost.score import spread
from pipeline.cost.sharding import Prices
from pipeline.cost.traffic import ALL_REDUCE, ANSWERED, GATHER, HALVES, SEND, Traffic
from pipeline.emulation.pacing import SMALL_SECONDS
from pipeline.errors import StudyError
from pipeline.machine.facts import hardware
from pipeline.parallel.mesh import DATA, PIPELINE, TENSOR, Degrees
from pipeline.planner.memory import MEBIBYTE, kept_widths, peak, predict_sent
from pipeline.planner.operators import BY_WAY, PRODUCT_FORMATS, Counted, Operator, work_of
from pipeline.precision.widths import widths
from pipeline.resolved import ResolvedRun, runs_of
from pipeline.study.spec import WorldSpec
from pipeline.study.study import Study
from pipeline.text import align

SHIFT = "shift"
BAND = "unknown inner"
"""Band of the published points for an implementation without constants of its own."""


@dataclass(frozen=True)
class Calibration:
    """A file of `calibrate`, as look-ups."""

    operators: Mapping[Operator, float]
    collectives: Mapping[tuple[str | None, int, str], Sequence[tuple[int, float]]]
    memory_rate: float
    waits: Mapping[tuple[int, int], Sequence[tuple[float, float]]] = field(default_factory=dict)
    """By the nodes for whose number time is dilated, and nodes: seconds of computing, and what they
    take more after a collective. None where a yardstick counts: then they are those of an
    undisturbed machine.
    """

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Calibration:
        """That of the figures of `pipeline.launch.calibrate`."""
        times = defaultdict[tuple[str | None, int, str], list[tuple[int, float]]](list)
        for one in content["collectives"]:
            times[one["link"], one["ranks"], one["kind"]].append((one["bytes"], one["seconds"]))
        waits = defaultdict[tuple[int, int], list[tuple[float, float]]](list)
        for one in content["waits"]:
            waits[one["dilated_for"], one["nodes"]].append((one["seconds"], one["more"]))
        return cls(
            {Operator(one["kind"], one["dtype"], tuple(one["sizes"])): one["seconds"]
             for one in content["operators"]},
            {key: sorted(each) for key, each in times.items()},
            content["memory_bytes_per_second"],
            waits,
        )  # fmt: skip

    @classmethod
    def read(cls, path: Path, study: Study) -> Calibration:
        """That of a file which this machine has made for the links and threads of a study.

        Raises RecordError for another file, StudyError for one of another machine or other links.
        """
        content = schemas.read(path, "calibration", "python -m pipeline calibrate")
        # A link's name says nothing: another study may call other cables so.
        links = {link.name: link.to_dict() for link in study.cluster.links}
        machine, measured_on = hardware(), content["hardware"]
        threads = max(run.threads_on(machine["num_cores"]) for run in runs_of(study))
        measured_and_now = {
            "links": ({link: content["links"].get(link) for link in links}, links),
            "cores_per_node": (content["cores_per_node"], study.cluster.cores_per_node),
            "threads": (content["threads"], threads),
            **{key: (measured_on.get(key), machine[key]) for key in ("cpu_model", "num_cores")},
        }
        for name, (measured, now) in measured_and_now.items():
            if measured != now:
                raise StudyError(
                    f"{path} was measured with {name} {measured}, study {study.name} has {now} "
                    "here; run `python -m pipeline calibrate` for this study on this machine"
                )
        return cls.of(content)

    def seconds(self, operator: Operator) -> float:
        """Both passes of an operator."""
        if (known := self.operators.get(operator)) is not None:
            return known
        alike = [o for o in self.operators if (o.kind, o.dtype) == (operator.kind, operator.dtype)]
        if operator.kind in BY_WAY:
            alike = [one for one in alike if one.sizes[-1] == operator.sizes[-1]]
        if not alike:
            raise StudyError(
                f"the calibration has no {operator.kind} in {operator.dtype}; run "
                "`python -m pipeline calibrate` for this study"
            )
        near = min(alike, key=lambda one: abs(math.log(one.work / operator.work)))
        return self.operators[near] * operator.work / near.work

    def total(self, counted: Counted) -> float:
        """Seconds of all operators."""
        return sum(count * self.seconds(operator) for operator, count in counted.items())

    def collective(self, link: str | None, ranks: int, kind: str, size: float) -> float:
        """Seconds of a collective of `size` bytes, by the nearest number of ranks."""
        known = [key for key in self.collectives if (key[0], key[2]) == (link, kind)]
        if not known:
            raise StudyError(
                f"the calibration has no {kind} over link {link}; run `python -m pipeline "
                "calibrate` for this study, with what its strategies need installed"
            )
        points = self.collectives[min(known, key=lambda key: abs(key[1] - ranks))]
        for (a, x), (b, y) in pairwise(points):
            if size <= b or b == points[-1][0]:
                return max(min(x, y), x + (y - x) * (size - a) / (b - a))
        return points[-1][1]

    def resumed(self, world: WorldSpec, seconds: float) -> float:
        """Seconds by which so much computing takes longer after a collective cost it the caches.

        By the nearest number of nodes. Beyond the longest stretch it stays, below the shortest it
        is the same share.
        """
        dilated_for = world.dilated_for or world.nodes
        known = [key for key in self.waits if key[0] == dilated_for]
        if not known:
            return 0.0
        points = sorted(self.waits[min(known, key=lambda key: abs(key[1] - world.nodes))])
        lengths, more = zip((0.0, 0.0), *points, strict=True)
        return float(np.interp(seconds, lengths, more))


def predict(run: ResolvedRun, calibration: Calibration) -> Prediction:
    """Seconds of a step by part; memory is that of `plan`. Raises StudyError with a reason."""
    spec, strategy = run.spec, run.strategy
    if strategy.sends_unstated:
        raise StudyError(f"{spec.run_id}: {strategy.sends_unstated}")
    if run.link and run.layout.processes_per_node > 1:
        raise StudyError(
            f"{spec.run_id}: {run.layout.processes_per_node} ranks share a node, and a calibration "
            "has collectives over the links alone; set ranks_per_node to 1"
        )
    work, traffic = work_of(run), _traffic(run)
    # The first stage has no gradients of inputs, and does not split.
    split = max(0.0, calibration.total(work.halves))
    halves = [split * (stage > 0) for stage in range(len(work.stages))]
    stages = [
        seconds + _resumed(seconds + more, traffic, run, work.pieces, calibration)
        for seconds, more in zip(map(calibration.total, work.stages), halves, strict=True)
    ]
    slowest = max(stages)
    gradients = widths(spec.precision).gradient * models.num_parameters(spec.model)
    held = strategy.footprint(spec, run.layout, 0, gradients).held_share
    numbers = held * models.num_parameters(spec.model)
    # Gradients of each micro-batch but the first are added up: two reads and a write in fp32.
    added = 12.0 * numbers * (work.pieces - 1) / calibration.memory_rate
    exchanged = defaultdict[str, float](float)
    for one in traffic:
        exchanged[one.axis] += _seconds(one, run, calibration, 2 / 3 * slowest)
    # A forward pass is a third of both.
    forward = [stage / 3 for stage in stages]
    backward = [2 * each + more for each, more in zip(forward, halves, strict=True)]
    if spec.workload.recompute:
        share = spec.recomputed_share
        for place, stage in enumerate(work.stages):
            again = {o: n for o, n in stage.items() if share or o.kind == "attention"}
            backward[place] += (share or 1.0) * calibration.total(Counter(again)) / 3
    computing = work.pieces * max(f + b for f, b in zip(forward, backward, strict=True))
    bubble = 0.0
    if (degrees := strategy.degrees(spec, run.layout)) and degrees.pipeline > 1:
        # It fills and drains through all that a rank does for a micro-batch, messages too. Chunks
        # of a rank share its passes. With one stage a rank waits for each message; with several,
        # or a split backward pass, torch sends and receives while passes run, but for what each
        # message takes the node's only core: as long as an empty one lasts.
        messages = sum(one.messages for one in traffic if one.axis == PIPELINE)
        blocking = messaging = exchanged[PIPELINE]
        if degrees.schedule not in ONE_STAGE:
            empty = calibration.collective(run.link_name, degrees.pipeline, SHIFT, 0.0)
            blocking = 0.0 if _spare(run) else min(messaging, messages * empty)
        sent = exchanged[TENSOR] + blocking
        ahead, back = (
            [(each + sent / work.pieces / 2) / degrees.chunks for each in own] * degrees.chunks
            for own in (forward, backward)
        )
        whole = partial(pipelined, degrees.schedule, degrees.pipeline, ahead, back, work.pieces)
        free = whole()
        bubble = max(0.0, free - computing - sent)
        exchanged[PIPELINE] = blocking + whole(message=(messaging - blocking) / messages) - free
    update = calibration.total(work.update)
    return Prediction(
        computation=computing + added,
        communication=sum(exchanged.values())
        + max(0.0, calibration.total(work.reduction))
        + _after_passes(run, calibration),
        bubble=bubble,
        optimiser=update + calibration.resumed(spec.world, update),
        memory=peak(run),
    )


def _tied(run: ResolvedRun) -> float:
    """Bytes of a tied embedding's gradient, which the ends of a pipeline add up."""
    layout, degrees = run.layout, run.strategy.degrees(run.spec, run.layout)
    holders = layout.size(TENSOR) * (layout.size(DATA) if degrees and degrees.zero else 1)
    shared = models.family(run.spec.model).ends(run.spec.model).shared
    return widths(run.spec.precision).reduced * shared / holders


def _traffic(run: ResolvedRun) -> list[Traffic]:
    """Traffic of a rank in its passes, of a pipeline one in its middle: it has two neighbours."""
    stages = run.layout.size(PIPELINE)
    if stages < 3:
        # Both of two are ends, whose messages have the tied embedding in their size.
        tied = _tied(run) if stages == 2 else 0.0
        return [
            replace(one, bytes=one.bytes - tied) if one.axis == PIPELINE else one
            for one in predict_sent(run)
        ]
    return list(predict_sent(run, run.layout.along(PIPELINE, 0)[stages // 2]))


def _after_passes(run: ResolvedRun, calibration: Calibration) -> float:
    """Seconds of the norm, a number on each axis that cuts gradients, and of a tied embedding."""
    degrees = run.strategy.degrees(run.spec, run.layout)
    if degrees is None:
        return 0.0
    link = run.link_name
    cutting = [PIPELINE, TENSOR] + [DATA] * (degrees.zero > 0)
    sizes = [size for size in map(run.layout.size, cutting) if size > 1]
    seconds = sum(calibration.collective(link, ranks, ALL_REDUCE, 0.0) for ranks in sizes)
    if run.layout.size(PIPELINE) > 1 and (tied := _tied(run)):
        seconds += calibration.collective(link, 2, ALL_REDUCE, tied)
    return seconds


def _resumed(
    seconds: float,
    traffic: Iterable[Traffic],
    run: ResolvedRun,
    pieces: int,
    calibration: Calibration,
) -> float:
    """Seconds by which the passes of a micro-batch take longer for the waits within.

    A node on emulated time waits between passes, around each collective, and while gradients are
    sent during the backward pass wherever more than SMALL_SECONDS are to be paid for.
    """
    degrees = run.strategy.degrees(run.spec, run.layout) or Degrees()
    stretches = (3.0 if degrees.schedule == "zero_bubble" else 2.0) * degrees.chunks
    for one in traffic:
        if one.overlap and one.kind == ALL_REDUCE:
            stretches += 2 / 3 * seconds / (2 * SMALL_SECONDS) / pieces
        elif one.axis != PIPELINE:
            stretches += one.messages * (2 if one.kind == HALVES else 1) / pieces
    return stretches * calibration.resumed(run.spec.world, seconds / stretches)


def prices(run: ResolvedRun, ranks: int, whole: Prediction, calibration: Calibration) -> Prices:
    """Prices of cutting operators over `ranks` of a run whose ranks have them whole."""
    spec = run.spec
    dtype, element = PRODUCT_FORMATS[spec.precision], kept_widths(spec).product
    moved = partial(calibration.collective, run.link_name, ranks)
    return Prices(
        ranks=ranks,
        product=lambda *sizes: calibration.seconds(Operator("product", dtype, sizes)),
        all_reduce=lambda numbers: moved(ALL_REDUCE, element * numbers),
        gather=lambda numbers: moved(GATHER, element * numbers),
        pieces=run.strategy.pieces(spec, run.layout),
        a_parameter=(whole.communication + whole.optimiser) / models.num_parameters(spec.model),
    )


def _spare(run: ResolvedRun) -> bool:
    """False where a node sends and computes by the same core: nothing is hidden there."""
    return (run.spec.world.cores_per_node or 1) > run.layout.processes_per_node


def _seconds(sends: Traffic, run: ResolvedRun, calibration: Calibration, backward: float) -> float:
    """Seconds of what a rank sends along an axis that computing does not hide."""
    if not sends.messages:
        return 0.0
    ranks = run.layout.size(sends.axis)
    each = partial(calibration.collective, run.link_name, ranks)
    hideable = Constants().profile("")["overlap"] * backward
    if sends.kind in (SEND, ANSWERED):
        # Each rank of a pipeline sends to the next while it receives.
        way = SHIFT if sends.axis == PIPELINE else SEND
        one_way = sends.messages * each(way, sends.bytes / sends.messages)
        # Who is sent to first answers first, while others are still sent to: the last answer alone
        # comes after all that is sent.
        asked = one_way if sends.kind == ANSWERED else 0.0
        last = one_way / sends.messages if asked else one_way
        # Late ones begin with the forward pass, which takes half as long as the backward pass.
        return asked + max(0.0, last - 1.5 * hideable * sends.overlap * _spare(run))
    payload = sends.bytes * ranks / (2 * (ranks - 1))
    size = payload / sends.messages
    if sends.kind == HALVES:
        return sends.messages * (each("reduce_scatter", size) + each(GATHER, size))
    if sends.overlap:
        # Buckets that are on their way together share the latency.
        whole = hidden_at_most = each(run.strategy.all_reduces_by or sends.kind, payload)
        if not _spare(run):
            # Processing the messages takes the node's only core, so only the time on the cable can
            # pass during the backward pass.
            hidden_at_most = min(whole, run.link.seconds(sends.bytes)) if run.link else 0.0
        waited = exposed(hidden_at_most, hideable, sends.messages, sends.last)
        return whole - hidden_at_most + waited
    return sends.messages * each(sends.kind, size)


COLUMNS = (
    "cell", "nodes", "step_s_pred", "step_s_low", "step_s_high", "computation_s_pred",
    "communication_s_pred", "bubble_s_pred", "optimiser_s_pred", "mem_mib_pred",
    "step_s", "error", "reason",
)  # fmt: skip


def predict_study(
    runs: Iterable[ResolvedRun], calibration: Calibration, measured: Mapping[tuple[str, int], float]
) -> list[dict[str, str]]:
    """A row for each run, one of a cell and node count, beside what was measured of these."""
    low, high = content()["band"][BAND]
    rows = []
    for run in runs:
        key = run.spec.cell, run.spec.world.nodes
        row = dict.fromkeys(COLUMNS, "") | {"cell": key[0], "nodes": str(key[1])}
        rows.append(row)
        if key in measured:
            row["step_s"] = f"{measured[key]:.6g}"
        try:
            one = predict(run, calibration)
        except StudyError as refused:
            row["reason"] = str(refused)
            continue
        parts = ("computation", "communication", "bubble", "optimiser")
        values = {"step_s_pred": one.seconds, "step_s_low": low * one.seconds,
                  "step_s_high": high * one.seconds,
                  **{f"{part}_s_pred": getattr(one, part) for part in parts}}  # fmt: skip
        row |= {name: f"{value:.6g}" for name, value in values.items()}
        row["mem_mib_pred"] = f"{one.memory / MEBIBYTE:.0f}"
        if key in measured:
            row["error"] = f"{one.seconds / measured[key] - 1:+.3f}"
    return rows


def shown(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The rows as a table, and the errors where something was measured."""
    table: list[tuple[str, ...]] = [
        ("cell", "nodes", "predicted ms", "band ms", "communication", "MiB", "measured ms", "error")
    ]
    for row in rows:
        step, low, high, measured = (
            f"{1e3 * float(row[name]):.1f}" if row[name] else "-"
            for name in ("step_s_pred", "step_s_low", "step_s_high", "step_s")
        )
        band, share = "-", "-"
        if not row["reason"]:
            band = f"{low} to {high}"
            share = f"{float(row['communication_s_pred']) / float(row['step_s_pred']):.0%}"
        error = f"{float(row['error']):+.0%}" if row["error"] else "-"
        memory = row["mem_mib_pred"] or "-"
        table.append((row["cell"], row["nodes"], step, band, share, memory, measured, error))
    reasons = [f"{row['cell']}: {row['reason']}" for row in rows if row["reason"]]
    return [*align(table), "", *reasons, errors(rows)]


def errors(rows: Sequence[Mapping[str, str]]) -> str:
    """Median, nine in ten, what the band holds, and Kendall's tau of the order."""
    known = [row for row in rows if row["error"]]
    if not known:
        return "Predicted from single operators and collectives; no results of this study are here."
    middle, most, tau = accuracy(known)
    inside = sum(
        float(row["step_s_low"]) <= float(row["step_s"]) <= float(row["step_s_high"])
        for row in known
    )
    order = "-" if math.isnan(tau) else f"{tau:.2f}"
    return (
        f"{len(known)} cells and node counts: median error {middle:.0%}, nine in ten within "
        f"{most:.0%}, {inside} in the band, Kendall's tau {order}."
    )


def accuracy(rows: Sequence[Mapping[str, str]]) -> tuple[float, float, float]:
    """Of measured rows the median error, that within which nine in ten lie, and Kendall's tau.

    The latter is NaN for a single row.
    """
    from scipy.stats import kendalltau

    pairs = [(float(row["step_s"]), float(row["step_s_pred"])) for row in rows]
    tau = float(kendalltau(*zip(*pairs, strict=True)).statistic) if pairs[1:] else math.nan
    return *spread(p / m - 1 for m, p in pairs), tau
