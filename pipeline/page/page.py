"""Fill `page.html.j2`: everything on one page, with figures, style and script inside it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pipeline import figures, tables
from pipeline.claims.types import NOT_TESTABLE
from pipeline.claims.write import OUTCOMES, count, effect_text, outcome
from pipeline.errors import SamestepError
from pipeline.files import open_regular
from pipeline.metrics.counts import STATUSES
from pipeline.metrics.format import NONE, significant
from pipeline.metrics.select import fact, pick, plural, records, repeats, setting
from pipeline.paper.facts import by_reason
from pipeline.paper.numbers import collect
from pipeline.study.spec import PROFILED, REAL_TIME, TIMED
from pipeline.study.study import Study
from pipeline.tables.write import is_right, made, printed_form
from pipeline.text import one_line

_HERE = Path(__file__).parent
# Sections by the question that they answer: its name, its short name, its figures and its tables.
_SECTIONS = (
    ("parity", "Does every strategy train alike?", "Same training", ("loss_step",), ("parity",)),
    ("scaling", "How does it scale?", "Scaling", ("speedup", "step_time"),
     ("scaling", "comparisons", "step_time", "accuracy")),
    ("time", "Where does the time go?", "Time", ("time_split",),
     ("utilisation", "sends")),
    ("layouts", "What does each layout cost, and by its formula?", "Layouts", (), ("layouts",)),
    ("conditions", "What does each condition of a link cost?", "Conditions", ("what_if",),
     ("what_if",)),
    ("memory", "How much memory does it take?", "Memory", (), ("memory",)),
)  # fmt: skip
_SCRIPTS = ("runs.js", "tables.js", "cues.js")
# What the first screen and the runs show.
_RESULT = (("throughput",), ("summary",))
_RUN_TABLES = ("status",)
LOG_LINES = 20
_TAIL_BYTES, _LINE_LETTERS = 2**16, 400
# Sequences that colour a terminal, then what no page can show.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]")
# A path of more than three parts, of which the first ones only say where a checkout was.
_LONG_PATH = re.compile(r"(?<![\w.:/-])/(?:[^\s/:\"'<>|]+/)+((?:[^\s/:\"'<>|]+/){2}[^\s/:\"'<>|]+)")


@dataclass(frozen=True)
class Folders:
    """Folders of figures and runs of a study; `records` leads from the page to the last."""

    figures: Path
    runs: Path
    records: str = "runs"


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
    script = "".join((_HERE / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    groups = run_groups(table, folders.runs)
    counts = Counter(run["status"] for group in groups for run in group["runs"])
    numbers = collect(study, table, verdicts)
    # Decided claims come first, then what was measured and left open, then the rest.
    interest = dict(zip(OUTCOMES, (0, 0, 1, 2), strict=True))
    shown = [_verdict(one) for one in sorted(verdicts, key=lambda one: interest[outcome(one)])]
    # Where nothing was sent, or nothing went wrong.
    empty = {
        "sends": not numbers["split"].get("sent"),
        "status": not numbers["runs"]["exceptions"],
    }
    drawn = figures.catalogue.shown(study)
    tabled = [name for name in tables.catalogue.shown(study) if not empty.get(name)]

    def figures_of(names: Iterable[str]) -> list[Any]:
        return [_figure(folders.figures, name) for name in names if name in drawn]

    def tables_of(names: Iterable[str]) -> list[Any]:
        return [_table(name, table) for name in names if name in tabled]

    sections = [
        {"name": name, "question": question, "short": short, "figures": figures_of(of_figures),
         "tables": tables_of(of_tables)}
        for name, question, short, of_figures, of_tables
        in [*_SECTIONS, ("more", "What else is there?", "More", *_unnamed())]
    ]  # fmt: skip
    runs = table[table["level"] == "run"]
    return environment.get_template("page.html.j2").render(
        style=Markup((_HERE / "style.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        numbers=numbers,
        setting=setting(table),
        repeats=repeats(table),
        # In full; the table of the environment shortens the hashes.
        provenance=[
            ("Git commit", fact(runs, "git_commit")),
            ("Image digest", fact(runs, "image_digest")),
            ("Token manifest SHA-256", ", ".join(sorted(runs["data"].dropna().unique())) or NONE),
            ("Samestep", fact(runs, "version:samestep")),
        ],
        over_tcp=over_tcp(table),
        counts=[(status, counts[status]) for status in STATUSES if counts[status]],
        verdicts=shown,
        tested=[one for one in shown if one["verdict"] != NOT_TESTABLE],
        untested=by_reason([one for one in shown if one["verdict"] == NOT_TESTABLE]),
        verdict_counts=list(count(verdicts).items()),
        result={"figures": figures_of(_RESULT[0]), "tables": tables_of(_RESULT[1])},
        sections=[one for one in sections if one["figures"] or one["tables"]],
        run_tables=tables_of(_RUN_TABLES),
        environment=_table("environment", table),
        groups=groups,
        records=folders.records,
        exceptions=bool(set(counts) - {"ok"}),
        log_lines=LOG_LINES,
        none_shown=NONE,
    )


def over_tcp(table: pd.DataFrame) -> str:
    """The number of runs in which NCCL sent over TCP sockets, in words; empty where it did not."""
    number = int((table["metric"] == "nccl_tcp").sum())
    return plural(number, "run") if number else ""


def _unnamed() -> tuple[list[str], list[str]]:
    """Figures and tables that no section names: new files show up without an edit here."""
    named = [*_RESULT[0], *(name for section in _SECTIONS for name in section[3])]
    named_tables = [*_RESULT[1], *_RUN_TABLES, "environment"]
    named_tables += [name for section in _SECTIONS for name in section[4]]
    return (
        [name for name in figures.names() if name not in named],
        [name for name in tables.names() if name not in named_tables],
    )


def _figure(folder: Path, name: str) -> dict[str, Any]:
    """A figure as a data URI, with its words; in an image it runs no script."""
    path = folder / f"{name}.svg"
    if not path.is_file():
        raise SamestepError(f"{path} does not exist; run `python -m pipeline figure {name}` first")
    source = base64.b64encode(path.read_bytes()).decode("ascii")
    caption, title = figures.captions()[name], name.replace("_", " ").capitalize()
    return {
        "name": name,
        "title": title,
        "caption": caption,
        "alt": f"{title}: {caption.split('. ')[0]}",
        "source": f"data:image/svg+xml;base64,{source}",
    }


def _table(name: str, table: pd.DataFrame) -> dict[str, Any]:
    """A table as texts, with the columns that are aligned right."""
    shown, caption = printed_form(made(name, table)[1], tables.captions()[name])
    rights = is_right(shown)
    texts = [[one_line(str(cell)) for cell in row] for row in shown.itertuples(index=False)]
    return {
        "name": name,
        "title": name.replace("_", " ").capitalize(),
        "caption": caption,
        "heads": list(zip(shown.columns, rights, strict=True)),
        "rows": [list(zip(row, rights, strict=True)) for row in texts],
    }


def _verdict(one: Mapping[str, Any]) -> dict[str, Any]:
    """A verdict with its numbers as texts."""
    texts = {"measured": effect_text(one), "claimed": NONE, "published": NONE}
    if one["claimed"]:
        texts["claimed"] = one["claimed"]["text"]
    if one["published"]:
        texts["published"] = significant(one["published"]["value"])
    return {"predicted": None, **one, "verdict": outcome(one), **texts}


def run_groups(table: pd.DataFrame, runs: Path) -> list[dict[str, Any]]:
    """The runs of each cell at each number of nodes, those with an exception first.

    `seconds` of a run is its median step time, of a group the median of these; None where there is
    none, as of profiled runs. `runs` is the folder in which their logs and steps lie.
    """
    times = pick(table, "run", "step_seconds").set_index("run_id")["value"]
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for level, kind in (("run", TIMED), ("real_time", REAL_TIME), ("profile", PROFILED)):
        for row in records(pick(table, level, "status")):
            name, seconds = row["run_id"].partition("/")[2], times.get(row["run_id"])
            steps, (log, note) = runs / name / "steps.jsonl", log_end(runs / name / "log.txt")
            found.setdefault((row["label"], int(row["nodes"])), []).append({
                "name": name,
                "repeat": str(row["repeat"]) if kind == TIMED else kind,
                "status": row["text"],
                "reason": "" if pd.isna(row["reason"]) else tidy(row["reason"]),
                "seconds": seconds,
                "step_time": NONE if seconds is None else significant(1000 * seconds),
                "log": log,
                "log_note": note,
                "has_steps": steps.is_file() and steps.stat().st_size > 0,
            })  # fmt: skip
    groups = []
    for (label, nodes), own in found.items():
        known = [run["seconds"] for run in own if run["seconds"] is not None]
        seconds = median(known) if known else None
        groups.append({
            "label": label,
            "nodes": nodes,
            "counts": list(Counter(run["status"] for run in own).items()),
            "seconds": seconds,
            "milliseconds": "" if seconds is None else significant(1000 * seconds),
            "exceptions": any(run["status"] != "ok" for run in own),
            "runs": sorted(own, key=lambda run: run["status"] == "ok"),
        })  # fmt: skip
    return sorted(groups, key=lambda group: not group["exceptions"])


def log_end(path: Path) -> tuple[tuple[str, ...], str]:
    """The last lines of a log, fit to be shown, and one line that says what they are."""
    try:
        with open_regular(path) as stream:
            stream.seek(max(path.stat().st_size - _TAIL_BYTES, 0))
            text = stream.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return (), "No log: the run folder holds no log.txt."
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return (), "The log is empty."
    shown = tuple(tidy(line) for line in lines[-LOG_LINES:])
    return shown, "The end of the log" if len(lines) > LOG_LINES else "The log"


def tidy(line: str) -> str:
    """`line` without control characters and the folders that a path began with, and cut to length.

    So the page says the same wherever the checkout lies; the log itself keeps everything.
    """
    plain = _LONG_PATH.sub(r".../\1", _CONTROLS.sub("", _ESCAPES.sub("", line)))
    return plain if len(plain) <= _LINE_LETTERS else f"{plain[:_LINE_LETTERS]} ..."
