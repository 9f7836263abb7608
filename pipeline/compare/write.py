"""What a comparison found: a summary, a Markdown and CSV table, and a figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.compare.sets import SERIES, Comparison, Difference, Match, Place
from pipeline.files import write_text
from pipeline.metrics.format import NONE, ratio_interval, scientific, significant
from pipeline.metrics.select import plural
from pipeline.tables.write import to_markdown
from pipeline.text import markdown, markdown_code

_SMALLEST = 1e-9


def frame(found: Comparison) -> pd.DataFrame:
    """One row for each cell and node count that both sets have; times in seconds."""
    rows = []
    for match in found.matches:
        by_series = {d.series: d for d in match.differences}
        row: dict[str, object] = {
            "cell": match.place[0],
            "nodes": match.place[1],
            "repeats": len(match.pairs),
            "same_training": match.same_training,
        }
        for name, series in SERIES.items():
            row |= _difference(series, by_series.get(name), match)
        rows.append(row | _times(match) | {"unmatched": "; ".join(match.unmatched)})
    return pd.DataFrame(rows)


def _difference(series: str, first: Difference | None, match: Match) -> dict[str, object]:
    largest = [float(d.max()) for d in match.deviations(series).values() if len(d)]
    return {
        f"{series}_largest": max(largest, default=np.nan),
        f"{series}_first_step": first.step if first else None,
        f"{series}_a": first.one if first else np.nan,
        f"{series}_b": first.other if first else np.nan,
    }


def _times(match: Match) -> dict[str, object]:
    values: dict[str, float | None] = {
        "a": None,
        "b": None,
        "ratio": None,
        "low": None,
        "high": None,
    }
    if match.times is not None:
        one, other, ratio = match.times
        values |= {"a": one.value, "b": other.value, "ratio": ratio.value, "low": ratio.low,
                   "high": ratio.high}  # fmt: skip
    named = {f"step_seconds_{key}": value for key, value in values.items()}
    return named | {"interval": match.times[2].how if match.times else None,
                    "times": _verdict(match)}  # fmt: skip


def _verdict(match: Match) -> str:
    return {True: "inside", False: "outside", None: "not measured"}[match.times_agree]


def show(found: Comparison) -> pd.DataFrame:
    """The frame as text, step times in milliseconds."""
    shown = []
    for match in found.matches:
        line = {"Cell": match.place[0], "Nodes": str(match.place[1]),
                "Repeats": str(len(match.pairs))}  # fmt: skip
        first = {d.series: d for d in match.differences}
        for name in SERIES:
            line[name.capitalize()] = _in_words(match, first.get(name), found)
        times = match.times
        line |= {
            "A [ms]": significant(1000 * times[0].value) if times else NONE,
            "B [ms]": significant(1000 * times[1].value) if times else NONE,
            "B over A": ratio_interval(times[2].value, times[2].low, times[2].high)
            if times
            else NONE,
            "Times": _verdict(match),
        }
        shown.append(line)
    return pd.DataFrame(shown)


def _in_words(match: Match, first: Difference | None, found: Comparison) -> str:
    if not match.pairs:
        return NONE
    if first is None:
        return "equal" if match.allowed == 0 else f"within {scientific(match.allowed)}"
    return (
        f"step {first.step} of r{first.repeat}: {first.one!r} and {first.other!r} "
        f"({scientific(first.relative)})"
    )


def summary(found: Comparison, times: str) -> str:
    """Plain lines: what was held against what, each difference, and the outcome."""
    lines = [f"A: {found.one.folder}", f"B: {found.other.folder}", ""]
    for match in found.matches:
        lines.append(f"{_name(match.place)}: {_line(match, found)}")
    lines += [f"{_name(place)}: only in A" for place in found.only_one]
    lines += [f"{_name(place)}: only in B" for place in found.only_other]
    lines += ["", *_beside(found), *_intervals(found)]
    equal = found.equal(times)
    asked = "losses and gradient norms" + (" and times" if times == "interval" else "")
    return "\n".join([*lines, f"{'equal' if equal else 'DIFFERENT'} in {asked}"])


def _line(match: Match, found: Comparison) -> str:
    parts = [
        f"{d.series} differs from {_in_words(match, d, found)}" for d in match.differences
    ] or [("bit-equal" if match.allowed == 0 else "equal as asked") if match.pairs else "no run"]
    if match.lengths_differ:
        parts.append("another number of steps")
    parts += match.unmatched
    parts.append(f"{plural(len(match.pairs), 'repeat')}")
    if match.times is not None:
        ratio = match.times[2]
        bounds = ratio_interval(ratio.value, ratio.low, ratio.high)
        parts.append(f"step time B over A {bounds}, {_verdict(match)}")
    return "; ".join(parts)


def _intervals(found: Comparison) -> list[str]:
    """How the intervals of the ratios were made, each way once."""
    return list(dict.fromkeys(f"interval: {m.times[2].how}" for m in found.matches if m.times))


def _beside(found: Comparison) -> list[str]:
    """What differs beside the results: specs and environment."""
    specs: dict[str, list[str]] = {}
    for match in found.matches:
        for difference in match.spec_differences:
            specs.setdefault(difference, []).append(_name(match.place))
    everywhere = len(found.matches)
    lines = [
        f"spec {text}" + ("" if len(at) == everywhere else f" (in {', '.join(at)})")
        for text, at in specs.items()
    ]
    return lines + [f"{key}: {a} and {b}" for key, (a, b) in found.environment.items()]


def _name(place: Place) -> str:
    return f"{place[0]}, {plural(place[1], 'node')}"


def write_all(found: Comparison, times: str, folder: Path) -> None:
    """Write compare.md, compare.csv and the figure below `folder`."""
    outcome = "equal" if found.equal(times) else "**different**"
    beside = [
        *(f"{_name(place)}: only in A" for place in found.only_one),
        *(f"{_name(place)}: only in B" for place in found.only_other),
        *_beside(found),
        *_intervals(found),
    ]
    text = [
        f"# A against B: {outcome}\n",
        f"- A: {markdown_code(str(found.one.folder))}",
        f"- B: {markdown_code(str(found.other.folder))}\n",
        to_markdown(show(found)),
        *(f"- {markdown(line)}" for line in beside),
    ]
    write_text(folder / "compare.md", "\n".join(text) + "\n")
    write_text(folder / "compare.csv", frame(found).to_csv(index=False, lineterminator="\n"))
    _figure(found, folder)


def _figure(found: Comparison, folder: Path) -> None:
    """Ratio of step times with its interval, and the largest deviation of each series."""
    from pipeline.figures import scales, theme

    theme.apply()
    names = [_name(match.place) for match in found.matches]
    figure, [[left, right]] = theme.grid(2, 0.9 + 0.3 * len(names), sharey=True)
    for y, match in enumerate(found.matches):
        if match.times is not None:
            r = match.times[2]
            colour = "#0072B2" if match.times_agree else "#D55E00"
            reach = [[r.value - r.low], [r.high - r.value]]
            left.errorbar(r.value, y, xerr=reach, fmt="o", color=colour, capsize=3)
    left.axvline(1, color="#444444", lw=0.8)
    left.set_xlabel("Step time, B over A")
    table = frame(found)
    for (name, series), marker in zip(SERIES.items(), ("o", "x"), strict=True):
        largest = table[f"{series}_largest"].clip(lower=_SMALLEST).replace(np.inf, np.nan)
        right.plot(largest, range(len(names)), marker, mfc="white", label=name)
    right.set_xscale("log")
    scales.plain_powers(right.xaxis)
    right.set_xlim(_SMALLEST / 2, max(1e-3, right.get_xlim()[1]))
    right.set_xlabel(f"Largest relative difference ({_SMALLEST:g} or less: left)")
    right.legend(frameon=False, loc="best")
    scales.cell_axis(left, names)
    left.set_ylim(len(names) - 0.5, -0.5)
    theme.save(figure, folder, "compare")
