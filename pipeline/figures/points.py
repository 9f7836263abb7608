"""What points of a figure say in words: titles over an SVG, which the report shows."""

from __future__ import annotations

import html
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure


class Point(Artist):
    """What a point of a figure says in words: drawn in no format, a title over it in the SVG.

    `x` and `y` are in data of the axes that it is added to by `add_artist`.
    """

    def __init__(self, x: float, y: float, text: str) -> None:
        super().__init__()
        self.x, self.y, self.text = x, y, text
        self.set_in_layout(False)

    def draw(self, renderer: Any) -> None:
        """Draw nothing."""

    def circle(self, figure: Figure) -> str:
        """An SVG circle that is not seen, at shares of the figure's width and height."""
        assert isinstance(self.axes, Axes)
        width, height = figure.bbox.size
        x, y = self.axes.transData.transform((self.x, self.y))
        left, top = 100 * x / width, 100 - 100 * y / height
        return (
            f'<circle class="point" cx="{left:.2f}%" cy="{top:.2f}%" r="6" fill="none" '
            f'pointer-events="all"><title>{html.escape(self.text)}</title></circle>'
        )


def add(figure: Figure, drawing: str) -> str:
    """`drawing`, an SVG of the figure, with the words of its points; a browser shows them."""
    points = [one.circle(figure) for one in figure.findobj(Point) if isinstance(one, Point)]
    whole, end, after = drawing.rpartition("</svg>")
    return f"{whole}{''.join(points)}{end}{after}"
