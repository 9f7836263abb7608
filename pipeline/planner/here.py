"""Steps of a study on the machine that `calibrate` has measured: sums of operators and messages.

An operator that was not timed takes the time of the most alike one of its kind, by work; between
and beyond sizes of a collective its time is a line.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from pipeline import models, schemas
from pipeline.cost.constants import content
from pipeline.cost.predict import Prediction
from pipeline.cost.schedule import exposed
from pipeline.cost.sharding import Prices
from pipeline.errors import StudyError
from pipeline.machine.facts import hardware
from pipeline.parallel.mesh import PIPELINE, TENSOR
from pipeline.parallel.wire import ALL_REDUCE, ANSWERED, HALVES, SEND, Sends
from pipeline.planner.memory import MEBIBYTE, formats, predict_sent
from pipeline.planner.memory import predict as predict_memory
from pipeline.planner.operators import (
    PRODUCT_FORMATS,
    Counted,
    Operator,
    most_threads,
    work_of,
)
from pipeline.planner.tables import align
from pipeline.precision.widths import widths
from pipeline.resolved import ResolvedRun, resolve
from pipeline.study.expansion import expand
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study

BAND = "unknown inner"
"""Band of the published points for an implementation without constants of its own."""


@dataclass(frozen=True)
class Calibration:
    """A file of `calibrate`, as look-ups."""

    operators: Mapping[Operator, float]
    collectives: Mapping[tuple[str | None, int, str], Sequence[tuple[int, float]]]
    memory_rate: float

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Calibration:
        """That of the figures of `pipeline.launch.calibrate`."""
        times: dict[tuple[str | None, int, str], list[tuple[int, float]]] = {}
        for one in content["collectives"]:
            key = one["link"], one["ranks"], one["kind"]
            times.setdefault(key, []).append((one["bytes"], one["seconds"]))
        return cls(
            {Operator(one["kind"], one["dtype"], tuple(one["sizes"])): one["seconds"]
             for one in content["operators"]},
            {key: sorted(each) for key, each in times.items()},
            content["memory_bytes_per_second"],
        )  # fmt: skip

    @classmethod
    def read(cls, path: Path, study: Study) -> Calibration:
        """That of a file which this machine has made for the links and threads of a study.

        Raises RecordError for another file, StudyError for one of another machine or other links.
        """
        content = schemas.read(path, "calibration", "python -m pipeline calibrate")
        # A link's name says nothing: another study may call other cables so.
        links = {link.name: link.to_dict() for link in study.cluster.links}
        machine = hardware()
        now = {
            "links": links,
            "cores_per_node": study.cluster.cores_per_node,
            "threads": most_threads(expand(study), machine["num_cores"]),
            **{name: machine[name] for name in ("cpu_model", "num_cores")},
        }
        found = {
            "links": {link: content["links"].get(link) for link in links},
            **{name: content[name] for name in ("cores_per_node", "threads")},
            **{name: content["hardware"].get(name) for name in ("cpu_model", "num_cores")},
        }
        for name, value in found.items():
            if value != now[name]:
                raise StudyError(
                    f"{path} was measured with {name} {value}, study {study.name} has {now[name]} "
                    "here; run `python -m pipeline calibrate` for this study on this machine"
                )
        return cls.of(content)

    def seconds(self, operator: Operator) -> float:
        """Both passes of an operator."""
        if (known := self.operators.get(operator)) is not None:
            return known
        alike = [o for o in self.operators if (o.kind, o.dtype) == (operator.kind, operator.dtype)]
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
                "calibrate` for this study"
            )
        points = self.collectives[min(known, key=lambda key: abs(key[1] - ranks))]
        last = points[-1]
        for (a, x), (b, y) in pairwise(points):
            if size <= b or (b, y) == last:
                return max(min(x, y), x + (y - x) * (size - a) / (b - a))
        return last[1]


def predict(run: ResolvedRun, calibration: Calibration) -> Prediction:
    """Seconds of a step by part; memory is that of `plan`. Raises StudyError with a reason."""
    spec, strategy = run.spec, run.strategy
    if strategy.sends_unstated:
        raise StudyError(f"{spec.run_id}: {strategy.sends_unstated}")
    work = work_of(run)
    stages = [calibration.total(stage) for stage in work.stages]
    slowest = max(stages)
    gradients = widths(spec.precision).gradient * models.num_parameters(spec.model)
    held = strategy.footprint(spec, run.layout, 0, gradients).held_share
    numbers = held * models.num_parameters(spec.model)
    added = 12.0 * numbers * (work.pieces - 1) / calibration.memory_rate
    ranks = {name: size for name, size in run.layout.axes}
    exchanged: defaultdict[str, float] = defaultdict(float)
    for one in predict_sent(run):
        exchanged[one.axis] += _seconds(one, run, ranks[one.axis], calibration, 2 / 3 * slowest)
    # The schedule's own formula is for equal stages: all but the slowest wait for it. A pipeline
    # fills and drains through all that a stage does for a micro-batch, messages too.
    idle = strategy.idle_share(spec) or 0.0
    others = work.pieces * (sum(stages) - slowest) / max(1, len(stages) - 1)
    others += sum(exchanged[axis] for axis in (PIPELINE, TENSOR))
    again, what = 0.0, spec.workload.recompute
    if what:
        repeated = [
            Counter({one: n for one, n in stage.items() if what is True or one.kind == "attention"})
            for stage in work.stages
        ]
        # A forward pass is a third of both.
        again = max(map(calibration.total, repeated)) * work.pieces / 3
    return Prediction(
        computation=work.pieces * slowest + added + again,
        communication=sum(exchanged.values()),
        bubble=idle / (1 - idle) * others,
        host=0.0,
        optimiser=calibration.total(work.update),
        memory=peak(run),
    )


def peak(run: ResolvedRun) -> float:
    """Bytes of the rank that needs most."""
    ranks = range(run.layout.num_processes)
    return float(max(predict_memory(run, rank).peak for rank in ranks))


def prices(run: ResolvedRun, ranks: int, whole: Prediction, calibration: Calibration) -> Prices:
    """Prices of cutting operators over `ranks` of a run whose ranks have them whole."""
    spec, link = run.spec, run.link.name if run.link else None
    dtype, element = PRODUCT_FORMATS[spec.precision], formats(spec).product

    def move(kind: str, numbers: int) -> float:
        return calibration.collective(link, ranks, kind, element * numbers)

    return Prices(
        ranks=ranks,
        product=lambda *sizes: calibration.seconds(Operator("product", dtype, sizes)),
        all_reduce=partial(move, ALL_REDUCE),
        gather=partial(move, "all_gather"),
        pieces=run.strategy.pieces(spec, run.layout),
        a_parameter=(whole.communication + whole.optimiser) / models.num_parameters(spec.model),
    )


def _seconds(
    sends: Sends, run: ResolvedRun, ranks: int, calibration: Calibration, backward: float
) -> float:
    """Seconds of what a rank sends along an axis that computing does not hide."""
    link = run.link.name if run.link else None
    if sends.kind in (SEND, ANSWERED):
        times = 2 if sends.kind == ANSWERED else 1
        if not sends.messages:
            return 0.0
        size = sends.wire_bytes / sends.messages
        return times * sends.messages * calibration.collective(link, ranks, SEND, size)
    payload = sends.wire_bytes * ranks / (2 * (ranks - 1))
    size = payload / sends.messages
    if sends.kind == HALVES:
        kinds = "reduce_scatter", "all_gather"
        return sends.messages * sum(calibration.collective(link, ranks, k, size) for k in kinds)
    if sends.overlap:
        # Buckets that are on their way together share the latency. A node of one core sends and
        # computes by the same core: nothing is hidden there.
        spare = (run.spec.world.cores_per_node or 1) > run.layout.processes_per_node
        whole = calibration.collective(link, ranks, sends.kind, payload)
        overlap = content()["profiles"]["default"]["constants"]["overlap"]["value"]
        return exposed(whole, overlap * backward * spare, sends.messages)
    return sends.messages * calibration.collective(link, ranks, sends.kind, size)


COLUMNS = (
    "cell", "nodes", "step_s_pred", "step_s_low", "step_s_high", "computation_s_pred",
    "communication_s_pred", "bubble_s_pred", "optimiser_s_pred", "mem_mib_pred",
    "step_s", "error", "reason",
)  # fmt: skip


def predict_study(
    runs: Sequence[RunSpec], calibration: Calibration, measured: Mapping[tuple[str, int], float]
) -> list[dict[str, str]]:
    """A row for each cell and node count, beside what was measured of it."""
    low, high = content()["band"][BAND]
    rows: dict[tuple[str, int], dict[str, str]] = {}
    for spec in runs:
        key = spec.cell, spec.world.nodes
        if key in rows:
            continue
        row = dict.fromkeys(COLUMNS, "") | {"cell": key[0], "nodes": str(key[1])}
        if key in measured:
            row["step_s"] = f"{measured[key]:.6g}"
        try:
            one = predict(resolve(spec), calibration)
        except StudyError as refused:
            row["reason"] = str(refused)
        else:
            seconds, parts = one.seconds, ("computation", "communication", "bubble", "optimiser")
            values = {"step_s_pred": seconds, "step_s_low": low * seconds,
                      "step_s_high": high * seconds,
                      **{f"{part}_s_pred": getattr(one, part) for part in parts}}  # fmt: skip
            row |= {name: f"{value:.6g}" for name, value in values.items()}
            row["mem_mib_pred"] = f"{one.memory / MEBIBYTE:.0f}"
            if key in measured:
                row["error"] = f"{seconds / measured[key] - 1:+.3f}"
        rows[key] = row
    return list(rows.values())


def shown(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The rows as a table, and the errors where something was measured."""
    table: list[tuple[str, ...]] = [
        ("cell", "nodes", "predicted ms", "band ms", "communication", "MiB", "measured ms", "error")
    ]
    for row in rows:
        if row["reason"]:
            table.append((row["cell"], row["nodes"], "-", "-", "-", "-", _ms(row["step_s"]), "-"))
            continue
        share = float(row["communication_s_pred"]) / float(row["step_s_pred"])
        table.append(
            (
                row["cell"], row["nodes"], _ms(row["step_s_pred"]),
                f"{_ms(row['step_s_low'])} to {_ms(row['step_s_high'])}", f"{share:.0%}",
                row["mem_mib_pred"], _ms(row["step_s"]),
                f"{float(row['error']):+.0%}" if row["error"] else "-",
            )
        )  # fmt: skip
    lines = align(table)
    lines += ["", *(f"{row['cell']}: {row['reason']}" for row in rows if row["reason"])]
    return [*lines, errors(rows)]


def _ms(seconds: str) -> str:
    return f"{1e3 * float(seconds):.1f}" if seconds else "-"


def errors(rows: Sequence[Mapping[str, str]]) -> str:
    """Median, nine in ten, what the band holds, and Kendall's tau of the order."""
    both = [(float(row["step_s"]), float(row["step_s_pred"])) for row in rows if row["error"]]
    if not both:
        return "Predicted from single operators and collectives; no results of this study are here."
    sizes = sorted(abs(p / m - 1) for m, p in both)
    inside = sum(
        float(row["step_s_low"]) <= float(row["step_s"]) <= float(row["step_s_high"])
        for row in rows if row["error"]
    )  # fmt: skip
    from scipy.stats import kendalltau

    tau = f"{kendalltau(*zip(*both, strict=True)).statistic:.2f}" if both[1:] else "-"
    return (
        f"{len(both)} cells and node counts: median error {median(sizes):.0%}, nine in ten within "
        f"{sizes[math.ceil(0.9 * len(sizes)) - 1]:.0%}, {inside} in the band, Kendall's tau {tau}."
    )
