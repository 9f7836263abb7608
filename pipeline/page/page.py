"""Fill `page.html.j2`: everything on one page, with figures, style and script inside it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pipeline import figures, tables
from pipeline.claims.write import OUTCOMES, count, outcome
from pipeline.documents import MAX_MADE_BYTES, read_text
from pipeline.errors import SamestepError
from pipeline.metrics.format import NONE, significant, with_interval
from pipeline.metrics.select import fact, repeats, setting
from pipeline.page.runs import LOG_LINES, run_rows
from pipeline.paper.numbers import collect
from pipeline.study.study import Study
from pipeline.tables.status import STATUSES

_HERE = Path(__file__).parent
# What a reader asks first; everything else follows in alphabetical order.
_FIRST_FIGURES = ("throughput", "speedup", "step_time")
_FIRST_TABLES = ("status", "step_time", "scaling", "comparisons")
# Tables with a section of their own: the claims are shown with their verdicts.
_ELSEWHERE = ("claims", "environment")
# The caption stands outside of the box in which a wide table scrolls.
_TABLE = re.compile(r"<table><caption>[^<]*</caption>(.*?)</table>", re.DOTALL)


@dataclass(frozen=True)
class Folders:
    """Where the figures, the tables and the runs of a study are."""

    figures: Path
    tables: Path
    runs: Path


def render(
    study: Study,
    table: pd.DataFrame,
    verdicts: Sequence[dict[str, Any]],
    folders: Folders,
) -> str:
    """The page; equal inputs give equal text. Raises SamestepError on a missing part."""
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (_HERE / "runs.js").read_text(encoding="utf-8")
    rows = run_rows(study, table, folders.runs)
    counts = Counter(row.status for row in rows)
    shown = [name for name in tables.catalogue.shown(study) if name not in _ELSEWHERE]
    return environment.get_template("page.html.j2").render(
        style=Markup((_HERE / "style.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        numbers=collect(study, table, verdicts),
        setting=setting(table),
        repeats=repeats(table),
        provenance=_provenance(table),
        counts=[(status, counts[status]) for status in STATUSES if counts[status]],
        verdicts=[_verdict(one) for one in sorted(verdicts, key=_interest)],
        verdict_counts=list(count(verdicts).items()),
        figures=_figures(folders.figures, figures.catalogue.shown(study)),
        tables=[_table(folders.tables, name) for name in _order(shown, _FIRST_TABLES)],
        environment=_table(folders.tables, "environment"),
        runs=rows,
        log_lines=LOG_LINES,
        none_shown=NONE,
    )


def _order(names: Sequence[str], first: Sequence[str]) -> list[str]:
    return [n for n in first if n in names] + [n for n in names if n not in first]


def _figures(folder: Path, names: Sequence[str]) -> list[dict[str, str]]:
    """Every figure of the study as a data URI; an SVG in an image can run no script."""
    captions = figures.captions()
    return [
        {
            "name": name,
            "title": name.replace("_", " ").capitalize(),
            "caption": captions[name],
            "alt": f"{name.replace('_', ' ').capitalize()}: {captions[name].split('. ')[0]}",
            "source": f"data:image/svg+xml;base64,{_encoded(folder / f'{name}.svg')}",
        }
        for name in _order(names, _FIRST_FIGURES)
    ]


def _encoded(path: Path) -> str:
    if not path.is_file():
        raise SamestepError(
            f"{path} does not exist; run `python -m pipeline figure {path.stem}` first"
        )
    return base64.b64encode(path.read_bytes()).decode("ascii")


def _table(folder: Path, name: str) -> dict[str, Any]:
    """Caption and content of a page that the stage `table` wrote, which escapes every cell."""
    path = folder / f"{name}.html"
    if not path.is_file():
        raise SamestepError(f"{path} does not exist; run `python -m pipeline table {name}` first")
    parts = _TABLE.findall(read_text(path, "table", SamestepError, max_bytes=MAX_MADE_BYTES))
    if len(parts) != 1:
        raise SamestepError(
            f"{path} holds {len(parts)} tables, not one; "
            f"run `python -m pipeline table {name}` again"
        )
    return {
        "name": name,
        "title": name.replace("_", " ").capitalize(),
        "caption": tables.captions()[name],
        "html": Markup(f"<table>{parts[0]}</table>"),
    }


def _interest(one: Mapping[str, Any]) -> int:
    """Decided claims come first, then what was measured and left open, then the rest."""
    return (0, 0, 1, 2)[OUTCOMES.index(outcome(one))]


def _verdict(one: Mapping[str, Any]) -> dict[str, Any]:
    """A verdict with its numbers as texts."""
    effect, published, claimed = one["effect"], one["published"], one["claimed"]
    return {
        **one,
        "verdict": outcome(one),
        "measured": NONE
        if effect is None
        else with_interval(effect["value"], effect["low"], effect["high"]),
        "claimed": NONE if claimed is None else claimed["text"],
        "published": NONE if published is None else significant(published["value"]),
    }


def _provenance(table: pd.DataFrame) -> list[tuple[str, str]]:
    """Where the numbers are from, in full; the table of the environment shortens the hashes."""
    runs = table[table["level"] == "run"]
    return [
        ("Git commit", fact(runs, "git_commit")),
        ("Image digest", fact(runs, "image_digest")),
        ("Token manifest SHA-256", ", ".join(sorted(runs["data"].dropna().unique())) or NONE),
        ("Samestep", fact(runs, "version:samestep")),
    ]
