"""`python -m pipeline artifact --study FILE`: description, checklist, badges and SBOM of a study.

Writes `artifact.md` and `sbom.spdx.json` to results/<study>/artifact and prints what the badges of
the ACM still lack. `--time-analysis` also makes the paper anew, aside, and says how long that took.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pipeline import options

SUMMARY = "artifact description, checklist, badge self-check and SBOM of a finished study"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the stage."""
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--study", type=options.path, help="study file, which names its results")
    place.add_argument("--results", type=options.folder, help="folder results/<study>")
    parser.add_argument("--out", type=options.new_folder, help="folder; results/<study>/artifact")
    parser.add_argument(
        "--time-analysis", action="store_true", help="make the paper anew and take the time"
    )


def run(args: argparse.Namespace) -> int:
    """Collect the facts, write both files, print every criterion that is unmet."""
    from pipeline import schemas
    from pipeline.artifact import document, sbom
    from pipeline.claims.write import read_verdicts
    from pipeline.errors import SamestepError
    from pipeline.files import write_text
    from pipeline.metrics import table
    from pipeline.metrics.emulation import load_validation
    from pipeline.paper.numbers import collect
    from pipeline.study.load import load_study, results_folder

    results = args.results or results_folder(args.study)
    if not (results / "metrics" / "metrics.parquet").is_file():
        raise SamestepError(
            f"{results} holds no metrics/metrics.parquet; run the study with make paper first"
        )
    study = load_study(results / "study.json")
    frame = table.read(results / "metrics" / "metrics.parquet", study.name)

    def given(name: str) -> Path | None:
        return results / name if (results / name).is_file() else None

    verdicts = read_verdicts(path, study.name) if (path := given("claims/verdicts.json")) else []
    manifest = (
        schemas.read(path, "manifest", "python -m pipeline tokens")
        if (path := given("tokens/manifest.json"))
        else None
    )
    validation = load_validation(path) if (path := given("emulation.json")) else None
    numbers = collect(study, frame, verdicts, manifest, validation)
    seconds = document.time_analysis(results) if args.time_analysis else None
    text, checks = document.render(numbers, frame, verdicts, seconds)
    lock = (document.ROOT / "envs" / "requirements.lock").read_text(encoding="utf-8")
    bill = sbom.document(
        study.name,
        lock,
        f"{numbers['date']['iso']}T00:00:00Z",
        {name: numbers["environment"][name] for name in ("python", "horovod", "samestep")},
        _image(document.ROOT, numbers["appendix"]["image"]),
    )
    out = args.out or results / "artifact"
    schemas.validate(bill, "sbom", str(out / "sbom.spdx.json"))
    write_text(out / "artifact.md", text)
    write_text(out / "sbom.spdx.json", json.dumps(bill, indent=1) + "\n")
    unmet = [one for one in checks if not one.met]
    print(f"{out}: artifact.md and sbom.spdx.json, {len(bill['packages'])} packages")
    for one in unmet:
        print(f"unmet  {one.badge:11}  {one.asks}: {one.grounds}")
    return 0


def _image(root: Path, digest: str) -> dict[str, Any] | None:
    """The facts of the image that lies here, where the runs were inside it."""
    from pipeline import schemas

    path = root / "images" / "samestep.json"
    found = schemas.read(path, "image", "make image") if path.is_file() else None
    return found if found and found["image_digest"] == digest else None
