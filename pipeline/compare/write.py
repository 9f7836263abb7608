"""A comparison as lines of text, printed and written to compare.md."""

from __future__ import annotations

from pathlib import Path

from pipeline.compare.sets import CellKey, Comparison, Match
from pipeline.compare.times import DIFFERENT, MARGIN, SAME, UNDECIDED, pooled, verdict
from pipeline.files import write_text
from pipeline.metrics.format import ratio_interval, scientific
from pipeline.metrics.statistics import Interval
from pipeline.text import markdown, markdown_code, plural, significant


def summary(comparison: Comparison) -> str:
    """Plain lines: what was held against what, each difference, and the outcome."""
    sides = [f"A: {comparison.one.folder}", f"B: {comparison.other.folder}"]
    cells = [_of_cell(comparison, match) for match in comparison.matches]
    return "\n".join([*sides, "", *cells, "", *_beside(comparison)])


def write_all(comparison: Comparison, times: str, folder: Path) -> None:
    """Write compare.md below `folder`."""
    heading = "equal" if comparison.equal(times) else "**different**"
    lines = [*(_of_cell(comparison, match) for match in comparison.matches), *_beside(comparison)]
    text = [
        f"# A against B: {heading}\n",
        f"- A: {markdown_code(str(comparison.one.folder))}",
        f"- B: {markdown_code(str(comparison.other.folder))}\n",
        *(f"- {markdown(line)}" for line in lines),
    ]
    write_text(folder / "compare.md", "\n".join(text) + "\n")


def _of_cell(comparison: Comparison, match: Match) -> str:
    """Losses, gradient norms, endings and step times of one cell at one node count."""
    parts = []
    for first in match.differences:
        rank = f" on rank {first.rank}" if first.rank else ""
        at = f"step {first.step} of r{first.repeat}{rank}"
        values = f"{first.one!r} and {first.other!r} ({scientific(first.relative)})"
        parts.append(f"{first.series} differs from {at}: {values}")
    if not parts:
        equal = "bit-equal" if match.allowed == 0 else "equal as asked"
        parts = [equal if match.pairs else "no run"]
    if match.lengths_differ:
        parts.append("another number of steps")
    parts += [*match.unmatched, plural(len(match.pairs), "repeat")]
    times = comparison.times.get(match.place)
    if times is not None and times.ratio is not None:
        a, b = (significant(1000 * seconds) for seconds in (times.one, times.other))
        parts.append(f"step time B over A {_ratio(times.ratio)} ({b} over {a} ms), {times.verdict}")
    if match.mixed:
        parts.append(f"mixed: {', '.join(match.mixed)}")
    return f"{_name(match.place)}: {'; '.join(parts)}"


def _beside(comparison: Comparison) -> list[str]:
    """Cells that one set has alone, other differences, ways of making intervals, the outcome."""
    specs: dict[str, list[str]] = {}
    for match in comparison.matches:
        for difference in match.spec_differences:
            specs.setdefault(difference, []).append(_name(match.place))
    alone = comparison.alone.items()
    lines = [f"{_name(key)}: only in {side}" for side, keys in alone for key in keys]
    everywhere = len(comparison.matches)
    lines += [
        f"spec {text}" + ("" if len(at) == everywhere else f" (in {', '.join(at)})")
        for text, at in specs.items()
    ]
    lines += [f"{key}: {a} and {b}" for key, (a, b) in comparison.environment.items()]
    ratios = (times.ratio for times in comparison.times.values())
    lines += dict.fromkeys(f"interval: {ratio.how}" for ratio in ratios if ratio)
    if (ratio := pooled([match.finished for match in comparison.matches])) is not None:
        lines.append(f"step time B over A, pooled: {_ratio(ratio)} ({ratio.how}), {verdict(ratio)}")
    # The outcome: losses and gradient norms, then in how many cells the times differ.
    trained = "same" if comparison.same_training else "DIFFERENT"
    covered = "" if comparison.same_coverage else "; NOT THE SAME RUNS in both sets"
    same, undecided = comparison.count(SAME), comparison.count(UNDECIDED)
    return [
        *lines,
        f"{trained} in losses and gradient norms{covered}; times differ in "
        f"{comparison.count(DIFFERENT)} of {plural(len(comparison.times), 'cell')} (same within "
        f"{100 * MARGIN:g} % in {same}, undecided in {undecided})",
    ]


def _name(place: CellKey) -> str:
    return f"{place[0]}, {plural(place[1], 'node')}"


def _ratio(ratio: Interval) -> str:
    return ratio_interval(ratio.value, ratio.low, ratio.high)
