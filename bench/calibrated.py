"""Steps predicted from a calibration of this machine, held against runs made just after it.

    python -m bench.calibrated --out bench/results/calibrated.json [--studies smoke layouts]

Each study is calibrated by `python -m pipeline calibrate`, which runs no step. Then every cell and
number of nodes of it runs `ROUNDS` times, in an order of its own in each round, and the medians are
compared with the predictions. Bars: `MEDIAN`, `NINE_TENTHS` and `TAU`, in every study. Beside the
last stands how well runs repeat their own order: each round's against the medians of the others.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from scipy.stats import kendalltau

from bench.emulated.runs import Runs, Variant
from bench.scaffold import about, parser, stage, write
from pipeline.emulation.dilation import dilate
from pipeline.emulation.nodes import why_not
from pipeline.errors import StudyError, UnsupportedError
from pipeline.launch import preloaded
from pipeline.planner import here
from pipeline.resolved import ResolvedRun, first_runs
from pipeline.study.load import find_study, load_study
from pipeline.study.study import Study

STUDIES, ROUNDS = ("smoke", "layouts"), 3
MEDIAN, NINE_TENTHS, TAU = 0.08, 0.20, 0.8


def main() -> int:
    """Calibrate, run, print and write; 1 where there are no emulated nodes."""
    options = parser(__doc__)
    options.add_argument("--studies", nargs="+", default=list(STUDIES), metavar="STUDY")
    args = options.parse_args()
    if (reason := why_not()) is not None:
        print(f"error: no emulated nodes here: {reason}", file=sys.stderr)
        return 1
    result, studies = about() | {"rounds": ROUNDS}, dict[str, Any]()
    for name in args.studies:
        with tempfile.TemporaryDirectory(prefix="samestep-") as folder:
            studies[name] = held(Path(folder), load_study(find_study(name)))
        errors = {key: value for key, value in studies[name].items() if key != "cells"}
        print(f"{name}: {json.dumps(errors)}", file=sys.stderr)
        met = len(studies) == len(args.studies) and all(one["met"] for one in studies.values())
        write(args.out, result | {"met": met, "studies": studies})
    print(f"-> {args.out}")
    return 0


def held(folder: Path, study: Study) -> dict[str, Any]:
    """The errors of all cells that run here and are predicted, and whether the bars are met."""
    preloaded.start_ranks(first_runs(study))
    runs = Runs(folder, study)
    begun = time.monotonic()
    stage("calibrate", f"--study={folder}/study.json", f"--out={folder}/calibration.json")
    took = {"calibrated_in_seconds": time.monotonic() - begun}
    calibration = here.Calibration.read(folder / "calibration.json", study)
    cells = [run for run in first_runs(study) if predicted(run, calibration)]
    cores = len(os.sched_getaffinity(0))
    variants = [Variant(run.spec, dilate(run.spec.world, cores)) for run in cells]
    rounds = [[taken.seconds for taken in each] for each in runs.in_turn(ROUNDS, variants)]
    steps = list(map(median, rounds))
    places = [(run.spec.cell, run.spec.world.nodes) for run in cells]
    rows = here.predict_study(cells, calibration, dict(zip(places, steps, strict=True)))
    took["tau_between_rounds"] = repeatability(rounds)
    return judged(rows) | took | runs.machine.counts()


def repeatability(seconds: Sequence[list[float]]) -> float:
    """Mean Kendall's tau of each round and the medians of the others; `seconds[cell][round]`."""
    return fmean(
        kendalltau(
            [each[place] for each in seconds],
            [median(each[:place] + each[place + 1 :]) for each in seconds],
        ).statistic
        for place in range(len(seconds[0]))
    )


def predicted(run: ResolvedRun, calibration: here.Calibration) -> bool:
    """True where the cell can run here and the calibration has what it needs."""
    try:
        run.strategy.check()
        here.predict(run, calibration)
    except (StudyError, UnsupportedError):
        return False
    return True


def judged(rows: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Median error, that of nine in ten, Kendall's tau, each cell, and whether the bars are met."""
    middle, most, tau = here.accuracy(rows)
    return {
        "median_error": middle,
        "nine_tenths_within": most,
        "tau": tau,
        "met": middle <= MEDIAN and most <= NINE_TENTHS and tau >= TAU,
        "cells": [
            {"cell": row["cell"], "nodes": int(row["nodes"]), "seconds": float(row["step_s"]),
             "predicted_seconds": float(row["step_s_pred"])}
            for row in rows
        ],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
