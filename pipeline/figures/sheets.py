"""What figures are drawn on: the page of the paper, or a narrow screen with its panels stacked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

WIDTH_INCHES = 6.38
"""Width of the text in paper/template.typ, so that a point of a figure is a point in print."""


@dataclass(frozen=True)
class Sheet:
    """What a figure is drawn on: its width in inches, and letters in a line of its notes.

    A narrow one stacks panels: two stand below each other, more of them in pairs.
    """

    width: float
    letters: int
    narrow: bool

    def share(self, letters: int) -> int:
        """As many of these letters, which fit the wide sheet, as fit this one."""
        return round(letters * self.width / WIDTH_INCHES)


WIDE = Sheet(WIDTH_INCHES, 120, narrow=False)
NARROW = Sheet(3.4, 62, narrow=True)
"""As wide as a telephone shows it, where a letter of 7 points has 10 pixels."""
_sheet: ContextVar[Sheet] = ContextVar("sheet", default=WIDE)


def current() -> Sheet:
    """What figures are drawn on now."""
    return _sheet.get()


@contextmanager
def narrow() -> Iterator[None]:
    """Draw for a narrow screen inside of this."""
    before = _sheet.set(NARROW)
    try:
        yield
    finally:
        _sheet.reset(before)


def grid(
    count: int, height: float, *, rows: int = 1, per_line: int = 4, **share: Any
) -> tuple[Figure, list[Any]]:
    """A figure with `count` panels (at most `per_line`) times `rows`, and the used axes by row."""
    if current().narrow:
        per_line = min(per_line, 1 if count <= 2 else 2)
    lines = -(-count // per_line)
    columns = -(-count // lines)
    figure, axes = plt.subplots(
        lines * rows, columns, figsize=(current().width, height * lines * rows), squeeze=False,
        layout="constrained", **share,
    )  # fmt: skip
    blocks = []
    for row in range(rows):
        block = [
            axes[line * rows + row][column] for line in range(lines) for column in range(columns)
        ]
        for spare in block[count:]:
            spare.set_visible(False)
        blocks.append(block[:count])
    return figure, blocks


def leftmost(panels: Sequence[Axes]) -> list[Axes]:
    """Those of the first column, which have the labels of an axis that all share."""
    places = [axes.get_subplotspec() for axes in panels]
    return [
        axes
        for axes, place in zip(panels, places, strict=True)
        if place is not None and place.is_first_col()
    ]
