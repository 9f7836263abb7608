"""Errors of the model on published points, set by set: `python -m pipeline predict --score`.

A set is predicted without any constant that was derived from it; beside that stand a constant
utilisation, the best for this very set and known only afterwards, the nearest neighbour among the
other sets, and the model with all of its constants, which is no test where some came from the set.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from pipeline.cost.constants import Constants, content
from pipeline.cost.devices import device_of
from pipeline.cost.job import Job, jobs_of
from pipeline.cost.points import families, kind_of, predict_from_base, predict_row, read

FOLDER = Path(__file__).parents[1] / "reference" / "points"
HARDWARE_TABLES = ("hw_", "operators_")
TAU_MARGIN = 1.10
"""Pairs whose steps are nearer than this are not ordered."""


@dataclass(frozen=True)
class Scored:
    """A measured row, and what was predicted without its set (`out`) and with all constants.

    `at_peak`: seconds of its model FLOPs at the peak of its devices. `features`: logarithms of its
    sizes, of which alike configurations have near ones.
    """

    source: str
    row: Mapping[str, str]
    out: Mapping[str, str]
    own: Mapping[str, str]
    measured: float
    job: Job
    at_peak: float
    features: tuple[float, ...]

    def error(self, which: str) -> float:
        """|predicted / measured - 1|, to the nearer end of a range where one is predicted."""
        answer, leave_out = getattr(self, which), self.source if which == "out" else ""
        band = content()["band"][kind_of(self.job, Constants(leave_out))]
        low, high = (
            float(answer[f"step_s_{end}"]) / ratio / self.measured - 1
            for end, ratio in zip(("low", "high"), band, strict=True)
        )
        return 0.0 if low < 0 < high and high - low > 1e-4 else min(abs(low), abs(high))


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
        job = jobs_of(row)[0]
        tokens = job.tokens * job.dp * (1.0 if job.per_micro else job.accum)
        at_peak = tokens * job.flops_per_token / (device_of(job, Constants()).peak * job.gpus)
        # In their logarithms alike configurations are near.
        sizes = (job.hidden, job.layers, job.tokens, job.gpus, job.tp, job.pp, 2**job.zero)
        features = tuple(map(math.log2, sizes))
        kept.append(Scored(source, row, **answers, measured=float(row["step_s"]), job=job,
                           at_peak=at_peak, features=features))  # fmt: skip
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


def in_band(rows: Sequence[Scored]) -> float:
    """Share of rows whose measured step lies in the band."""
    return mean(
        float(row.out["step_s_low"]) <= row.measured <= float(row.out["step_s_high"])
        for row in rows
    )


def _pair(errors: Sequence[float]) -> str:
    return f"{100 * mean(errors):.1f} / {100 * median(errors):.1f}"


def table() -> list[dict[str, str]]:
    """A row for each set; errors in per cent, mean and median."""
    return [
        {
            "points": source,
            "n": str(len(rows)),
            "constant": _pair(errors(by_constant(rows), rows)),
            "neighbour": _pair(errors(by_neighbour(rows), rows)),
            "model": _pair([row.error("out") for row in rows]),
            "with its own": _pair([row.error("own") for row in rows]),
            "in the band": f"{100 * in_band(rows):.0f} %",
        }
        for source, rows in by_source().items()
    ]


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


class Grown(NamedTuple):
    """A measured row that was predicted from the smallest world of its family."""

    source: str
    measured: float
    predicted: float
    linear: float


@cache
def grown() -> tuple[Grown, ...]:
    """Rows of larger worlds, each predicted from its base without the constants of its set.

    `linear` is the base's seconds for a sequence and device.
    """
    ran: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for source, row, _ in predicted():
        if row["status"] == "ok":
            ran[source].append(row)
    growth = []
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
                growth.append(Grown(source, *seconds))
    return tuple(growth)


def _rows(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Lines of a Markdown table."""
    first, *others = ("| " + " | ".join(line) + " |" for line in (heads, *rows))
    return [first, "|" + "---|" * (first.count("|") - 1), *others]


def markdown() -> str:
    """The tables of errors, as docs/planner.md has them."""
    rows = table()
    lines = _rows(rows[0], [row.values() for row in rows])
    own, memory = memory_errors("own"), []
    for source, signed in memory_errors("out").items():
        sizes = (f"{size:.0%}" for size in spread(signed))
        own_sizes = " / ".join(f"{size:.0%}" for size in spread(own[source]))
        memory.append([source, str(len(signed)), *sizes, own_sizes])
    heads = ["memory of", "n", "median error", "nine tenths within", "with its own"]
    lines += ["", *_rows(heads, memory)]
    bases = []
    for source in dict.fromkeys(one.source for one in grown()):
        larger = [one for one in grown() if one.source == source]
        linear = _pair([abs(one.linear / one.measured - 1) for one in larger])
        model = _pair([abs(one.predicted / one.measured - 1) for one in larger])
        bases.append([source, str(len(larger)), linear, model])
    lines += ["", *_rows(["with `--base`", "n", "linear", "model"], bases), ""]
    (tau, first, worlds), (own_tau, own_first, _) = order(), order("own")
    (ran, crashed), (own_ran, own_crashed) = fit_shares("out"), fit_shares("own")
    middle = median(
        (float(r.own["step_s_high"]) - float(r.own["step_s_low"])) / float(r.own["step_s_pred"]) / 2
        for r in scored()
    )
    lines.append(
        f"The band holds {in_band(scored()):.0%} of all points; half its width, with "
        f"all constants, is {middle:.0%} of the prediction in the median. Of what "
        f"ran, {ran:.0%} is predicted to fit ({own_ran:.0%} with all constants); of what crashed, "
        f"{crashed:.0%} not to ({own_crashed:.0%}). Order of nanotron's layouts: "
        f"Kendall's tau {tau:.2f} ({own_tau:.2f} with its own constants); the layout "
        f"ranked first is within 10 % of the best in {first} of "
        f"{worlds} worlds ({own_first} with its own)."
    )
    return "\n".join(lines).replace("%", " %").replace("  %", " %")
