"""What the benches share: options, facts of machine and source, stages, turns and results."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.files import write_text
from pipeline.machine.facts import hardware
from pipeline.machine.source import provenance
from pipeline.metrics.statistics import values_interval
from pipeline.study.expansion import tokens_spec
from pipeline.study.study import Study

ROOT = Path(__file__).resolve().parents[2]
STUDY = ROOT / "workflow/config/smoke/study.yaml"


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Options of a bench with this docstring: where its results go, and what it adds."""
    made = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    made.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    return made


def about() -> dict[str, Any]:
    """When, where and of which source something is measured."""
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(),
        "git_commit": provenance()["git_commit"],
    }


def write(out: Path, result: Mapping[str, Any]) -> None:
    """Write the results so far; a bench of many minutes may be stopped."""
    write_text(out, json.dumps(result, indent=1) + "\n")


def stage(*words: str) -> None:
    """`python -m pipeline WORDS`; what it says is shown only where it fails."""
    command = [sys.executable, "-m", "pipeline", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{words[0]} failed: {done.stderr[-2000:]}")


def make_tokens(study: Study, folder: Path) -> Path:
    """Token shards of a study, in `tokens` below the folder."""
    write_text(folder / "tokens.json", json.dumps(tokens_spec(study)))
    stage("tokens", f"--spec={folder}/tokens.json", f"--out={folder}/tokens", "--num-proc=2")
    return folder / "tokens"


def in_turn(
    works: Mapping[str, Callable[[], float]], goes_on: Callable[[int], bool]
) -> dict[str, list[float]]:
    """Figures of each work in rounds of all of them, in an order that is drawn anew each time.

    So drift of the machine hits them alike. The first round warms up and is left out; before each
    further one `goes_on` is asked, with the number of those that count so far.
    """
    figures: dict[str, list[float]] = {name: [] for name in works}
    order, done = random.Random(2022), -1
    while done < 0 or goes_on(done):
        for name in order.sample(list(works), len(works)):
            figures[name].append(works[name]())
        done += 1
    return {name: taken[1:] for name, taken in figures.items()}


def shown(values: Sequence[float]) -> dict[str, float]:
    """Median and its interval."""
    interval = values_interval(values)
    return {"median": interval.value, "low": interval.low, "high": interval.high}
