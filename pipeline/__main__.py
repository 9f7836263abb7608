"""The only command line of Samestep: `python -m pipeline STAGE ...`, one subcommand per stage.

Only the stage that is called is imported, so `figure` never pays for torch.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from types import ModuleType

from pipeline.errors import SamestepError

STAGES = (
    "strategies",
    "check",
    "doctor",
    "plan",
    "tokens",
    "commands",
    "train",
    "repeats",
    "metrics",
    "figure",
    "table",
    "claims",
    "compare",
    "paper",
    "page",
    "archive",
    "unpack",
    "verify",
    "clean",
)
"""In the order of a study; each is a file of `pipeline.commands`."""


def main(argv: list[str] | None = None) -> int:
    """Run one stage; expected errors become one line on stderr and exit status 2."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__)
        for name in STAGES:
            print(f"  {name:10s} {_stage(name).SUMMARY}")
        return 0
    name, *rest = argv
    if name not in STAGES:
        print(
            f"error: unknown stage {name!r}; use one of {', '.join(STAGES)}",
            file=sys.stderr,
        )
        return 2
    stage = _stage(name)
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


def _stage(name: str) -> ModuleType:
    return importlib.import_module(f"pipeline.commands.{name}")


if __name__ == "__main__":
    sys.exit(main())
