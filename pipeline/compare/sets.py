"""Two result sets held against one another by cell, nodes and repeat, as lines of text.

Step times are held against a margin by simultaneous intervals of all cells. Each run counts once,
by the median of its timed steps. The ratio of a cell is that of the geometric means over its runs,
with Welch's t interval on the logarithms. All cells' intervals hold together with `CONFIDENCE`
(Bonferroni), so a rerun of m cells is not called different because one of m intervals fails by
chance. A cell is the same only where its interval lies inside the margin, and different only where
it lies outside (two one-sided tests, Schuirmann 1987); else it is undecided.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from pipeline.errors import ComparisonError
from pipeline.files import write_text
from pipeline.metrics.build import flat
from pipeline.metrics.facts import mixed
from pipeline.metrics.format import ratio_interval, scientific
from pipeline.metrics.parity import relative_deviation
from pipeline.metrics.runs import Run, load_run
from pipeline.metrics.statistics import CONFIDENCE, Interval
from pipeline.records import RUN_FILE, read_record
from pipeline.study.expansion import every_run
from pipeline.study.load import RESOLVED, load_study
from pipeline.study.spec import TIMED
from pipeline.text import few, markdown, markdown_code, plural, significant

CellKey = tuple[str, int]
"""A cell and its number of nodes."""

Runs = Mapping[CellKey, Mapping[int, Run]]
"""The timed runs of a set, by cell and by repeat."""

SAME, DIFFERENT, UNDECIDED = "same", "different", "undecided"
MARGIN = 0.05
"""Relative: times this close are called the same."""

Key = TypeVar("Key")
SERIES = {"loss": "loss", "gradient norm": "grad_norm"}


def compare(
    folders: tuple[Path, Path], allowed: float, by_times: bool, out: Path | None
) -> tuple[list[str], bool]:
    """Lines on two folders `results/<study>`, A and B, and whether they are equal.

    Each cell that both have is a line, then comes all else. Equal are sets of the same runs, each
    ended alike, of which no loss and no gradient norm is apart by more than `allowed`, a relative
    difference where 0 asks for equal bits, and, if `by_times`, no cell's step times differ.
    compare.md below `out` says the same. Raises ComparisonError where no run finished in both.
    """
    (one, former), (other, its_former) = map(_read, folders)
    shared = [place for place in one if place in other]
    alone = [f"{_name(place)}: only in {name}" for name, runs in (("A", one), ("B", other))
             for place in runs if place not in shared]  # fmt: skip
    finished = {
        place: ([run for run in one[place].values() if run.ok],
                [run for run in other[place].values() if run.ok])
        for place in shared
    }  # fmt: skip
    times = cell_times(finished)
    same, covered, num_pairs = True, not alone, 0
    cells: list[str] = []
    # Cells by what differs in the specs of any of their repeats.
    specs: defaultdict[str, list[str]] = defaultdict(list)
    for place in shared:
        name, a, b = _name(place), one[place], other[place]
        both = sorted({*a} & {*b})
        # A repeat counts where both finished it.
        pairs = {r: (a[r], b[r]) for r in both if a[r].ok and b[r].ok}
        num_pairs += len(pairs)
        parts = _differences(pairs, allowed)
        as_long = all(len(run.loss) == len(its.loss) for run, its in pairs.values())
        same &= as_long and not parts
        if not parts:
            parts = [("bit-equal" if allowed == 0 else "equal as asked") if pairs else "no run"]
        if not as_long:
            parts.append("another number of steps")
        # Repeats that are in one set only, or ended differently.
        ends = {r: [runs[r].record.status if r in runs else "absent" for runs in (a, b)]
                for r in sorted({*a, *b})}  # fmt: skip
        unmatched = [f"r{r} is {mine} and {its}" for r, (mine, its) in ends.items() if mine != its]
        covered &= not unmatched
        parts += [*unmatched, plural(len(pairs), "repeat")]
        took = times.get(place)
        if took is not None and took.ratio is not None:
            over = " over ".join(significant(1000 * seconds) for seconds in (took.other, took.one))
            parts.append(f"step time B over A {_ratio(took.ratio)} ({over} ms), {took.verdict}")
        circumstances = (mixed([run.record.run for run in runs]) for runs in finished[place])
        if several := [f"{s}: {text}" for s, text in zip("AB", circumstances, strict=True) if text]:
            parts.append(f"mixed: {', '.join(several)}")
        cells.append(f"{name}: {'; '.join(parts)}")
        differ = (_differing(*(flat(runs[r].record.run["spec"]) for runs in (a, b))) for r in both)
        for text in dict.fromkeys(line for lines in differ for line in lines):
            specs[text].append(name)
    if not num_pairs:
        raise ComparisonError(
            f"no run finished in both {folders[0]} and {folders[1]}, so nothing can be compared; "
            "give two result sets of one study"
        )
    beside = [
        f"{name}: {plural(len(runs), 'run')} left out, which {RESOLVED} no longer has: {few(runs)}"
        for name, runs in (("A", former), ("B", its_former)) if runs
    ]  # fmt: skip
    beside += alone + [
        f"spec {text}" + ("" if len(at) == len(shared) else f" (in {', '.join(at)})")
        for text, at in specs.items()
    ]
    beside += _differing(_facts(one), _facts(other), "none")
    ratios = (each.ratio for each in times.values())
    beside += dict.fromkeys(f"interval: {ratio.how}" for ratio in ratios if ratio)
    if (whole := pooled(finished.values())) is not None:
        pool = f"step time B over A, pooled: {_ratio(whole)} ({whole.how})"
        beside.append(f"{pool}, {verdict(whole)}")
    count = Counter(each.verdict for each in times.values())
    trained = "same" if same else "DIFFERENT"
    coverage = "" if covered else "; NOT THE SAME RUNS in both sets"
    beside.append(
        f"{trained} in losses and gradient norms{coverage}; times differ in {count[DIFFERENT]} of "
        f"{plural(len(times), 'cell')} (same within {100 * MARGIN:g} % in {count[SAME]}, undecided "
        f"in {count[UNDECIDED]})"
    )
    equal = same and covered and not (by_times and count[DIFFERENT])
    sides = [f"{name}: {path}" for name, path in zip("AB", folders, strict=True)]
    if out is not None:
        heading = f"# A against B: {'equal' if equal else '**different**'}\n"
        mine, its = (markdown_code(str(path)) for path in folders)
        lines = [heading, f"- A: {mine}", f"- B: {its}\n"]
        lines += [f"- {markdown(line)}" for line in (*cells, *beside)]
        write_text(out / "compare.md", "\n".join(lines) + "\n")
    return [*sides, "", *cells, "", *beside], equal


def _read(folder: Path) -> tuple[Runs, list[str]]:
    """Records of timed runs below a folder, and folders of runs that its study does not have.

    Without the study's file all are read. Raises an error where one is unfit, or none is there.
    """
    runs: dict[CellKey, dict[int, Run]] = {}
    former: list[str] = []
    planned = None
    if (study_file := folder / RESOLVED).is_file():
        planned = {spec.folder for spec in every_run(load_study(study_file))}
    for path in sorted(path.parent for path in folder.glob(f"runs/**/{RUN_FILE}")):
        name = path.relative_to(folder / "runs").as_posix()
        if planned is not None and name not in planned:
            former.append(name)
            continue
        record = read_record(path)
        spec = record.spec
        if name != spec.folder:
            raise ComparisonError(
                f"{path} holds the record of {spec.run_id}; bring it to the folder of its run"
            )
        if spec.kind == TIMED:
            # Two folders may be of studies that label a cell otherwise; its name identifies it.
            runs.setdefault((spec.cell, spec.world.nodes), {})[spec.repeat] = load_run(record, {})
    if not runs:
        raise ComparisonError(
            f"{folder} holds no record; give the folder of a study, such as results/smoke, "
            "which has runs/<cell>/n<nodes>/r<repeat>/run.json"
        )
    return dict(sorted(runs.items())), former


def _differences(pairs: Mapping[int, tuple[Run, Run]], allowed: float) -> list[str]:
    """The first step at which each series is apart, over all repeats."""
    lines = []
    for name, series in SERIES.items():
        firsts = []
        for repeat, pair in pairs.items():
            # Values of all steps of all ranks, shape (steps, ranks).
            a, b = (
                pd.DataFrame(map(vars, run.record.steps), columns=["step", "rank", series])
                .pivot(index="step", columns="rank", values=series)
                .to_numpy(dtype=np.float64)
                for run in pair
            )
            # All ranks have the value of the whole batch, so one stands for all.
            if a.shape[1] != b.shape[1]:
                a, b = a[:, :1], b[:, :1]
            apart = relative_deviation(b, a)
            for step, rank in np.argwhere(apart > allowed)[:1].tolist():
                mine, its, by = (float(side[step, rank]) for side in (a, b, apart))
                at = f"step {step} of r{repeat}" + (f" on rank {rank}" if rank else "")
                text = f"{name} differs from {at}: {mine!r} and {its!r} ({scientific(by)})"
                firsts.append((step, repeat, text))
        lines += [text for *_, text in sorted(firsts)[:1]]
    return lines


def _facts(runs: Runs) -> dict[str, str]:
    """Versions, hardware, source and image, each with all values that the runs of a set have."""
    facts: defaultdict[str, set[str]] = defaultdict(set)
    for run in (run for repeats in runs.values() for run in repeats.values()):
        about = run.record.run
        parts = {part: about[part] for part in ("versions", "hardware", "provenance", "data")}
        of_ranks = [{"ranks": rank.get("environment", {})} for rank in about["ranks"]]
        for part in (parts, *of_ranks):
            for key, value in flat(part, depth=2).items():
                facts[key].add(str(value))
    return {key: ", ".join(sorted(values)) for key, values in facts.items()}


def _differing(one: Mapping[str, Any], other: Mapping[str, Any], absent: Any = None) -> list[str]:
    """A line `key: a and b` on each key in which the two differ."""
    both = {key: (one.get(key, absent), other.get(key, absent)) for key in sorted({*one, *other})}
    return [f"{key}: {mine} and {its}" for key, (mine, its) in both.items() if mine != its]


def _name(place: CellKey) -> str:
    return f"{place[0]}, {plural(place[1], 'node')}"


def _ratio(ratio: Interval) -> str:
    return ratio_interval(ratio.value, ratio.low, ratio.high)


@dataclass(frozen=True)
class Times:
    """Step times of a cell: medians over each set's runs in seconds, and the second over the first.

    `ratio` is None where a set has one run, which says nothing about other runs.
    """

    one: float
    other: float
    ratio: Interval | None
    verdict: str


_Contrast = tuple[float, list[tuple[float, int]]]
"""Difference of two means of logarithms, and the variance and freedom of each mean."""

_EXACT: _Contrast = (0.0, [])
"""That of the same records on both sides, which differ by nothing that varies."""


def cell_times(pairs: Mapping[Key, tuple[Sequence[Run], Sequence[Run]]]) -> dict[Key, Times]:
    """The times of every cell whose two sides have a finished run; intervals hold together."""
    contrasts = {key: _contrast(*sides) for key, sides in pairs.items() if all(sides)}
    count = sum(contrast not in (None, _EXACT) for contrast in contrasts.values())
    how = f"{100 * CONFIDENCE:g} % together over {count} cells, by Welch's t on logarithms"
    times = {}
    for key, contrast in contrasts.items():
        one, other = pairs[key]
        ratio = None
        if contrast is not None:
            exact = "exact: every step took the same time in both"
            way = exact if contrast == _EXACT else how
            ratio = _interval([contrast], count, min(len(one), len(other)), way)
        medians = [[np.median(run.timed_seconds) for run in side] for side in (one, other)]
        a, b = (float(np.median(side)) for side in medians)
        times[key] = Times(a, b, ratio, verdict(ratio))
    return times


def pooled(cells: Iterable[tuple[Sequence[Run], Sequence[Run]]]) -> Interval | None:
    """Geometric mean of the cells' ratios, each cell once, with its own interval; None without."""
    contrasts = [_contrast(*sides) for sides in cells]
    known = [contrast for contrast in contrasts if contrast is not None]
    how = f"{100 * CONFIDENCE:g} % for the geometric mean of {len(known)} cells"
    return _interval(known, 1, len(known), how) if known else None


def verdict(ratio: Interval | None) -> str:
    """Verdict on an interval: inside the margin, outside, or neither."""
    if ratio is None:
        return UNDECIDED
    least, most = 1 / (1 + MARGIN), 1 + MARGIN
    if ratio.low >= least and ratio.high <= most:
        return SAME
    return DIFFERENT if ratio.low > most or ratio.high < least else UNDECIDED


def _contrast(one: Sequence[Run], other: Sequence[Run]) -> _Contrast | None:
    """None where a side has fewer than two runs and they are not the same records."""
    steps = [[run.timed_seconds.tolist() for run in side] for side in (one, other)]
    if one and steps[0] == steps[1]:
        return _EXACT
    if min(len(one), len(other)) < 2:
        return None
    sides = [np.log([np.median(run.timed_seconds) for run in side]) for side in (one, other)]
    parts = [(float(np.var(side, ddof=1)) / len(side), len(side) - 1) for side in sides]
    return float(np.mean(sides[1]) - np.mean(sides[0])), parts


def _interval(contrasts: Sequence[_Contrast], num_intervals: int, n: int, how: str) -> Interval:
    """Mean of the contrasts as a ratio; `num_intervals` such intervals hold together."""
    from scipy.special import stdtrit

    count = len(contrasts)
    parts = [(variance / count**2, freedom) for _, own in contrasts for variance, freedom in own]
    total = sum(variance for variance, _ in parts)
    middle = sum(difference for difference, _ in contrasts) / count
    reach = 0.0
    if total > 0:
        # Degrees of freedom of a sum of variances (Welch & Satterthwaite).
        combined = total**2 / sum(variance**2 / freedom for variance, freedom in parts)
        # Both ends of all intervals share what is left of the confidence (Bonferroni).
        tail = 1 - (1 - CONFIDENCE) / (2 * num_intervals)
        reach = float(stdtrit(combined, tail)) * math.sqrt(total)
    low, high = math.exp(middle - reach), math.exp(middle + reach)
    return Interval(math.exp(middle), low, high, n, how)
