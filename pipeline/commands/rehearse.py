"""Rehearsal of every stage after training, before the first run: what cannot end is found early.

Each stage is run by its own arguments on records of the study's cells, nodes and links of which
none has a measurement, in a temporary folder. So claims, labels, tables, the tools of the paper and
the page are tried; intervals and figures are not, since they take most of the time.
"""

from __future__ import annotations

import argparse
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipeline import figures, tables
from pipeline.archive import layout
from pipeline.commands.stages import STAGES
from pipeline.errors import SamestepError
from pipeline.files import write_text
from pipeline.records import RunRecord, texts
from pipeline.records.step_rules import steps_sha256
from pipeline.resolved import ResolvedRun, runs_of
from pipeline.study.expansion import every_run
from pipeline.study.study import Study

_BLANK = '<svg xmlns="http://www.w3.org/2000/svg" width="640" height="9" viewBox="0 0 640 9"/>'


def after_training(study: Study, results: Path) -> list[tuple[str, ...]]:
    """Names and arguments of the stages from the records on, in their order, as rules call them.

    What the paper is made from lies beside `results`.
    """
    of_study = ("--study", str(results / layout.STUDY_FILE))
    metrics = ("--metrics", str(results / layout.METRICS_FILE))
    verdicts = str(results / "claims" / "verdicts.json")
    judged = ("--verdicts", verdicts) if study.claims else ()
    runs = ("--runs", str(results / "runs"))
    drawn, tabled = ("--figures", str(results / "figures")), ("--tables", str(results / "tables"))
    into = ("--generated", str(results.parent / "generated"), "--out", str(results / "paper"))
    out = [("--out", where) for _, where in (drawn, tabled)]
    claims = [("claims", *of_study, *metrics, "--out", verdicts)] if study.claims else []
    return [
        ("metrics", *of_study, *runs, "--out", metrics[1]),
        *claims,
        ("figure", *figures.catalogue.shown(study), *metrics, *out[0]),
        ("table", *tables.catalogue.shown(study), *metrics, *out[1]),
        ("paper", *of_study, *metrics, *judged, *drawn, *tabled, *into),
        ("page", *of_study, *metrics, *judged, *drawn, *runs,
         "--out", str(results / layout.REPORT_FILE)),
    ]  # fmt: skip


def rehearse(study: Study) -> None:
    """Run the stages after training on a record of each run that says that it did not finish.

    Drawings are left blank, and each run is made once. Raises SamestepError, which names the stage.
    """
    study = study.but(repeats=1, profile=study.profile_steps and {"steps": study.profile_steps})
    with TemporaryDirectory(prefix="samestep-rehearsal-") as folder:
        results = Path(folder) / study.name
        write_text(results / layout.STUDY_FILE, json.dumps(study.to_dict()))
        for run in runs_of(study, every_run):
            # As `write_record` does, but for the checks, which `metrics` makes as it reads.
            for name, text in texts(RunRecord(_unfinished(run), [])).items():
                write_text(results / "runs" / run.spec.folder / name, text)
        for name in figures.catalogue.shown(study):
            write_text(results / "figures" / f"{name}.svg", _BLANK)
        for name, *words in after_training(study, results):
            if name == "figure":
                continue
            parser = argparse.ArgumentParser(name)
            STAGES[name].add_arguments(parser)
            try:
                with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                    STAGES[name].run(parser.parse_args(words))
            except (SamestepError, OSError) as error:
                raise SamestepError(f"`{name}` would fail after the last run: {error}") from error
            except Exception as error:
                error.add_note(f"stage {name}")
                raise


def _unfinished(run: ResolvedRun) -> dict[str, Any]:
    """The content of run.json of a run without a measurement."""
    spec, now, none = run.spec, datetime.now(UTC).isoformat(timespec="seconds"), "0" * 64
    return {
        "schema_version": 1, "run_id": spec.run_id, "spec": spec.to_dict(),
        "spec_sha256": spec.sha256(), "steps_sha256": steps_sha256([]),
        "status": "unsupported", "reason": "this is a rehearsal",
        "origin": "measured", "started_at": now, "ended_at": now,
        "versions": {"python": "0", "samestep": "0", "torch": "0", "numpy": "0"},
        "hardware": {"cpu_model": "none", "num_cores": 1, "memory_bytes": 1, "gpus": []},
        "data": {"manifest_sha256": none, "tokenizer_sha256": none},
        "execution": {"launcher": "none", "world_size": spec.world.size, "threads_per_rank": 1,
                      "backend": spec.world.backend, "network": "loopback",
                      "network_reason": "this is a rehearsal",
                      "layout": run.layout.to_dict()},
        "precision": None, "model": None, "ranks": [],
        "provenance": {"git_commit": None, "git_dirty": None, "image_digest": None},
    }  # fmt: skip
