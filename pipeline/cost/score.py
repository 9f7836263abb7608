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
    """One measured row: its step, what was predicted without its set and with all constants."""

    source: str
    row: Mapping[str, str]
    measured: float
    out: Mapping[str, str]
    own: Mapping[str, str]
    job: Job
    flops: float
    features: tuple[float, ...]
    utilisation: float

    def error(self, which: str) -> float:
        """|predicted / measured - 1|, to the nearer end of a range where one is predicted."""
        answer = getattr(self, which)
        low, high = (float(answer[f"step_s_{end}"]) for end in ("low", "high"))
        leave_out = self.source if which == "out" else ""
        band = content()["band"][kind_of(self.job, Constants(leave_out))]
        ends: tuple[float, float] = (
            low / band[0] / self.measured - 1,
            high / band[1] / self.measured - 1,
        )
        if ends[0] < 0 < ends[1] and ends[1] - ends[0] > 1e-4:
            return 0.0
        return min(map(abs, ends))


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
def scored() -> tuple[Scored, ...]:
    """Every measured row that is not suspect and can be predicted."""
    kept = []
    constants = {source: Constants(source) for source in {source_of(row) for row in points()}}
    for row in points():
        if row["status"] != "ok" or row["suspect"] or not row["step_s"]:
            continue
        source = source_of(row)
        out, own = predict_row(row, constants[source]), predict_row(row, Constants())
        if out["reason"]:
            continue
        job = jobs_of(row)[0]
        tokens = job.tokens * job.dp * (1.0 if job.per_micro else job.accum)
        flops = tokens * job.flops_per_token
        peak, step = device_of(job, Constants()).peak * job.gpus, float(row["step_s"])
        # In their logarithms alike configurations are near.
        sizes = (job.hidden, job.layers, job.tokens, job.gpus, job.tp, job.pp, 2**job.zero)
        features, used = tuple(map(math.log2, sizes)), flops / peak / step
        kept.append(Scored(source, row, step, out, own, job, flops / peak, features, used))
    return tuple(kept)


def by_constant(rows: Sequence[Scored]) -> list[float]:
    """Seconds by the one utilisation that suits the set best."""
    tried = [[row.flops / one.utilisation for row in rows] for one in rows]
    return min(tried, key=lambda seconds: mean(_errors(seconds, rows)))


def by_neighbour(rows: Sequence[Scored], others: Sequence[Scored]) -> list[float]:
    """Seconds by the utilisation of the most alike row of the other sets."""
    near = (min(others, key=lambda one: math.dist(one.features, r.features)) for r in rows)
    return [row.flops / one.utilisation for row, one in zip(rows, near, strict=True)]


def _errors(seconds: Sequence[float], rows: Sequence[Scored]) -> list[float]:
    return [abs(s / row.measured - 1) for s, row in zip(seconds, rows, strict=True)]


def by_source() -> dict[str, list[Scored]]:
    """The scored rows of each set."""
    sets: dict[str, list[Scored]] = defaultdict(list)
    for row in scored():
        sets[row.source].append(row)
    return dict(sorted(sets.items()))


def inside(row: Scored) -> bool:
    """True where the measured step lies in the band."""
    return float(row.out["step_s_low"]) <= row.measured <= float(row.out["step_s_high"])


def table() -> list[dict[str, str]]:
    """One row a set, and one of all; errors in per cent, mean and median."""
    lines = []
    for source, rows in by_source().items():
        others = [row for row in scored() if row.source != source]
        lines.append(
            {
                "points": source,
                "n": str(len(rows)),
                "constant": _pair(_errors(by_constant(rows), rows)),
                "neighbour": _pair(_errors(by_neighbour(rows, others), rows)),
                "model": _pair([row.error("out") for row in rows]),
                "with its own": _pair([row.error("own") for row in rows]),
                "in the band": f"{100 * mean(map(inside, rows)):.0f} %",
            }
        )
    return lines


def _pair(errors: Sequence[float]) -> str:
    return f"{100 * mean(errors):.1f} / {100 * median(errors):.1f}"


def memory_errors(which: str) -> dict[str, list[float]]:
    """Signed errors of memory by set, without the constants derived from it (`out`) or with all."""
    errors: dict[str, list[float]] = defaultdict(list)
    for row in points():
        if row["mem_gib"] and not row["suspect"]:
            source = source_of(row)
            constants = Constants(source if which == "out" else "")
            predicted = predict_row(row, constants)["mem_gib_pred"]
            if predicted:
                errors[source].append(float(predicted) / float(row["mem_gib"]) - 1)
    return dict(errors)


def _spread(errors: Sequence[float]) -> tuple[float, float]:
    """Median size of errors, and that within which nine tenths lie."""
    sizes = sorted(map(abs, errors))
    return median(sizes), sizes[math.ceil(0.9 * len(sizes)) - 1]


def fit_shares(which: str) -> tuple[float, float]:
    """Share of what ran that is predicted to fit, and of what crashed that is not."""
    ran: list[bool] = []
    crashed: list[bool] = []
    for row in points():
        if row["suspect"] or row["status"] == "memory only":
            continue
        constants = Constants(source_of(row) if which == "out" else "")
        fits = predict_row(row, constants)["fits"]
        (ran if row["status"] == "ok" else crashed).append(fits == "true")
    return mean(ran), 1 - mean(crashed)


def order(which: str = "out") -> tuple[float, int, int]:
    """Kendall's tau over pairs of a model and world of nanotron that differ by over 10 %.

    Also in how many worlds the layout ranked first is within 10 % of the best, and of how many.
    """
    worlds: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in scored():
        if row.source == "nanotron_h100":
            predicted = float(getattr(row, which)["step_s_pred"])
            worlds[row.row["model"], row.row["gpus"]].append((row.measured, predicted))
    right = wrong = first = 0
    for steps in worlds.values():
        for place, (a, x) in enumerate(steps):
            for b, y in steps[:place]:
                if max(a, b) > TAU_MARGIN * min(a, b):
                    right += (a - b) * (x - y) > 0
                    wrong += (a - b) * (x - y) < 0
        chosen = min(steps, key=lambda step: step[1])[0]
        first += chosen <= TAU_MARGIN * min(measured for measured, _ in steps)
    return (right - wrong) / (right + wrong), first, len(worlds)


def _rows(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    first, *others = ("| " + " | ".join(line) + " |" for line in (heads, *rows))
    return [first, "|" + "---|" * len(heads), *others]


def markdown() -> str:
    """The tables of errors, as docs/planner.md has them."""
    rows = table()
    lines = _rows(list(rows[0]), [list(row.values()) for row in rows])
    heads = ["memory of", "n", "median error", "nine tenths within", "with its own"]
    own = memory_errors("own")
    rows_of_memory = []
    for source, errors in memory_errors("out").items():
        middle, most = _spread(errors)
        own_pair = " / ".join(f"{size:.0%}" for size in _spread(own[source]))
        rows_of_memory.append([source, str(len(errors)), f"{middle:.0%}", f"{most:.0%}", own_pair])
    lines += ["", *_rows(heads, rows_of_memory), "", *grown_markdown()]
    tau, first, worlds = order()
    own_tau, own_first, _ = order("own")
    ran, crashed = fit_shares("out")
    own_ran, own_crashed = fit_shares("own")
    middle = median(
        (float(r.own["step_s_high"]) - float(r.own["step_s_low"])) / float(r.own["step_s_pred"]) / 2
        for r in scored()
    )
    lines += [
        "",
        f"The band holds {mean(map(inside, scored())):.0%} of all points; half its width, with "
        f"all constants, is {middle:.0%} of the prediction in the median. Of what "
        f"ran, {ran:.0%} is predicted to fit ({own_ran:.0%} with all constants); of what crashed, "
        f"{crashed:.0%} not to ({own_crashed:.0%}). Order of nanotron's layouts: "
        f"Kendall's tau {tau:.2f} ({own_tau:.2f} with its own constants); the layout "
        f"ranked first is within 10 % of the best in {first} of "
        f"{worlds} worlds ({own_first} with its own).",
    ]
    return "\n".join(lines).replace("%", " %").replace("  %", " %")


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
    rows = [row for row in points() if row["status"] == "ok" and not row["suspect"]]
    growth = []
    for source in sorted({source_of(row) for row in rows}):
        own = [row for row in rows if source_of(row) == source]
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
                predicted = float(answer["step_s_pred"])
                growth.append(Grown(source, float(row["step_s"]), predicted, linear))
    return tuple(growth)


def grown_markdown() -> list[str]:
    """The table of errors with `--base`."""
    lines = []
    for source in dict.fromkeys(one.source for one in grown()):
        rows = [one for one in grown() if one.source == source]
        linear, model = (
            _pair([abs(getattr(one, way) / one.measured - 1) for one in rows])
            for way in ("linear", "predicted")
        )
        lines.append([source, str(len(rows)), linear, model])
    return _rows(["with `--base`", "n", "linear", "model"], lines)
