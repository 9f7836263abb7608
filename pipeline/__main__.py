"""The only command line of Samestep: `python -m pipeline STAGE ...`, one subcommand per stage.

A stage is a module with SUMMARY, `add_arguments(parser)` and `run(args) -> int`. Only the stage
that is called is imported, so `figure` never pays for torch.
"""

from __future__ import annotations

import argparse
import importlib
import sys

from pipeline.errors import SamestepError

STAGES = {
    "check": "pipeline.check",
    "tokens": "pipeline.corpus.cli",
    "doctor": "pipeline.doctor.cli",
    "plan": "pipeline.training.planning",
    "train": "pipeline.training.cli",
    "commands": "pipeline.training.commands",
    "repeats": "pipeline.metrics.adaptive",
    "metrics": "pipeline.metrics.cli",
    "figure": "pipeline.figures.cli",
    "table": "pipeline.tables.cli",
    "claims": "pipeline.claims.cli",
    "compare": "pipeline.compare.cli",
    "paper": "pipeline.paper.cli",
    "report": "pipeline.report.cli",
    "archive": "pipeline.archive.pack",
    "unpack": "pipeline.archive.unpack",
    "verify": "pipeline.archive.verify",
    "clean": "pipeline.clean",
}


def main(argv: list[str] | None = None) -> int:
    """Run one stage; expected errors become one line on stderr and exit status 2."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__)
        for name, module in STAGES.items():
            print(f"  {name:10s} {importlib.import_module(module).SUMMARY}")
        return 0
    name, *rest = argv
    if name not in STAGES:
        print(
            f"error: unknown stage {name!r}; use one of {', '.join(STAGES)}",
            file=sys.stderr,
        )
        return 2
    stage = importlib.import_module(STAGES[name])
    parser = argparse.ArgumentParser(prog=f"python -m pipeline {name}", description=stage.SUMMARY)
    stage.add_arguments(parser)
    args = parser.parse_args(rest)
    try:
        return int(stage.run(args))
    except SamestepError as error:
        # A path may hold a line end; an error is one line whatever was given.
        print(f"error: {' '.join(str(error).splitlines())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
