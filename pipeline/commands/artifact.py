"""`python -m pipeline artifact --study smoke`: description, checklist, badges and SBOM of a study.

Writes `artifact.md` and `sbom.spdx.json` to results/<study>/artifact and prints what the badges of
the ACM still lack. `--time-analysis` also makes the paper anew, aside, and says how long that took.
"""

from __future__ import annotations

import argparse
import json

from pipeline import options

SUMMARY = "artifact description, checklist, badge self-check and SBOM of a finished study"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the stage."""
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--study", type=options.study, help=options.STUDY)
    place.add_argument("--results", type=options.folder, help="folder results/<study>")
    parser.add_argument("--out", type=options.new_folder, help="folder; results/<study>/artifact")
    parser.add_argument(
        "--time-analysis", action="store_true", help="make the paper anew and take the time"
    )


def run(args: argparse.Namespace) -> int:
    """Write both files, print every criterion that is unmet."""
    from pipeline import schemas
    from pipeline.artifact.build import build
    from pipeline.files import write_text
    from pipeline.study.load import results_folder

    results = args.results or results_folder(args.study)
    made, out = build(results, timed=args.time_analysis), args.out or results / "artifact"
    schemas.validate(made.bill, "sbom", str(out / "sbom.spdx.json"))
    write_text(out / "artifact.md", made.text)
    write_text(out / "sbom.spdx.json", json.dumps(made.bill, indent=1) + "\n")
    print(f"{out}: artifact.md and sbom.spdx.json, {len(made.bill['packages'])} packages")
    for one in made.checks:
        if not one.met:
            print(f"unmet  {one.badge:11}  {one.asks}: {one.grounds}")
    return 0
