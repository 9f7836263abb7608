"""The one look of all figures, and the one way to save them with the same bytes each time.

A cell is marked by colour, marker and line style together, all fixed by its place in the study, so
it looks the same in every figure and a figure can be read in grey. The palette is that of Okabe and
Ito, which stays apart under the common kinds of colour blindness.
"""

from __future__ import annotations

import logging
import re
import textwrap
import warnings
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import MatplotlibDeprecationWarning, font_manager
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from pipeline.errors import SamestepError
from pipeline.files import atomic_path
from pipeline.fonts import FAMILY, PLAIN, fallback, printed
from pipeline.metrics import headline
from pipeline.metrics.results import Results, records
from pipeline.text import one_line

FORMATS: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Producer": "matplotlib"},
    "svg": {"Date": None},
    "png": {"Software": None},
}
"""Metadata of each, without a date."""

WIDTH_INCHES = 6.38
"""Width of the text in paper/template.typ, so that a point of a figure is a point in print."""

LEAST_POINTS = 7.0
"""No text of a figure is smaller."""

GREY = "#8A8A8A"
ACCENT = "#B3261E"
"""No colour of a cell: for what a figure shows of all of them."""

_NOTE_LETTERS, _NAME_LETTERS = 120, 24
_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A7A00")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
_DASHES: tuple[Any, ...] = (
    "", (5, 1.5), (1, 1), (5, 1.5, 1, 1.5), (9, 2), (3, 1, 1, 1, 1, 1), (2, 2), (7, 1, 2, 1),
)  # fmt: skip


def apply() -> None:
    """Set the shared theme, `samestep.mplstyle`; fonts are embedded and SVG ids do not change."""
    matplotlib.rcdefaults()  # a person's matplotlibrc would change what is saved
    # seaborn 0.13 still passes an argument of boxplots that matplotlib 3.11 has renamed.
    warnings.filterwarnings("ignore", message="vert: bool", category=MatplotlibDeprecationWarning)
    sns.set_theme(context="paper", style="whitegrid", font=PLAIN)
    families, wide = [PLAIN], fallback()
    if wide is not None:
        font_manager.fontManager.addfont(wide)
        # It has one weight, which stands for bold too.
        logging.getLogger(font_manager.__name__).setLevel(logging.ERROR)
        families.append(FAMILY)
    plt.style.use(Path(__file__).with_name("samestep.mplstyle"))
    # The last is for browsers that have none of them.
    plt.rcParams.update({"font.family": [*families, "sans-serif"], "font.sans-serif": [PLAIN]})


def semantics(results: Results) -> dict[str, Any]:
    """The looks of all arms of the study, as `lineplot` of seaborn takes them.

    Cells of one arm, which differ in their link alone, look alike and stand in panels apart.
    """
    arms = results.arms()
    # Beyond eight arms the colour repeats, and the marker is shifted so that the pair is new.
    shifted = {arm: (i + i // 8) % 8 for i, arm in enumerate(arms)}
    return {
        "hue": "arm",
        "style": "arm",
        "palette": {arm: _COLOURS[i % 8] for i, arm in enumerate(arms)},
        "markers": {arm: _MARKERS[i] for arm, i in shifted.items()},
        "dashes": {arm: _DASHES[i] for arm, i in shifted.items()},
    }


def names(results: Results, arms: Sequence[str]) -> tuple[list[str], float]:
    """Labels of these arms for an axis with a row for each, and the height of all rows in inches.

    Long labels are on several lines, what is in brackets on one, and all rows are as high as the
    highest.
    """
    fixed, shown = "\N{NO-BREAK SPACE}", []
    label_of = results.cells.drop_duplicates("arm").set_index("arm")["arm_label"]
    for arm in arms:
        label = one_line(printed(label_of[arm]))
        joined = re.sub(r"\[[^]]*]", lambda part: part[0].replace(" ", fixed), label)
        lines = textwrap.fill(joined, _NAME_LETTERS, break_on_hyphens=False)
        shown.append(lines.replace(fixed, " "))
    most = max(name.count("\n") for name in shown) + 1
    return shown, len(shown) * max(0.2, 0.04 + 0.118 * most)


def finish(
    figure: Figure,
    results: Results,
    values: pd.DataFrame,
    remark: str,
    *,
    named: bool = False,
    extra: Sequence[Artist] = (),
) -> Figure:
    """Put the legend and the notes below the panels, in space added for them.

    The legend has the arms of `values`, the rows that are drawn. The notes say which runs are
    missing, without the reasons, which page and paper give once, and what the numbers are. `named`
    is True where an axis names the cells, or what is shown is of several, in place of a legend.
    """
    cells, looks, handles = results.cells, semantics(results), list[Artist]()
    present = cells[cells["cell"].isin(values["cell"])].drop_duplicates("arm")
    for row in records(present) if not named else ():
        colour, marker, dashes = (
            looks[key][row["arm"]] for key in ("palette", "markers", "dashes")
        )
        label = textwrap.fill(one_line(printed(row["arm_label"])), 48)
        handles.append(Line2D([], [], color=colour, marker=marker, ms=5, lw=1.6,
                              ls=(0, dashes) if dashes else "-", label=label))  # fmt: skip
    notes = [f"Mixed runs: {note}." for note in headline.mixed(results)]
    endings = headline.unfinished(results).values()
    if missing := "; ".join(dict.fromkeys(sentence for sentence, _ in endings)):
        notes.insert(0, f"Not shown or incomplete: {missing}; the table of status says why.")
    notes.append(f"{headline.setting(results)}; {headline.repeats(results)}. {remark}")
    text = "\n".join(
        textwrap.fill(one_line(printed(note)), _NOTE_LETTERS, break_on_hyphens=False)
        for note in notes
    )
    note = figure.text(0.012, 0, text, ha="left", va="top", fontsize=LEAST_POINTS, color="#444444")
    stack(figure, [*handles, *extra], note)
    return figure


def stack(figure: Figure, handles: Sequence[Artist], note: Text, columns: int = 2) -> None:
    """Grow the figure by the measured heights of legend and notes and set them under the panels."""
    box = figure.legend(
        handles=handles, loc="upper center", ncol=columns, frameon=False, handlelength=3.2,
        columnspacing=1.5,
    )  # fmt: skip
    boxes = [box, note] if handles else [note]
    inches = [item.get_window_extent().height / figure.dpi for item in boxes]
    panels = float(figure.get_figheight())
    height = panels + sum(inches) + 0.16
    figure.set_figheight(height)
    below = (height - panels) / height
    # Letters drawn at another resolution take a little more room than they were laid out with.
    figure.set_layout_engine("constrained", rect=(0, below, 1, 1 - below), w_pad=0.1)
    box.set_in_layout(False)
    note.set_in_layout(False)
    box.set_bbox_to_anchor((0.5, below), transform=figure.transFigure)
    note.set_y((inches[-1] + 0.05) / height)


def nothing(results: Results, text: str = "no run finished") -> Figure:
    """A figure without points: why, and what became of the cells."""
    figure, axes = plt.subplots(figsize=(WIDTH_INCHES, 2.0), layout="constrained")
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
    return finish(figure, results, results.cells.iloc[:0], "")


def save(figure: Figure, folder: Path, name: str, formats: Iterable[str] = FORMATS) -> None:
    """Write PDF, SVG and PNG (200 dpi) without dates; equal figures give equal bytes."""
    for text in figure.findobj(Text):
        text.set_text(printed(text.get_text()))
    # Laid out once, and rounded: the solver behind the constrained layout takes its constraints in
    # no fixed order, so positions differ in the last bit, and SVG makes names out of all bits.
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
    # None at all: with a place holder of one, each format would be drawn twice.
    figure.set_layout_engine(None)
    for axes in figure.axes:
        left, bottom, width, height = (round(v, 5) for v in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))
    for kind in formats:
        with atomic_path(folder / f"{name}.{kind}") as temporary:
            figure.savefig(temporary, format=kind, dpi=200, metadata=FORMATS[kind])
    plt.close(figure)


def draw_all(names: Sequence[str], results: Results, out: Path) -> None:
    """Check equal work, draw these figures and write all formats; an empty one is an error."""
    apply()
    for name in names:
        module = import_module(f"pipeline.figures.{name}")
        results.require_equal_work(module.COMPARES, f"figure {name}")
        figure = module.draw(results)
        # seaborn leaves lines without a point; `nothing` has its text.
        if not any(
            axes.texts or axes.patches or axes.collections
            or any(np.size(line.get_xdata()) for line in axes.lines)
            for axes in figure.axes
        ):  # fmt: skip
            raise SamestepError(
                f"figure {name} is empty: pipeline/figures/{name}.py picks rows that this table "
                "has not; name metrics that it has, or return theme.nothing(results)"
            )
        save(figure, out, name)
