"""The choice of a layout for a study: `plan --study X --auto`, when the study is expanded.

What strategies can run on the study's nodes or fewer is predicted, by the cost model for GPUs or by
what `calibrate` has measured here, and ranked (`pipeline.planner.ranking`). Cuts of single
operators are among them where a cell has a strategy that takes such (`annotated`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline import models, strategies
from pipeline.cost.job import Job
from pipeline.cost.predict import Prediction
from pipeline.cost.sharding import Prices
from pipeline.errors import StudyError, UnsupportedError
from pipeline.planner import here
from pipeline.planner.ranking import Cluster, Ranked, jobs, rank
from pipeline.planner.sizes import Size
from pipeline.resolved import ResolvedRun, runs_of
from pipeline.study.study import Study


def choose(
    study: Study, cluster: Cluster, precision: str, calibration: here.Calibration | None
) -> list[Ranked]:
    """The cells that fit, as `rank` has them; without a calibration by the model of GPUs.

    Raises StudyError where none fits, or the model's layers or operators are not known.
    """
    sizes = models.family(study.model)  # raises where it states none
    sizes.shape(study.model)
    if calibration is not None:
        sizes.operators(study.model, 1, 1)

    size, batch = Size(study.name, study.model), study.workload.global_batch
    asked = {cell.strategy for cell in study.arms if strategies.load(cell.strategy, {}).by_operator}
    if calibration is not None:
        return rank(size, cluster, batch, precision, Here(study, calibration), asked)
    ranked = rank(size, cluster, batch, precision, asked=asked)
    if covered := [one for one in ranked if run_of(study, one.cell) is not None]:
        return covered
    raise StudyError(f"study {study.name}: none of {len(ranked)} layouts is a cell that it takes")


@dataclass(frozen=True)
class Here:
    """Predictions for a study on the machine that was calibrated; see `ranking.Predictor`.

    `runs` keeps those of cells that were asked for, as a study takes long to check one.
    """

    study: Study
    calibration: here.Calibration
    runs: dict[str, ResolvedRun | None] = field(default_factory=dict)

    def run(self, cell: Mapping[str, Any]) -> ResolvedRun | None:
        """The run of a cell; None where the study cannot have it."""
        key = json.dumps(cell, sort_keys=True)
        if key not in self.runs:
            self.runs[key] = run_of(self.study, cell)
        return self.runs[key]

    def step(self, job: Job, cell: Mapping[str, Any]) -> Prediction | None:
        """The sum of operators and messages; None where the study cannot have the cell."""
        run = self.run(cell)
        try:
            return None if run is None else here.predict(run, self.calibration)
        except StudyError:
            return None

    def operators(self, job: Job, cell: Mapping[str, Any]) -> tuple[Prediction, Prices] | None:
        """As `step`, and prices between the nodes of the study."""
        whole, run = self.step(job, cell), self.run(cell)
        if whole is None or run is None:
            return None
        return whole, here.prices(run, job.tp, whole, self.calibration)

    def peak(self, job: Job, cell: Mapping[str, Any]) -> float | None:
        """Bytes as `plan` has them; None where the study cannot have the cell."""
        run = self.run(cell)
        return None if run is None else here.peak(run)


def layouts_of(study: Study) -> list[ResolvedRun]:
    """The runs that `plan --auto` predicts for a study on a calibrated machine."""
    size, cluster = Size(study.name, study.model), study.cluster
    within = Cluster("cpu", 0.0, max(cluster.nodes), cluster.ranks_per_node, 0.0)
    batch = study.workload.global_batch
    cells = (
        cell
        for precision in dict.fromkeys(arm.precision for arm in study.arms)
        for _, cell in jobs(size, within, batch, precision)
        if "recompute" not in cell["workload"]
    )
    return [run for cell in cells if (run := run_of(study, cell)) is not None]


def run_of(study: Study, cell: Mapping[str, Any]) -> ResolvedRun | None:
    """The first run of a study with this cell alone; None where the study cannot have it."""
    try:
        return run_with(study, {"name": "auto", "label": "auto", **cell})
    except (StudyError, UnsupportedError):
        return None


def run_with(study: Study, cell: Mapping[str, Any], **changes: Any) -> ResolvedRun:
    """The first run of a study with this cell alone and other keys; raises what refuses it."""
    changed = study.but(cells=[cell], repeats=1, profile=None, **changes)
    run = runs_of(changed)[0]
    strategies.check([run.spec])
    run.strategy.check_precision(run.spec.precision)
    return run
