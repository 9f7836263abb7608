"""Errors of the model on published points, set by set: numbers for `pipeline.tables.points`.

A set is predicted without any constant that was derived from it; beside that stand a constant
utilisation, the best for this very set and known only afterwards, the nearest neighbour among the
other sets, and the model with all of its constants, which is no test where some came from the set.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations
from pathlib import Path
from statistics import mean, median
from typing import Any, TypeVar

from pipeline.cost.constants import Constants, content, device_of
from pipeline.cost.job import Job, jobs_of
from pipeline.cost.points import families, fastest, kind_of, predict_from_base, predict_row, read
from pipeline.documents import read_text
from pipeline.errors import PredictionError

FOLDER = Path(__file__).parents[1] / "reference" / "points"
TAU_MARGIN = 1.10
"""Pairs whose steps are nearer than this are not ordered."""

WAYS = ("constant", "neighbour", "model", "own")
"""Ways to predict a step: the last two are the model without the set's constants, and with them."""

T = TypeVar("T")


@dataclass(frozen=True)
class Point:
    """A row of a set, and its prediction without that set (`out`) and with all constants (`own`).

    Those that ran and can be predicted are `scored`; the properties are of these.
    """

    source: str
    row: Mapping[str, str]
    answers: Mapping[str, Mapping[str, str]]

    @property
    def measured(self) -> float:
        """Measured seconds of a step."""
        return float(self.row["step_s"])

    @cached_property
    def job(self) -> Job:
        """The configuration; of several layouts the first."""
        return jobs_of(self.row)[0]

    @cached_property
    def kinds(self) -> Mapping[str, str]:
        """Names of both bands; of several layouts that of the one which was answered."""
        ways = {"out": Constants(self.source), "own": Constants()}
        return {which: kind_of(fastest(self.row, of)[0], of) for which, of in ways.items()}

    @cached_property
    def at_peak(self) -> float:
        """Seconds of its model FLOPs at the peak of its devices."""
        job = self.job
        tokens = job.tokens * job.dp * (1.0 if job.per_micro else job.accum)
        return tokens * job.flops_per_token / (device_of(job, Constants()).peak * job.gpus)

    @cached_property
    def features(self) -> tuple[float, ...]:
        """Logarithms of its sizes, of which alike configurations have near ones."""
        job = self.job
        sizes = (job.hidden, job.layers, job.tokens, job.gpus, job.tp, job.pp, 2**job.zero)
        return tuple(map(math.log2, sizes))

    def steps(self, which: str) -> tuple[float, float, float]:
        """Predicted seconds: the low end of the band, the step, the high end."""
        low, step, high = (float(self.answers[which][f"step_s_{end}"])
                           for end in ("low", "pred", "high"))  # fmt: skip
        return low, step, high

    def off(self, which: str) -> float:
        """Predicted / measured - 1; of a range its nearer end, and 0 inside of it."""
        first, last = content()["band"][self.kinds[which]]
        low, _, high = self.steps(which)
        low, high = low / first / self.measured - 1, high / last / self.measured - 1
        return 0.0 if low < 0 < high and high - low > 1e-4 else min(low, high, key=abs)


def grouped(rows: Iterable[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    """The rows of each value of `key`, in the order of these."""
    groups = defaultdict[str, list[T]](list)
    for row in rows:
        groups[key(row)].append(row)
    return dict(sorted(groups.items()))


def source_of(row: Mapping[str, str]) -> str:
    """The set of a row: its id without the number."""
    return row["id"].rpartition("-")[0]


def device(row: Mapping[str, str]) -> str:
    """The kind of GPU of a row, as `V100`."""
    kind = re.match(r"[A-Z]+\d+", row["hardware"])
    return kind[0] if kind else row["hardware"]


def points() -> list[dict[str, str]]:
    """Every row of the shipped points, measured or crashed, without hardware tables."""
    files = sorted(FOLDER.glob("*.csv"))
    return [row for file in files if not file.name.startswith(("hw_", "operators_"))
            for row in read(file)]  # fmt: skip


def errors_of(hardware: str) -> str:
    """Where the errors of a GPU's predictions are, or that none of its steps was published."""
    kind = device({"hardware": hardware.upper()})
    if any(device(row) == kind for row in points()):
        return "errors by published points: docs/planner.md"
    return f"held against no step of this device ({kind})"


@cache
def predicted() -> tuple[Point, ...]:
    """Each row that is not suspect."""
    rows = [(source_of(row), row) for row in points() if not row["suspect"]]
    without = {source: Constants(source) for source, _ in rows}
    return tuple(
        Point(source, row, {"out": predict_row(row, without[source]),
                            "own": predict_row(row, Constants())})
        for source, row in rows
    )  # fmt: skip


@cache
def scored() -> tuple[Point, ...]:
    """Every row that ran, has a measured step and can be predicted."""
    return tuple(
        one for one in predicted()
        if one.row["status"] == "ok" and one.row["step_s"] and not one.answers["out"]["reason"]
    )  # fmt: skip


def by_source() -> dict[str, list[Point]]:
    """The scored rows of each set."""
    return grouped(scored(), lambda one: one.source)


@cache
def every() -> tuple[dict[str, Any], ...]:
    """Each scored point: its measured seconds, and predicted / measured - 1 by each way.

    `low` and `high` are the ends of its band over the measured step, without the set's constants;
    `band` is `out` where these do not hold it.
    """
    rows = []
    for source, own in by_source().items():
        # The utilisation of that point of the set which suits all of them best.
        by_constant = min(
            ([one.at_peak / like.at_peak * like.measured / one.measured - 1 for one in own]
             for like in own),
            key=lambda off: mean(map(abs, off)),
        )  # fmt: skip
        others = [one for one in scored() if one.source != source]
        for one, constant in zip(own, by_constant, strict=True):
            near = min(others, key=lambda other: math.dist(other.features, one.features))
            neighbour = one.at_peak / near.at_peak * near.measured / one.measured - 1
            low, _, high = (seconds / one.measured for seconds in one.steps("out"))
            rows.append({
                "point": one.row["id"], "points": source, "device": device(one.row),
                "measured": one.measured, "constant": constant, "neighbour": neighbour,
                "model": one.off("out"), "own": one.off("own"),
                "low": low, "high": high, "band": "" if low <= 1 <= high else "out",
            })  # fmt: skip
    return tuple(rows)


def suspect() -> list[dict[str, Any]]:
    """Each suspect point, which no score counts: why, and where all constants would put it."""
    rows = []
    for row in points():
        step = predict_row(row, Constants())["step_s_pred"] if row["suspect"] else ""
        if row["status"] == "ok" and step:
            measured = float(row["step_s"])
            rows.append({
                "point": row["id"], "why": row["suspect"], "device": device(row),
                "measured": measured, "own": float(step) / measured - 1,
            })  # fmt: skip
    return rows


def sets() -> list[dict[str, Any]]:
    """A row for each set: its GPUs, its points by what they have, and where they are from."""
    lines = read_text(FOLDER / "README.md", "", PredictionError).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "csv |" in line]
    sources = {name.removesuffix(".csv"): source for name, _, _, _, source, *_ in cells}
    table = []
    for name, rows in grouped(points(), source_of).items():
        worlds = sorted({int(row["gpus"]) for row in rows})
        timed = [row for row in rows if row["status"] == "ok"]
        table.append({
            "points": name,
            "hardware": ", ".join(sorted({device(row) for row in rows})),
            "gpus": " to ".join(map(str, dict.fromkeys((worlds[0], worlds[-1])))),
            "measured": len(timed),
            "suspect": sum(bool(row["suspect"]) for row in timed),
            "untimed": len(rows) - len(timed),
            # Of a set in published.csv the table or figure of its publication.
            "source": sources.get(name, rows[0]["place"].partition(",")[0]),
        })  # fmt: skip
    return table


def errors_by(key: str) -> list[dict[str, Any]]:
    """A row for each set (`points`) or `device`: sizes of errors by each way, and the band.

    `<way>` is the mean, `<way>_median` the median, `in_band` the share of points in their band.
    """
    table = []
    for name, rows in grouped(every(), lambda row: str(row[key])).items():
        sizes = {way: [abs(row[way]) for row in rows] for way in WAYS}
        means = {way: mean(values) for way, values in sizes.items()}
        medians = {f"{way}_median": median(values) for way, values in sizes.items()}
        inside = mean(not row["band"] for row in rows)
        table.append({key: name, "n": len(rows), **means, **medians, "in_band": inside})
    return table


def in_band(which: str) -> float:
    """Share of points whose measured step lies in the band."""
    bands = ((one.measured, one.steps(which)) for one in scored())
    return mean(low <= measured <= high for measured, (low, _, high) in bands)


def half_width(which: str) -> float:
    """Half the width of the band over the prediction, the median of all points."""
    bands = (one.steps(which) for one in scored())
    return median((high - low) / step / 2 for low, step, high in bands)


def spread(errors: Iterable[float]) -> tuple[float, float]:
    """Median size of errors, and that within which nine tenths lie."""
    sizes = sorted(map(abs, errors))
    return median(sizes), sizes[math.ceil(0.9 * len(sizes)) - 1]


def memory_errors(which: str) -> dict[str, list[float]]:
    """Signed errors of memory by set, without the constants derived from it (`out`) or with all."""
    known = (p for p in predicted() if p.row["mem_gib"] and p.answers[which]["mem_gib_pred"])
    return {
        source: [float(p.answers[which]["mem_gib_pred"]) / float(p.row["mem_gib"]) - 1 for p in own]
        for source, own in grouped(known, lambda one: one.source).items()
    }


def memory_by_set() -> list[dict[str, Any]]:
    """A row for each set with memory: median error, and within which nine tenths of them lie."""
    own, table = memory_errors("own"), []
    for source, signed in memory_errors("out").items():
        numbers = (*spread(signed), *spread(own[source]))
        names = ("median", "nine_tenths", "own_median", "own_nine_tenths")
        table.append({"points": source, "n": len(signed), **dict(zip(names, numbers, strict=True))})
    return table


def fit_shares(which: str) -> tuple[float, float]:
    """Share of what ran that is predicted to fit, and of what crashed that is not."""
    fits = {
        ran: [one.answers[which]["fits"] == "true" for one in predicted()
              if one.row["status"] != "memory only" and (one.row["status"] == "ok") == ran]
        for ran in (True, False)
    }  # fmt: skip
    return mean(fits[True]), 1 - mean(fits[False])


def order(which: str) -> tuple[float, float]:
    """Kendall's tau over pairs of a model and world of nanotron that differ by over 10 %.

    Also the share of worlds in which the layout ranked first is within 10 % of the best.
    """
    nanotron = by_source()["nanotron_h100"]
    worlds = grouped(nanotron, lambda one: f"{one.row['model']} {one.row['gpus']}").values()
    right = wrong = first = 0
    for points in worlds:
        steps = [(one.measured, one.steps(which)[1]) for one in points]
        for (a, x), (b, y) in combinations(steps, 2):
            if max(a, b) > TAU_MARGIN * min(a, b):
                right += (a - b) * (x - y) > 0
                wrong += (a - b) * (x - y) < 0
        chosen = min(steps, key=lambda step: step[1])[0]
        first += chosen <= TAU_MARGIN * min(measured for measured, _ in steps)
    return (right - wrong) / (right + wrong), first / len(worlds)


@cache
def grown() -> dict[str, list[tuple[float, float, float]]]:
    """Of larger worlds by set: measured seconds, those predicted from the base, and its own.

    Without the constants of the set. The last are the base's for as many sequences of a device.
    """
    growth = defaultdict[str, list[tuple[float, float, float]]](list)
    ran = grouped((one for one in predicted() if one.row["status"] == "ok"), lambda one: one.source)
    for source, points in ran.items():
        rows = [one.row for one in points]
        answers = predict_from_base(rows, Constants(source))
        for places in families(rows):
            base = rows[places[0]]
            for row, answer in ((rows[place], answers[place]) for place in places):
                if float(row["gpus"]) <= float(base["gpus"]) or not answer["step_s_pred"]:
                    continue
                work, of_base = (
                    float(each["global_batch"] or each["gpus"]) / float(each["gpus"])
                    for each in (row, base)
                )
                linear = float(base["step_s"]) * work / of_base
                seconds = float(row["step_s"]), float(answer["step_s_pred"]), linear
                growth[source].append(seconds)
    return growth


def growth_by_set() -> list[dict[str, Any]]:
    """A row for each set with several worlds: errors of the larger ones, from the smallest."""
    table = []
    for source, larger in grown().items():
        model, linear = ([abs(each[n] / each[0] - 1) for each in larger] for n in (1, 2))
        table.append({
            "points": source, "n": len(larger), "linear": mean(linear),
            "linear_median": median(linear), "model": mean(model), "model_median": median(model),
        })  # fmt: skip
    return table
