"""Effect of a claim by the cost model, at the publication's own scale: beside a verdict, never one.

A cell of a claims file names the published configurations that it stands for (`points`, ids of
`pipeline/reference/points`). Each is predicted as by `predict --points`, but without the constants
that were derived from its own set, which would predict what they were made from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product

from pipeline.claims.quantities import RATE, facts
from pipeline.claims.types import Claim, Selector
from pipeline.cost.constants import Constants, content, device_of
from pipeline.cost.job import CONFIGURATION, Refused, jobs_of
from pipeline.cost.points import family_of, kind_of, predict_row
from pipeline.cost.score import points, source_of
from pipeline.metrics.format import with_interval
from pipeline.text import NONE, listed

Row = Mapping[str, str]
_METRICS = ("step_seconds", RATE, "device_teraflops", "model_flops_utilisation", "efficiency")


@dataclass(frozen=True)
class Predicted:
    """An effect with its 90 % band; without a `value` the line is the reason for having none."""

    line: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = "1"
    points: list[str] = field(default_factory=list)

    @property
    def shown(self) -> str:
        """`137 [120, 150] TFLOP/s a device`, or a dash."""
        if self.value is None or self.low is None or self.high is None:
            return NONE
        effect = with_interval(self.value, self.low, self.high)
        return effect if self.unit == "1" else f"{effect} {self.unit}"


@cache
def configurations() -> Mapping[str, Row]:
    """The shipped points by their ids."""
    return {row["id"]: row for row in points()}


def predicted(claim: Claim) -> Predicted:
    """The effect that a claim is about, or why the cost model has none.

    FLOPs are those of the model, as the metrics count them; nothing that was measured is read.
    """
    default = RATE if claim.kind in ("best", "worst") else claim.kind
    metric = str(claim.test.get("metric", default))
    try:
        if claim.kind == "ratio_of_ratios" or metric not in _METRICS:
            what = claim.kind if metric in _METRICS else metric.partition(":")[0]
            raise Refused(f"the cost model has nothing with a band on {what.replace('_', ' ')}")
        if claim.made_at.device != "cuda":
            raise Refused(f"the cost model knows no {claim.made_at.device.upper()}")
        if claim.kind == "absolute":
            cell, (_, ranks) = claim.test["a"], claim.made_at.world or (0, 0)
            used = [row for row in _rows(cell) if int(row["gpus"]) == ranks]
            if len(used) != 1:
                count = f"{len(used)} configurations of {cell.name}"
                raise Refused(f"the publication has {count} there")
            work, answer = _work(used[0], metric), _answer(used[0])
            seconds = [float(answer[f"step_s_{end}"]) for end in ("pred", "low", "high")]
            value, *ends = [work / one for one in seconds] if work else seconds
            low, high, unit = min(ends), max(ends), facts(metric).unit
        else:
            pairs = list(_pairs(claim))
            # Where it has nothing to say of one pair, it says nothing of all of them.
            ratios = [_ratio(one, other, metric) for one, other in pairs]
            # As the test itself: a trend holds all along, the best is above each of the others.
            least = claim.kind == "best" or claim.test.get("comparison") == "above"
            of = min if least and claim.kind != "efficiency" else max
            value, low, high = (of(ends) for ends in zip(*ratios, strict=True))
            used, unit = [row for pair in pairs for row in pair], "1"
    except Refused as reason:
        return Predicted(f"not predicted: {reason}")
    ids = list(dict.fromkeys(row["id"] for row in used))
    prediction = Predicted("", value, low, high, unit, ids)
    counts = sorted({int(row["gpus"]) for row in used})
    devices = " to ".join(f"{n:,}" for n in dict.fromkeys((counts[0], counts[-1])))
    where = f"on {devices} {used[0]['hardware']}"
    claimed = f", claimed {claim.region}" if claim.region else ""
    # Constants that were left out, and what the publication does not print.
    with_all = Constants()
    for row in used:
        predict_row(row, with_all)
    own = sorted(with_all.used & {source_of(row) for row in used})
    notes = [f"without the constants derived from its own points, {listed(own)}"] if own else []
    notes += dict.fromkeys(row["note"].partition(";")[0] for row in used if row["note"])
    more = f" ({'; '.join(notes)})" if notes else ""
    return replace(prediction, line=f"predicted {prediction.shown} {where}{claimed}{more}")


def _rows(cell: Selector) -> list[Row]:
    if not cell.points:
        raise Refused(f"no published step says the whole configuration of {cell.name}")
    return [configurations()[name] for name in cell.points]


def _pairs(claim: Claim) -> Iterator[tuple[Row, Row]]:
    """Configurations of which the first is over the second."""
    test = claim.test
    if claim.kind in ("trend", "efficiency"):
        for cell in [test["a"]] if claim.kind == "trend" else test["cells"]:
            line = sorted(_rows(cell), key=lambda row: int(row["gpus"]))
            if len(line) < 2:
                raise Refused(f"the publication has {cell.name} on one number of devices alone")
            before = line[:-1] if claim.kind == "trend" else line[:1] * (len(line) - 1)
            yield from zip(line[1:], before, strict=True)
        return
    for other in [test["b"]] if claim.kind == "ratio" else test["others"]:
        work = ("hardware", "gpus", "model", "seq", "global_batch")
        alike = (
            (one, two)
            for one, two in product(_rows(test["a"]), _rows(other))
            if all(one[name] == two[name] for name in work)
        )
        if (pair := next(alike, None)) is None:
            raise Refused(f"no published {test['a'].name} and {other.name} did equal work")
        names = [name for name in CONFIGURATION if name not in ("framework", "note")]
        if all(pair[0][name] == pair[1][name] for name in names):
            raise Refused(f"the cost model does not tell {test['a'].name} from {other.name}")
        yield pair


def _answer(row: Row) -> Row:
    answer = predict_row(row, Constants(source_of(row)))
    if answer["reason"]:
        raise Refused(answer["reason"])
    return answer


def _work(row: Row, metric: str) -> float:
    """Work that a metric divides by seconds; 0 where it is the seconds themselves."""
    if metric == "step_seconds":
        return 0.0
    if metric in (RATE, "efficiency"):
        devices = float(row["gpus"]) if metric == "efficiency" else 1.0
        return float(row["global_batch"]) * float(row["seq"]) / devices
    job = jobs_of(row)[0]
    tokens = float(row["global_batch"]) * float(row["seq"]) / float(row["gpus"])
    flops = tokens * job.flops_per_token
    peak = device_of(job, Constants(source_of(row))).peak
    return flops / (1e12 if metric == "device_teraflops" else peak)


def _ratio(one: Row, other: Row, metric: str) -> tuple[float, float, float]:
    """Metric of one over that of the other, with the band of such ratios."""
    if not all(row[name] for row in (one, other) for name in ("dp", "tp", "pp", "micro")):
        raise Refused("the layout or the micro-batch is not published, which is a range")
    steps = float(_answer(one)["step_s_pred"]) / float(_answer(other)["step_s_pred"])
    work = [_work(row, metric) for row in (one, other)]
    value = work[0] / work[1] / steps if work[1] else steps
    # The wider band where either crosses nodes: `crossing` sorts first.
    kinds = {kind_of(jobs_of(row)[0], Constants()).split()[1] for row in (one, other)}
    what = "scaled" if family_of(one) == family_of(other) else "pair"
    low, high = content()["band"][f"{what} {min(kinds)}"]
    return value, value * low, value * high
