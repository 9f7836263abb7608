"""What a comparison found: a summary, a Markdown and CSV table, and a figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.compare.sets import SERIES, Comparison, Difference, Match, Place
from pipeline.compare.times import DIFFERENT, SAME, UNDECIDED, verdict
from pipeline.files import write_text
from pipeline.metrics.format import NONE, ratio_interval, scientific, significant
from pipeline.metrics.select import plural
from pipeline.metrics.statistics import Interval
from pipeline.tables.write import to_markdown
from pipeline.text import markdown, markdown_code

_SMALLEST = 1e-9
_NOT_MEASURED = "not measured"


def frame(found: Comparison) -> pd.DataFrame:
    """One row for each cell and node count that both sets have; times in seconds."""
    rows = []
    for match in found.matches:
        first = {d.series: d for d in match.differences}
        row: dict[str, object] = {
            "cell": match.place[0],
            "nodes": match.place[1],
            "repeats": len(match.pairs),
            "same_training": match.same_training,
        }
        for name, series in SERIES.items():
            largest = [float(d.max()) for d in match.deviations(series).values() if d.size]
            one = first.get(name)
            row |= {
                f"{series}_largest": max(largest, default=np.nan),
                f"{series}_first_step": one.step if one else None,
                f"{series}_first_rank": one.rank if one else None,
                f"{series}_a": one.one if one else np.nan,
                f"{series}_b": one.other if one else np.nan,
            }
        times = found.times.get(match.place)
        ratio = times.ratio if times else None
        rows.append(row | {
            "step_seconds_a": times.one if times else None,
            "step_seconds_b": times.other if times else None,
            "step_seconds_ratio": ratio.value if ratio else None,
            "step_seconds_low": ratio.low if ratio else None,
            "step_seconds_high": ratio.high if ratio else None,
            "interval": ratio.how if ratio else None,
            "times": times.verdict if times else _NOT_MEASURED,
            "unmatched": "; ".join(match.unmatched),
            "mixed": "; ".join(match.mixed),
        })  # fmt: skip
    return pd.DataFrame(rows)


def show(found: Comparison) -> pd.DataFrame:
    """The frame as text, step times in milliseconds."""
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
    """Write compare.md, compare.csv and the figure below `folder`."""
    heading = "equal" if found.equal(times) else "**different**"
    text = [
        f"# A against B: {heading}\n",
        f"- A: {markdown_code(str(found.one.folder))}",
        f"- B: {markdown_code(str(found.other.folder))}\n",
        to_markdown(show(found)),
        *(f"- {markdown(line)}" for line in [*_only(found), *_beside(found)]),
    ]
    write_text(folder / "compare.md", "\n".join(text) + "\n")
    write_text(folder / "compare.csv", frame(found).to_csv(index=False, lineterminator="\n"))
    _figure(found, folder)


def _figure(found: Comparison, folder: Path) -> None:
    """Ratio of step times with its interval, and the largest deviation of each series."""
    from pipeline.figures import panels, theme
    from pipeline.figures.loss_step import plain_powers

    theme.apply()
    names = [_name(match.place) for match in found.matches]
    figure, (left, right) = panels.grid(2, 0.9 + 0.3 * len(names), sharey=True)
    for y, match in enumerate(found.matches):
        times = found.times.get(match.place)
        if times is not None and (r := times.ratio) is not None:
            colour = "#D55E00" if times.verdict == DIFFERENT else "#0072B2"
            reach = [[r.value - r.low], [r.high - r.value]]
            left.errorbar(r.value, y, xerr=reach, fmt="o", color=colour, capsize=3)
    left.axvline(1, color="#444444", lw=0.8)
    left.axvspan(1 / (1 + found.margin), 1 + found.margin, color="#DDDDDD", zorder=0)
    left.set_xlabel("Step time, B over A")
    table = frame(found)
    for (name, series), marker in zip(SERIES.items(), ("o", "x"), strict=True):
        largest = table[f"{series}_largest"].clip(lower=_SMALLEST).replace(np.inf, np.nan)
        right.plot(largest, range(len(names)), marker, mfc="white", label=name)
    right.set_xscale("log")
    plain_powers(right, "x")
    right.set_xlim(_SMALLEST / 2, max(1e-3, right.get_xlim()[1]))
    right.set_xlabel(f"Largest relative difference ({_SMALLEST:g} or less: left)")
    right.legend(frameon=False, loc="best")
    panels.rows_axis(left, names)
    theme.save(figure, folder, "compare")
