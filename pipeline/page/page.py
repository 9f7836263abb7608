"""Fill `page.html.j2`: everything on one page, with figures, style and script inside it.

`points.html.j2` is the page on a study of points.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline import figures, tables
from pipeline.claims.types import NOT_TESTABLE, VERDICTS
from pipeline.claims.write import count, in_words
from pipeline.errors import SamestepError
from pipeline.files import open_regular
from pipeline.metrics import headline
from pipeline.metrics.results import STATUSES, Results, records
from pipeline.page import TEMPLATES, looks
from pipeline.paper.facts import by_reason
from pipeline.paper.numbers import collect
from pipeline.study.spec import PROFILED, REAL_TIME, TIMED
from pipeline.study.study import Study
from pipeline.tables.write import is_right, made, printed_form
from pipeline.text import NONE, one_line, significant

# Sections by the question that they answer: name, short name, and the figures and tables in it.
_SECTIONS = (
    ("parity", "Does every strategy train alike?", "Same training", ("loss_step", "parity")),
    ("scaling", "How does it scale?", "Scaling",
     ("switches", "speedup", "step_time", "scaling", "comparisons", "accuracy")),
    ("time", "Where does the time go?", "Time", ("time_split", "utilisation", "sends")),
    ("layouts", "What does each layout cost, and by its formula?", "Layouts", ("layouts",)),
    ("conditions", "What does each condition of a link cost?", "Conditions", ("what_if",)),
    ("memory", "How much memory does it take?", "Memory", ("memory",)),
)  # fmt: skip
# What the template has in places of its own: the first screen, the runs and the environment.
_PLACED = ("throughput", "summary", "status", "environment")
LOG_LINES = 20
_TAIL_BYTES, _LINE_LETTERS = 2**16, 400
# Sequences that colour a terminal, then what no page can show.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]")
# A path of more than three parts, of which the first ones only say where a checkout was.
_LONG_PATH = re.compile(r"(?<![\w.:/-])/(?:[^\s/:\"'<>|]+/)+((?:[^\s/:\"'<>|]+/){2}[^\s/:\"'<>|]+)")


def render(
    study: Study,
    results: Results,
    verdicts: Sequence[dict[str, Any]],
    drawings: Path,
    runs: Path,
    records_at: str = "runs",
) -> str:
    """The page; equal inputs give equal text. Raises SamestepError on a missing part.

    `drawings` and `runs` are the folders of the figures and the runs; `records_at` leads from the
    page to the latter.
    """
    groups = run_groups(results, runs)
    counts = Counter(run["status"] for group in groups for run in group["runs"])
    numbers = collect(study, results, verdicts)
    # Decided claims come first, then what was measured and left open, then the rest.
    interest = dict(zip(VERDICTS, (0, 0, 1, 2), strict=True))
    shown = [
        {"predicted": None, **one, **in_words(one)}
        for one in sorted(verdicts, key=lambda one: interest[one["verdict"]])
    ]
    # Empty where nothing was sent, no two cells ran on as many nodes, or nothing went wrong.
    has_rows = {"sends": numbers["split"].get("sent"), "comparisons": numbers["study"]["pairs"],
                "status": numbers["runs"]["exceptions"]}  # fmt: skip
    drawn = {
        name: show_figure(drawings, name, figures.catalogue.captions[name])
        for name in figures.catalogue.shown(study)
    }
    tabled = {
        name: show_table(name, made(name, results)[1], tables.catalogue.captions[name])
        for name in tables.catalogue.shown(study)
        if has_rows.get(name, True)
    }
    # New figures and tables show up without an edit here.
    named = {*_PLACED, *(name for section in _SECTIONS for name in section[-1])}
    others = tuple(name for name in {**drawn, **tabled} if name not in named)
    sections = [
        {"name": name, "question": question, "short": short,
         "figures": [drawn[one] for one in names if one in drawn],
         "tables": [tabled[one] for one in names if one in tabled]}
        for name, question, short, names in (
            *_SECTIONS, ("more", "What else is there?", "More", others)
        )
    ]  # fmt: skip
    data = results.runs["data"].dropna().unique()
    return TEMPLATES.get_template("page.html.j2").render(
        **looks("runs.js", "tables.js", "cues.js"),
        numbers=numbers,
        setting=headline.setting(results),
        repeats=headline.repeats(results),
        # In full; the table of the environment shortens the hashes.
        provenance=[
            ("Git commit", results.fact("git_commit")),
            ("Image digest", results.fact("image_digest")),
            ("Token manifest SHA-256", ", ".join(sorted(data)) or NONE),
            ("Samestep", results.fact("version:samestep")),
        ],
        # Runs in which NCCL sent over TCP sockets.
        over_tcp=int((results.table["metric"] == "nccl_tcp").sum()),
        counts=[(status, counts[status]) for status in STATUSES if counts[status]],
        verdicts=shown,
        tested=[one for one in shown if one["verdict"] != NOT_TESTABLE],
        untested=by_reason([one for one in shown if one["verdict"] == NOT_TESTABLE]),
        verdict_counts=list(count(verdicts).items()),
        drawn=drawn,
        tabled=tabled,
        sections=[one for one in sections if one["figures"] or one["tables"]],
        groups=groups,
        records=records_at,
        exceptions=bool(set(counts) - {"ok"}),
        log_lines=LOG_LINES,
        none_shown=NONE,
    )


def render_points(numbers: Mapping[str, Any], drawings: Path) -> str:
    """The page on a study of points: the figure of the folder `drawings`, and every table."""
    from pipeline.figures.points import TEXT  # imported here: it predicts every point
    from pipeline.tables import points

    captions = {name: table.caption for name, table in points.TABLES.items()}
    return TEMPLATES.get_template("points.html.j2").render(
        **looks("tables.js", "cues.js"),
        numbers=numbers,
        figure=show_figure(drawings, "points", TEXT),
        tables={n: show_table(n, points.made(n)[1], caption) for n, caption in captions.items()},
    )


def show_figure(folder: Path, name: str, caption: str) -> dict[str, Any]:
    """A figure as a data URI, with its words; in an image it runs no script."""
    path = folder / f"{name}.svg"
    if not path.is_file():
        raise SamestepError(f"{path} does not exist; run `python -m pipeline figure {name}` first")
    source = base64.b64encode(path.read_bytes()).decode("ascii")
    title = name.replace("_", " ").capitalize()
    return {
        "name": name,
        "title": title,
        "caption": caption,
        "alt": f"{title}: {caption.split('. ')[0]}",
        "source": f"data:image/svg+xml;base64,{source}",
    }


def show_table(name: str, shown: pd.DataFrame, caption: str) -> dict[str, Any]:
    """A table as texts, with the columns that are aligned right."""
    shown, caption = printed_form(shown, caption)
    rights = is_right(shown)
    texts = [[one_line(str(cell)) for cell in row] for row in shown.itertuples(index=False)]
    return {
        "name": name,
        "title": name.replace("_", " ").capitalize(),
        "caption": caption,
        "heads": list(zip(shown.columns, rights, strict=True)),
        "rows": [list(zip(row, rights, strict=True)) for row in texts],
    }


def run_groups(results: Results, runs: Path) -> list[dict[str, Any]]:
    """The runs of each cell at each number of nodes, those with an exception first.

    A profiled run has no step time. `runs` is the folder in which their logs and steps lie.
    """
    times = results.pick("run", "step_seconds").set_index("run_id")["value"]
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for level, kind in (("run", TIMED), ("real_time", REAL_TIME), ("profile", PROFILED)):
        for row in records(results.pick(level, "status")):
            name, seconds = row["run_id"].partition("/")[2], times.get(row["run_id"])
            steps, (log, note) = runs / name / "steps.jsonl", log_end(runs / name / "log.txt")
            groups.setdefault((row["label"], int(row["nodes"])), []).append({
                "name": name,
                "repeat": str(row["repeat"]) if kind == TIMED else kind,
                "status": row["text"],
                "reason": "" if pd.isna(row["reason"]) else tidy(row["reason"]),
                "step_time": NONE if seconds is None else significant(1000 * seconds),
                "log": log,
                "log_note": note,
                "has_steps": steps.is_file() and steps.stat().st_size > 0,
            })  # fmt: skip
    shown = [
        {"label": label, "nodes": nodes, "counts": Counter(run["status"] for run in own),
         "runs": sorted(own, key=lambda run: run["status"] == "ok")}
        for (label, nodes), own in groups.items()
    ]  # fmt: skip
    return sorted(shown, key=lambda group: set(group["counts"]) == {"ok"})


def log_end(path: Path) -> tuple[tuple[str, ...], str]:
    """The last lines of a log, fit to be shown, and one line that says what they are.

    What lies elsewhere is no log of this run, and would come with the page to whoever gets that.
    """
    if path.is_symlink():
        return (), "The log is a symlink, which is not followed."
    try:
        with open_regular(path) as stream:
            stream.seek(max(path.stat().st_size - _TAIL_BYTES, 0))
            text = stream.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return (), "No log: the run folder holds no log.txt."
    except OSError as error:
        return (), f"The log cannot be read: {error.strerror or error}."
    lines = [tidy(line) for line in text.splitlines() if line.strip()]
    return tuple(lines[-LOG_LINES:]), "The end of the log" if lines else "The log is empty."


def tidy(line: str) -> str:
    """`line` without control characters and the folders that a path began with, and cut to length.

    So the page says the same wherever the checkout lies; the log itself keeps everything.
    """
    plain = _LONG_PATH.sub(r".../\1", _CONTROLS.sub("", _ESCAPES.sub("", line)))
    return plain if len(plain) <= _LINE_LETTERS else f"{plain[:_LINE_LETTERS]} ..."
