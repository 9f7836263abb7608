"""The one look of all figures, and the one way to save them with the same bytes each time.

A cell is told by colour, marker and line style together, all fixed by its place in the study, so a
cell looks the same in every figure and a figure can be read in grey. The palette is that of Okabe
and Ito, which stays apart under the common kinds of colour blindness.
"""

from __future__ import annotations

import logging
import textwrap
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
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
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text

from pipeline.figures import lettering, points, sheets
from pipeline.figures.slim import slim
from pipeline.files import atomic_path
from pipeline.fonts import FAMILY, PLAIN, fallback, printed
from pipeline.metrics.select import cells, missing_cells, mixed_notes, records, repeats, setting
from pipeline.text import one_line

FORMATS = ("pdf", "svg", "png")
LEAST_POINTS = 7.0
"""No text of a figure is smaller."""
_LEAST_CONTRAST = 4.5

_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A7A00")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")
_DASHES: tuple[Any, ...] = (
    "-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)), (0, (9, 2)), (0, (3, 1, 1, 1, 1, 1)),
    (0, (2, 2)), (0, (7, 1, 2, 1)),
)  # fmt: skip


# Where a point comes from. What was measured here has its cell's marker, or a disc where no cells
# are told apart; no other origin shares a marker with it or with one another.
MEASURED = "measured here"
ELSEWHERE, PROJECTED, PUBLISHED = "measured elsewhere", "projected", "published"
PROVENANCE: dict[str, Any] = {MEASURED: "o", ELSEWHERE: "p", PROJECTED: (6, 2, 0), PUBLISHED: "*"}
_SIZES = {MEASURED: 4.5, ELSEWHERE: 7.0, PROJECTED: 8.0, PUBLISHED: 9.0}


@dataclass(frozen=True)
class Style:
    """How a cell is drawn wherever it appears."""

    colour: str
    marker: str
    dashes: Any
    order: int


def apply() -> None:
    """Set the shared theme; fonts are embedded and SVG ids do not change."""
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
    plt.rcParams.update(
        {
            "font.family": families,
            "axes.edgecolor": "#444444",
            "axes.linewidth": 0.8,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": 8.5,
            "axes.labelsize": 8,
            "axes.grid.axis": "y",
            "grid.color": "#E2E2E2",
            "grid.linewidth": 0.6,
            "legend.fontsize": 7.5,
            "xtick.labelsize": 7.5,
            "ytick.labelsize": 7.5,
            "xtick.bottom": True,
            "pdf.fonttype": 42,
            "svg.hashsalt": "samestep",
            # Two dollars in a label are no formula.
            "text.parse_math": False,
            "figure.dpi": 100,
        }
    )


def styles(table: pd.DataFrame) -> dict[str, Style]:
    """Style of every cell of the study, also of those that are not in this figure.

    Cells of one arm, which differ in their link alone, look alike and stand in panels apart.
    """
    found, names = {}, cells(table)
    order = {arm: place for place, arm in enumerate(dict.fromkeys(names["arm"]))}
    for row in records(names):
        i = order[row["arm"]]
        # Beyond eight cells the colour repeats, and the marker is shifted so that the pair is new.
        found[row["cell"]] = Style(
            _COLOURS[i % 8], _MARKERS[(i + i // 8) % 8], _DASHES[(i + i // 8) % 8], i
        )
    return found


def ink(colour: str) -> str:
    """The colour for words: darkened until it stands out from white by 4.5 to 1 (WCAG 1.4.3)."""
    shades = np.array(to_rgb(colour))
    while 1.05 / (_luminance(shades) + 0.05) < _LEAST_CONTRAST:
        shades = 0.96 * shades
    red, green, blue = (float(shade) for shade in shades)
    return to_hex((red, green, blue))


def _luminance(shades: np.ndarray) -> float:
    linear = np.where(shades <= 0.04045, shades / 12.92, ((shades + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def provenance(kind: str, colour: str = "#000000") -> dict[str, Any]:
    """How a point of this origin is drawn: filled where it was measured here, else open."""
    return {
        "marker": PROVENANCE[kind], "ms": _SIZES[kind], "ls": "", "mec": colour, "mew": 1.1,
        "mfc": colour if kind == MEASURED else "white", "zorder": 7,
    }  # fmt: skip


def provenance_entry(kind: str, label: str | None = None) -> Line2D:
    """The legend's entry for points of this origin."""
    return Line2D([], [], label=label or kind, **provenance(kind))


def dodge(nodes: Sequence[int], order: int, count: int) -> list[float]:
    """Positions of one of `count` cells beside the node counts, apart on a log axis."""
    step = min(0.05, 0.36 / max(count, 1))
    return [n * 2 ** (step * (order - (count - 1) / 2)) for n in nodes]


def finish(
    figure: Figure,
    table: pd.DataFrame,
    shown: Collection[str],
    what: str,
    *,
    lines: bool = True,
    named: bool = False,
    extra: Sequence[Artist] = (),
) -> Figure:
    """Put the legend and the notes below the panels, in space added for them.

    The notes say which runs are missing, without the reasons, which page and paper give once, and
    what the numbers are; `what` is the figure's own remark. `lines` is False where only markers and
    colours tell the cells apart; `named` is True where each line has its cell's short name beside
    it, so that the notes say what these mean and no legend is needed for them.
    """
    sheet = sheets.current()
    handles = [*([] if named else _entries(table, shown, lines)), *extra]
    box = figure.legend(
        handles=handles, loc="upper center", ncol=1 if sheet.narrow else 2, frameon=False,
        handlelength=3.2, columnspacing=1.5,
    )  # fmt: skip
    missing = missing_cells(table)
    notes = []
    if missing:
        notes = [f"Not shown or incomplete: {missing}; the table of status says why."]
    notes += [f"Mixed runs: {note}." for note in mixed_notes(table)]
    key = f" {key_of_names(table, shown)}" if named else ""
    remarks = [*notes, f"{setting(table)}; {repeats(table)}. {what}{key}"]
    text = "\n".join(
        textwrap.fill(one_line(remark), sheet.letters, break_on_hyphens=False) for remark in remarks
    )
    note = figure.text(0.012, 0, text, ha="left", va="top", fontsize=LEAST_POINTS, color="#444444")
    _stack(figure, box, note)
    return figure


def key_of_names(table: pd.DataFrame, shown: Collection[str]) -> str:
    """What the short names of these cells stand for, each arm once."""
    names = cells(table)
    chosen = names[names["cell"].isin(list(shown))].drop_duplicates("arm")
    words = [f"{row['arm']} = {row['arm_label']}" for row in records(chosen)]
    return f"Cells: {'; '.join(words)}." if words else ""


def _entries(table: pd.DataFrame, shown: Collection[str], lines: bool) -> list[Line2D]:
    look, handles = styles(table), []
    names = cells(table)
    for row in records(names[names["cell"].isin(list(shown))].drop_duplicates("arm")):
        style, label = look[row["cell"]], textwrap.fill(one_line(row["arm_label"]), 48)
        handles.append(
            Line2D([], [], color=style.colour, marker=style.marker, ms=5, lw=1.6,
                   ls=style.dashes if lines else "", label=label)
        )  # fmt: skip
    return handles


def _stack(figure: Figure, box: Legend, note: Text) -> None:
    """Grow the figure by the measured heights of legend and notes and set them under the panels."""
    inches = [item.get_window_extent().height / figure.dpi for item in (box, note)]
    panels = float(figure.get_figheight())
    height = panels + sum(inches) + 0.16
    figure.set_figheight(height)
    below = (height - panels) / height
    # Letters drawn at another resolution take a little more room than they were laid out with.
    figure.set_layout_engine("constrained", rect=(0, below, 1, 1 - below), w_pad=0.07)
    box.set_in_layout(False)
    note.set_in_layout(False)
    box.set_bbox_to_anchor((0.5, below), transform=figure.transFigure)
    note.set_y((inches[1] + 0.05) / height)


def empty(figure: Figure, axes: Axes, table: pd.DataFrame) -> Figure:
    """What a figure shows when no run of the study finished: that, and what became of the cells."""
    axes.text(0.5, 0.5, "no run finished", ha="center", va="center", transform=axes.transAxes)
    return finish(figure, table, (), "")


def _settle(figure: Figure) -> None:
    """Lay out once and keep the result, rounded.

    The solver behind the constrained layout takes its constraints in no fixed order, so positions
    differ in the last bit from draw to draw, and SVG makes names out of all bits.
    """
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    else:
        figure.get_tightbbox()  # so that the ticks have their labels
    # None at all: with a place holder of one, each format would be drawn twice.
    figure.set_layout_engine(None)
    for axes in figure.axes:
        left, bottom, width, height = (round(v, 5) for v in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))


def save(figure: Figure, folder: Path, name: str, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write PDF, SVG and PNG (200 dpi) without dates; equal figures give equal bytes."""
    metadata: dict[str, dict[str, Any]] = {
        "pdf": {"CreationDate": None, "Producer": "matplotlib"},
        "svg": {"Date": None},
        "png": {"Software": None},
    }
    for text in figure.findobj(Text):
        text.set_text(printed(text.get_text()))
    _settle(figure)
    lettering.name(figure)
    written = []
    for kind in formats:
        final = folder / f"{name}.{kind}"
        with atomic_path(final) as temporary:
            figure.savefig(temporary, format=kind, dpi=200, metadata=metadata[kind])
            if kind == "svg":
                drawing = slim(temporary.read_text(encoding="utf-8"))
                drawing = lettering.keep(drawing, lettering.words(figure))
                temporary.write_text(points.add(figure, drawing), encoding="utf-8")
        written.append(final)
    plt.close(figure)
    return written
