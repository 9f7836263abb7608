"""A comparison as text: a summary, and a Markdown table with all that differs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pipeline.compare.sets import SERIES, Comparison, Difference, Match, Place
from pipeline.compare.times import DIFFERENT, SAME, UNDECIDED, verdict
from pipeline.files import write_text
from pipeline.metrics.format import NONE, ratio_interval, scientific, significant
from pipeline.metrics.select import plural
from pipeline.metrics.statistics import Interval
from pipeline.tables.write import to_markdown
from pipeline.text import markdown, markdown_code

_NOT_MEASURED = "not measured"


def show(found: Comparison) -> pd.DataFrame:
    """One row for each cell and node count that both sets have, step times in milliseconds."""
    shown = []
    for match in found.matches:
        first = {d.series: d for d in match.differences}
        times = found.times.get(match.place)
        shown.append({
            "Cell": match.place[0],
            "Nodes": str(match.place[1]),
            "Repeats": str(len(match.pairs)),
            **{name.capitalize(): _in_words(match, first.get(name)) for name in SERIES},
            "A [ms]": significant(1000 * times.one) if times else NONE,
            "B [ms]": significant(1000 * times.other) if times else NONE,
            "B over A": _ratio(times.ratio) if times and times.ratio else NONE,
            "Times": times.verdict if times else _NOT_MEASURED,
            "Mixed": "; ".join(match.mixed) or "no",
        })  # fmt: skip
    return pd.DataFrame(shown)


def _ratio(ratio: Interval) -> str:
    return ratio_interval(ratio.value, ratio.low, ratio.high)


def _in_words(match: Match, first: Difference | None) -> str:
    if not match.pairs:
        return NONE
    if first is None:
        return "equal" if match.allowed == 0 else f"within {scientific(match.allowed)}"
    rank = f" on rank {first.rank}" if first.rank else ""
    values = f"{first.one!r} and {first.other!r} ({scientific(first.relative)})"
    return f"step {first.step} of r{first.repeat}{rank}: {values}"


def summary(found: Comparison) -> str:
    """Plain lines: what was held against what, each difference, and the outcome."""
    lines = [f"A: {found.one.folder}", f"B: {found.other.folder}", ""]
    for match in found.matches:
        parts = [f"{d.series} differs from {_in_words(match, d)}" for d in match.differences] or [
            ("bit-equal" if match.allowed == 0 else "equal as asked") if match.pairs else "no run"
        ]
        if match.lengths_differ:
            parts.append("another number of steps")
        parts += [*match.unmatched, plural(len(match.pairs), "repeat")]
        times = found.times.get(match.place)
        if times is not None and times.ratio is not None:
            parts.append(f"step time B over A {_ratio(times.ratio)}, {times.verdict}")
        if match.mixed:
            parts.append(f"mixed: {', '.join(match.mixed)}")
        lines.append(f"{_name(match.place)}: {'; '.join(parts)}")
    return "\n".join([*lines, *_only(found), "", *_beside(found)])


def outcome(found: Comparison) -> str:
    """The last line: losses and gradient norms, then in how many cells the times differ."""
    apart = any(match.differences or match.lengths_differ for match in found.matches)
    trained = "DIFFERENT" if apart else "same"
    covered = "" if found.same_coverage else "; NOT THE SAME RUNS in both sets"
    same, undecided = found.count(SAME), found.count(UNDECIDED)
    return (
        f"{trained} in losses and gradient norms{covered}; times differ in "
        f"{found.count(DIFFERENT)} of {plural(len(found.times), 'cell')} (same within "
        f"{100 * found.margin:g} % in {same}, undecided in {undecided})"
    )


def _only(found: Comparison) -> list[str]:
    """Cells that one set has alone."""
    sides = {"A": found.only_one, "B": found.only_other}
    return [f"{_name(place)}: only in {side}" for side, own in sides.items() for place in own]


def _beside(found: Comparison) -> list[str]:
    """Differences besides the results, each way of making intervals once, and the outcome."""
    specs: dict[str, list[str]] = {}
    for match in found.matches:
        for difference in match.spec_differences:
            specs.setdefault(difference, []).append(_name(match.place))
    everywhere = len(found.matches)
    lines = [
        f"spec {text}" + ("" if len(at) == everywhere else f" (in {', '.join(at)})")
        for text, at in specs.items()
    ]
    lines += [f"{key}: {a} and {b}" for key, (a, b) in found.environment.items()]
    ratios = (times.ratio for times in found.times.values())
    lines += dict.fromkeys(f"interval: {ratio.how}" for ratio in ratios if ratio)
    if (ratio := found.pooled) is not None:
        decided = verdict(ratio, found.margin)
        lines.append(f"step time B over A, pooled: {_ratio(ratio)} ({ratio.how}), {decided}")
    return [*lines, outcome(found)]


def _name(place: Place) -> str:
    return f"{place[0]}, {plural(place[1], 'node')}"


def write_all(found: Comparison, times: str, folder: Path) -> None:
    """Write compare.md below `folder`."""
    heading = "equal" if found.equal(times) else "**different**"
    text = [
        f"# A against B: {heading}\n",
        f"- A: {markdown_code(str(found.one.folder))}",
        f"- B: {markdown_code(str(found.other.folder))}\n",
        to_markdown(show(found)),
        *(f"- {markdown(line)}" for line in [*_only(found), *_beside(found)]),
    ]
    write_text(folder / "compare.md", "\n".join(text) + "\n")
