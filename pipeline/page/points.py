"""The page on a study of points: errors, bars, limits and every point, in `points.html.j2`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.figures.points import TEXT
from pipeline.page import TEMPLATES, looks
from pipeline.page.page import show_figure, show_table
from pipeline.tables.points import TABLES, made


def render(numbers: Mapping[str, Any], drawings: Path) -> str:
    """The page, with the figure of the folder `drawings` and every table inside it."""
    return TEMPLATES.get_template("points.html.j2").render(
        **looks("tables.js", "cues.js"),
        numbers=numbers,
        figure=show_figure(drawings, "points", TEXT),
        tables={name: show_table(name, made(name)[1], TABLES[name].caption) for name in TABLES},
    )
