"""From a folder of results to all that `artifact` writes: document, criteria of badges, SBOM."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import schemas
from pipeline.artifact import sbom
from pipeline.artifact.badges import Check
from pipeline.artifact.document import ROOT, render, time_analysis
from pipeline.claims.write import read_verdicts
from pipeline.errors import SamestepError
from pipeline.metrics import table
from pipeline.metrics.collect import collect_every
from pipeline.paper.numbers import collect
from pipeline.study.load import load_study


@dataclass(frozen=True)
class Artifact:
    """`text` is the Markdown of artifact.md, `bill` the SPDX document."""

    text: str
    bill: dict[str, Any]
    checks: list[Check]


def build(results: Path, *, timed: bool) -> Artifact:
    """The artifact of a finished study; `timed` also makes its paper anew and takes the time.

    Raises SamestepError where there are no metrics.
    """
    metrics = results / "metrics" / "metrics.parquet"
    if not metrics.is_file():
        raise SamestepError(
            f"{results} holds no metrics/metrics.parquet; run the study with make paper first"
        )
    study = load_study(results / "study.json")
    # A study of which a record is missing is not complete, whatever its table says.
    collect_every(study, results / "runs")
    frame = table.read(metrics, study.name)
    verdicts_file = _there(results / "claims" / "verdicts.json")
    verdicts = read_verdicts(verdicts_file, study.name) if verdicts_file else []
    manifest_file = _there(results / "tokens" / "manifest.json")
    again = "python -m pipeline tokens"
    manifest = schemas.read(manifest_file, "manifest", again) if manifest_file else None
    numbers = collect(study, frame, verdicts, manifest)
    text, checks = render(numbers, frame, verdicts, time_analysis(results) if timed else None)
    bill = sbom.document(
        study.name,
        (ROOT / "envs" / "requirements.lock").read_text(encoding="utf-8"),
        f"{numbers['date']['iso']}T00:00:00Z",
        {name: numbers["environment"][name] for name in ("python", "horovod", "samestep")},
        _image(numbers["appendix"]["image"]),
    )
    return Artifact(text, bill, checks)


def _there(path: Path) -> Path | None:
    """The path, None where there is no such file."""
    return path if path.is_file() else None


def _image(digest: str) -> dict[str, Any] | None:
    """The facts of the image of this checkout, where the runs were inside it."""
    path = _there(ROOT / "images" / "samestep.json")
    found = schemas.read(path, "image", "make image") if path else None
    return found if found and found["image_digest"] == digest else None
