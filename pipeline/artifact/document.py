"""`artifact.md`: description and evaluation as SC asks for them, checklist and badges."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipeline.artifact import badges, checklist
from pipeline.artifact.experiments import per_claim
from pipeline.errors import SamestepError
from pipeline.metrics.select import pick
from pipeline.paper.appendix import duration
from pipeline.text import markdown, markdown_code

ROOT = Path(__file__).parents[2]


def render(
    numbers: Mapping[str, Any],
    table: pd.DataFrame,
    verdicts: Sequence[Mapping[str, Any]],
    analysis: float | None,
) -> tuple[str, list[badges.Check]]:
    """The document as Markdown, and the criteria of the badges.

    `numbers` are the paper's facts, `analysis` the seconds from records to paper, None where these
    were not measured.
    """
    commits = sorted(pick(table, "run", "git_commit")["text"].dropna().unique())
    checks = badges.checks(ROOT, numbers, [str(one) for one in commits])
    # The result is Markdown: the template escapes every value with the filter `text` or `code`.
    environment = Environment(  # noqa: S701
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["text"] = lambda value: markdown(str(value))
    environment.filters["code"] = lambda value: markdown_code(str(value))
    study = numbers["study"]
    text = environment.get_template("artifact.md.j2").render(
        **numbers,
        experiments=per_claim(table, verdicts, study["name"], study["snakemake"]),
        commits=commits,
        checks=checks,
        answers=checklist.answers(numbers),
        analysis=None if analysis is None else duration(analysis),
    )
    return text, checks


def time_analysis(results: Path, python: str = sys.executable) -> float:
    """Seconds from the records to metrics, verdicts, figures, tables and paper, made anew aside.

    Raises SamestepError where a stage fails.
    """
    from pipeline import figures, tables
    from pipeline.claims.load import files_of
    from pipeline.study.load import load_study

    study = load_study(results / "study.json")
    yardstick = _option("--yardstick", results / "yardstick.json")
    claims = [str(path) for path in files_of(study)]
    with TemporaryDirectory() as folder:
        new = {name: f"{folder}/{name}" for name in ("figures", "tables", "generated", "paper")}
        metrics, verdicts = f"{folder}/metrics.parquet", f"{folder}/verdicts.json"
        named = ["--study", str(results / "study.json")]
        judged = ["--verdicts", verdicts] if claims else []
        drawn = figures.catalogue.shown(study)
        stages = [
            ["metrics", *named, "--runs", str(results / "runs"), *yardstick,
             "--out", metrics],
            *([["claims", *named, "--metrics", metrics, "--claims", *claims, "--out", verdicts]]
              if claims else []),
            ["figure", *drawn, "--metrics", metrics, *judged, "--out", new["figures"]],
            ["table", *tables.catalogue.shown(study), "--metrics", metrics, *judged,
             "--out", new["tables"]],
            ["paper", *named, "--metrics", metrics, *judged, "--figures",
             new["figures"], "--tables", new["tables"], "--generated", new["generated"], "--out",
             new["paper"]],
        ]  # fmt: skip
        began = time.perf_counter()
        for stage in stages:
            command = [python, "-m", "pipeline", *stage]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                reason = " ".join(done.stderr.split())[-300:]
                raise SamestepError(f"stage {stage[0]} failed while its time was taken: {reason}")
        return time.perf_counter() - began


def _option(name: str, path: Path) -> list[str]:
    """The option with this file, where it is there."""
    return [name, str(path)] if path.is_file() else []
