"""The paper of a study of points: figure, tables, numbers and `paper/points.md`."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from pipeline.cost import bars, score
from pipeline.figures import points as figure
from pipeline.figures import theme
from pipeline.paper.export import write_paper
from pipeline.study.load import PointsStudy
from pipeline.tables.points import TABLES, made
from pipeline.tables.write import write_all
from pipeline.text import listed

FILE = "points.md"
CAPTIONS = {"points": figure.TEXT}


def write(study: PointsStudy, generated: Path, out: Path) -> dict[str, Any]:
    """Write figure, tables and paper below `out`; returns the numbers that the paper states."""
    theme.apply()
    theme.save(figure.draw(), out / "figures", "points")
    for name, declared in TABLES.items():
        write_all(*made(name), declared.caption, out / "tables", name)
    numbers = collect(study)
    parts = out / "figures", out / "tables", generated, out / "paper"
    write_paper(numbers, *parts, FILE, CAPTIONS)
    return numbers


def collect(study: PointsStudy) -> dict[str, Any]:
    """Every number and sentence that manuscript and page may use; JSON types only."""
    sets, by_set, rows = score.sets(), score.errors_by("points"), bars.rows()
    worlds = [int(row["gpus"]) for row in score.points()]
    better = {
        way: sum(row["model"] < row[way] for row in by_set) for way in ("constant", "neighbour")
    }
    band = {which: f"{100 * score.in_band(which):.0f}" for which in ("out", "own")}
    day = study.day
    command = f"make paper STUDY={study.name}"
    return {
        "study": {"name": study.name, "title": study.title, "command": command},
        "date": {"iso": day.isoformat(), "text": f"{day.day} {day:%B %Y}"},
        "points": {
            "scored": f"{len(score.every()):,}",
            "sets": len(sets),
            "suspect": sum(row["suspect"] for row in sets),
            "untimed": f"{sum(row['untimed'] for row in sets):,}",
            "gpus": f"{min(worlds)} to {max(worlds):,}",
            "devices": listed(row["device"] for row in score.errors_by("device")),
        },
        "finding": "Without a constant derived from the set, the model's mean error is below that "
        f"of the best constant utilisation in {better['constant']} of {len(sets)} sets, and below "
        f"that of the nearest neighbour in {better['neighbour']}; its 90 % band holds "
        f"{band['out']} % of the points.",
        # Each set counts once: the mean error of the set in the middle.
        "median": {way: f"{100 * median(row[way] for row in by_set):.0f}" for way in score.WAYS},
        "band": band,
        "bars": {
            "met": sum(row["verdict"] == "met" for row in rows),
            "all": len(rows),
            "missed": bars.missed(),
            "note": bars.NOTE,
        },
        "limits": list(bars.LIMITS),
    }  # fmt: skip
