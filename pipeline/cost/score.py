"""Errors of the model on published points, set by set: numbers for `pipeline.tables.points`.

A set is predicted without any constant that was derived from it; beside that stand a constant
utilisation, the best for this very set and known only afterwards, the nearest neighbour among the
other sets, and the model with all of its constants, which is no test where some came from the set.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import mean, median
from typing import Any

from pipeline.cost.constants import Constants, content
from pipeline.cost.devices import device_of
from pipeline.cost.job import Job, jobs_of
from pipeline.cost.points import (
    families,
    fastest,
    kind_of,
    predict_from_base,
    predict_row,
    read,
)
from pipeline.documents import read_text
from pipeline.errors import PredictionError

FOLDER = Path(__file__).parents[1] / "reference" / "points"
HARDWARE_TABLES = ("hw_", "operators_")
TAU_MARGIN = 1.10
"""Pairs whose steps are nearer than this are not ordered."""


@dataclass(frozen=True)
class Scored:
    """A measured row, and what was predicted without its set (`out`) and with all constants.

    `kinds`: names of both bands. `at_peak`: seconds of its model FLOPs at the peak of its devices.
    `features`: logarithms of its sizes, of which alike configurations have near ones.
    """

    source: str
    row: Mapping[str, str]
    out: Mapping[str, str]
    own: Mapping[str, str]
    measured: float
    job: Job
    kinds: Mapping[str, str]
    at_peak: float
    features: tuple[float, ...]

    def error(self, which: str) -> float:
        """|predicted / measured - 1|, to the nearer end of a range where one is predicted."""
        return abs(self.off(which))

    def off(self, which: str) -> float:
        """The same with its sign, 0 inside of a range."""
        answer, band = getattr(self, which), content()["band"][self.kinds[which]]
        low, high = (
            float(answer[f"step_s_{end}"]) / ratio / self.measured - 1
            for end, ratio in zip(("low", "high"), band, strict=True)
        )
        return 0.0 if low < 0 < high and high - low > 1e-4 else min(low, high, key=abs)


def source_of(row: Mapping[str, str]) -> str:
    """The set of a row: its id without the number."""
    return row["id"].rpartition("-")[0]


def points() -> list[dict[str, str]]:
    """Every row of the shipped points, measured or crashed, without hardware tables."""
    files = sorted(FOLDER.glob("*.csv"))
    return [
        row for file in files if not file.name.startswith(HARDWARE_TABLES) for row in read(file)
    ]


@cache
def predicted() -> list[tuple[str, Mapping[str, str], dict[str, Mapping[str, str]]]]:
    """Set, row and predictions of each row that is not suspect; of these as `Scored` has them."""
    rows = [(source_of(row), row) for row in points() if not row["suspect"]]
    without = {source: Constants(source) for source, _ in rows}
    return [
        (source, row, {"out": predict_row(row, without[source]),
                       "own": predict_row(row, Constants())})
        for source, row in rows
    ]  # fmt: skip


@cache
def scored() -> tuple[Scored, ...]:
    """Every row that ran, has a measured step and can be predicted."""
    kept = []
    for source, row, answers in predicted():
        if row["status"] != "ok" or not row["step_s"] or answers["out"]["reason"]:
            continue
        job, *others = jobs_of(row)
        kinds = {}
        for which, constants in (("out", Constants(source)), ("own", Constants())):
            # Of several layouts the band is that of the one which was answered.
            answered = fastest(row, constants)[0] if others else job
            kinds[which] = kind_of(answered, constants)
        tokens = job.tokens * job.dp * (1.0 if job.per_micro else job.accum)
        at_peak = tokens * job.flops_per_token / (device_of(job, Constants()).peak * job.gpus)
        # In their logarithms alike configurations are near.
        sizes = (job.hidden, job.layers, job.tokens, job.gpus, job.tp, job.pp, 2**job.zero)
        features = tuple(map(math.log2, sizes))
        kept.append(Scored(source, row, **answers, measured=float(row["step_s"]), job=job,
                           kinds=kinds, at_peak=at_peak, features=features))  # fmt: skip
    return tuple(kept)


def by_source() -> dict[str, list[Scored]]:
    """The scored rows of each set."""
    sets: dict[str, list[Scored]] = defaultdict(list)
    for row in scored():
        sets[row.source].append(row)
    return dict(sorted(sets.items()))


def by_constant(rows: Sequence[Scored]) -> list[float]:
    """Seconds by the one utilisation that suits the set best."""
    tried = [[row.at_peak / one.at_peak * one.measured for row in rows] for one in rows]
    return min(tried, key=lambda seconds: mean(errors(seconds, rows)))


def by_neighbour(rows: Sequence[Scored]) -> list[float]:
    """Seconds by the utilisation of the most alike row of another set."""
    others = [one for one in scored() if one.source != rows[0].source]
    near = (min(others, key=lambda one: math.dist(one.features, r.features)) for r in rows)
    return [r.at_peak / one.at_peak * one.measured for r, one in zip(rows, near, strict=True)]


def errors(seconds: Sequence[float], rows: Sequence[Scored]) -> list[float]:
    """Sizes of the errors of predicted steps."""
    return [abs(s / row.measured - 1) for s, row in zip(seconds, rows, strict=True)]


WAYS = ("constant", "neighbour", "model", "own")
"""Ways to predict a step: the last two are the model without the set's constants, and with them."""


@cache
def every() -> tuple[dict[str, Any], ...]:
    """Each scored point: its measured seconds, and predicted / measured - 1 by each way.

    `low` and `high` are the ends of its band over the measured step, without the set's constants;
    `band` is `out` where these do not hold it.
    """
    rows = []
    for source, each in by_source().items():
        for one, *seconds in zip(each, by_constant(each), by_neighbour(each), strict=True):
            off = [s / one.measured - 1 for s in seconds] + [one.off("out"), one.off("own")]
            low, high = (float(one.out[f"step_s_{end}"]) / one.measured for end in ("low", "high"))
            rows.append({
                "point": one.row["id"], "points": source, "device": device(one.row),
                "measured": one.measured, **dict(zip(WAYS, off, strict=True)),
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


def device(row: Mapping[str, str]) -> str:
    """The kind of GPU of a row, as `V100`."""
    kind = re.match(r"[A-Z]+\d+", row["hardware"])
    return kind[0] if kind else row["hardware"]


def sets() -> list[dict[str, Any]]:
    """A row for each set: its GPUs, its points by what they have, and where they are from."""
    of_set: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in points():
        of_set[source_of(row)].append(row)
    lines = read_text(FOLDER / "README.md", "", PredictionError).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "csv |" in line]
    sources = {name.removesuffix(".csv"): source for name, _, _, _, source, *_ in cells}
    table = []
    for name, rows in sorted(of_set.items()):
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
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in every():
        groups[row[key]].append(row)
    table = []
    for name, rows in sorted(groups.items()):
        sizes = {way: [abs(row[way]) for row in rows] for way in WAYS}
        means = {way: mean(values) for way, values in sizes.items()}
        medians = {f"{way}_median": median(values) for way, values in sizes.items()}
        inside = mean(not row["band"] for row in rows)
        table.append({key: name, "n": len(rows), **means, **medians, "in_band": inside})
    return table


def in_band(which: str = "out") -> float:
    """Share of points whose measured step lies in the band."""
    ends = ((getattr(row, which), row.measured) for row in scored())
    return mean(
        float(answer["step_s_low"]) <= measured <= float(answer["step_s_high"])
        for answer, measured in ends
    )


def half_width(which: str) -> float:
    """Half the width of the band over the prediction, the median of all points."""
    answers = [getattr(row, which) for row in scored()]
    return median(
        (float(one["step_s_high"]) - float(one["step_s_low"])) / float(one["step_s_pred"]) / 2
        for one in answers
    )


def spread(errors: Iterable[float]) -> tuple[float, float]:
    """Median size of errors, and that within which nine tenths lie."""
    sizes = sorted(map(abs, errors))
    return median(sizes), sizes[math.ceil(0.9 * len(sizes)) - 1]


def memory_errors(which: str) -> dict[str, list[float]]:
    """Signed errors of memory by set, without the constants derived from it (`out`) or with all."""
    errors: dict[str, list[float]] = defaultdict(list)
    for source, row, answers in predicted():
        if row["mem_gib"] and (answer := answers[which]["mem_gib_pred"]):
            errors[source].append(float(answer) / float(row["mem_gib"]) - 1)
    return errors


def fit_shares(which: str) -> tuple[float, float]:
    """Share of what ran that is predicted to fit, and of what crashed that is not."""
    fits: dict[bool, list[bool]] = {True: [], False: []}
    for _, row, answers in predicted():
        if row["status"] != "memory only":
            fits[row["status"] == "ok"].append(answers[which]["fits"] == "true")
    return mean(fits[True]), 1 - mean(fits[False])


def order(which: str = "out") -> tuple[float, int, int]:
    """Kendall's tau over pairs of a model and world of nanotron that differ by over 10 %.

    Also in how many worlds the layout ranked first is within 10 % of the best, and of how many.
    """
    worlds: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in by_source()["nanotron_h100"]:
        step = row.measured, float(getattr(row, which)["step_s_pred"])
        worlds[row.row["model"], row.row["gpus"]].append(step)
    right = wrong = first = 0
    for steps in worlds.values():
        for (a, x), (b, y) in combinations(steps, 2):
            if max(a, b) > TAU_MARGIN * min(a, b):
                right += (a - b) * (x - y) > 0
                wrong += (a - b) * (x - y) < 0
        chosen = min(steps, key=lambda step: step[1])[0]
        first += chosen <= TAU_MARGIN * min(measured for measured, _ in steps)
    return (right - wrong) / (right + wrong), first, len(worlds)


@cache
def grown() -> dict[str, list[tuple[float, float, float]]]:
    """Of larger worlds by set: measured seconds, those predicted from the base, and its own.

    Without the constants of the set. The last are the base's for as many sequences of a device.
    """
    ran: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for source, row, _ in predicted():
        if row["status"] == "ok":
            ran[source].append(row)
    growth: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for source, own in sorted(ran.items()):
        answers = predict_from_base(own, Constants(source))
        for places in families(own):
            base = own[places[0]]
            for place in places:
                row, answer = own[place], answers[place]
                if not answer["base"] or not answer["step_s_pred"]:
                    continue
                work = [
                    float(r["global_batch"] or r["gpus"]) / float(r["gpus"]) for r in (row, base)
                ]
                linear = float(base["step_s"]) * work[0] / work[1]
                seconds = float(row["step_s"]), float(answer["step_s_pred"]), linear
                growth[source].append(seconds)
    return growth


def memory_by_set() -> list[dict[str, Any]]:
    """A row for each set with memory: median error, and within which nine tenths of them lie."""
    own, table = memory_errors("own"), []
    for source, signed in memory_errors("out").items():
        numbers = (*spread(signed), *spread(own[source]))
        names = ("median", "nine_tenths", "own_median", "own_nine_tenths")
        table.append({"points": source, "n": len(signed), **dict(zip(names, numbers, strict=True))})
    return table


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
