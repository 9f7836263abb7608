"""`python -m pipeline claims --study FILE --metrics FILE --out verdicts.json`."""

from __future__ import annotations

import argparse

from pipeline import options

SUMMARY = "verdicts on the published claims that a study names"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the stage."""
    parser.add_argument("--study", type=options.study, required=True, help=options.STUDY)
    parser.add_argument("--metrics", type=options.path, required=True, help="metrics.parquet")
    parser.add_argument(
        "--claims",
        type=options.path,
        nargs="+",
        help="files of claims; without it those that the study names",
    )
    parser.add_argument(
        "--out", type=options.new_file, required=True, help="verdicts.json to write"
    )
    parser.add_argument(
        "--readme", type=options.path, help="Markdown file whose marked table is renewed"
    )


def run(args: argparse.Namespace) -> int:
    """Judge every claim, write the verdicts, and print how many there are of each."""
    from pipeline.claims import readme
    from pipeline.claims.judge import judge_all
    from pipeline.claims.load import files_of, load_claims
    from pipeline.claims.worlds import Evidence
    from pipeline.claims.write import counted, to_dict, write_verdicts
    from pipeline.errors import ClaimError
    from pipeline.metrics import table
    from pipeline.metrics.emulation import bias_of
    from pipeline.study.load import load_study

    study = load_study(args.study)
    files = args.claims or files_of(study)
    if not files:
        raise ClaimError(f"study {study.name!r} names no claims; add the key `claims` to it")
    claims = load_claims(*files)
    metrics = table.read(args.metrics, study.name)
    verdicts = judge_all(claims, Evidence(study, metrics, bias_of(metrics)))
    write_verdicts(study.name, verdicts, args.out)
    shown = [to_dict(verdict) for verdict in verdicts]
    if args.readme:
        readme.update(args.readme, study.name, shown, metrics)
    print(counted(shown))
    return 0
