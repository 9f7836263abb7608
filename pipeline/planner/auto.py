"""The choice of a layout for a study: `plan --study X --auto`, when the study is expanded.

What strategies can run on the study's nodes or fewer is predicted, by the cost model for GPUs or by
what `calibrate` has measured here, and ranked (`pipeline.planner.ranking`). Cuts of single
operators are among them where a cell has a strategy that takes such (`annotated`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from pipeline import models, strategies
from pipeline.errors import StudyError, UnsupportedError
from pipeline.planner.here import Calibration
from pipeline.planner.ranking import Cluster, Predictor, Ranked, jobs, rank
from pipeline.resolved import ResolvedRun, runs_of
from pipeline.study.study import Study


def choose(
    study: Study, cluster: Cluster, precision: str, calibration: Calibration | None
) -> list[Ranked]:
    """The cells that fit, as `rank` has them; without a calibration by the model of GPUs.

    Raises StudyError where none fits, or the model's layers or operators are not known.
    """
    sizes = models.family(study.model)
    sizes.shape(study.model)  # raises where it states none
    batch = study.workload.global_batch
    asked = {cell.strategy for cell in study.arms if strategies.load(cell.strategy, {}).by_operator}
    if calibration is not None:
        sizes.operators(study.model, 1, 1)
        # A study takes long to check a cell, which is asked for thrice.
        run_once = cache(lambda text: run_of(study, json.loads(text)))
        measured = Predictor(
            study.model, lambda job, cell: run_once(json.dumps(cell, sort_keys=True)), calibration
        )
        return rank(study.model, cluster, batch, precision, measured, asked)
    ranked = rank(study.model, cluster, batch, precision, asked=asked)
    if covered := [one for one in ranked if run_of(study, one.cell) is not None]:
        return covered
    raise StudyError(f"study {study.name}: none of {len(ranked)} layouts is a cell that it takes")


def layouts_of(study: Study) -> list[ResolvedRun]:
    """The runs that `plan --auto` predicts for a study on a calibrated machine."""
    cluster = study.cluster
    within = Cluster("cpu", 0.0, max(cluster.nodes), cluster.ranks_per_node, 0.0)
    batch = study.workload.global_batch
    cells = (
        cell
        for precision in dict.fromkeys(arm.precision for arm in study.arms)
        for _, cell in jobs(study.model, within, batch, precision)
        if "recompute" not in cell["workload"]
    )
    return [run for cell in cells if (run := run_of(study, cell)) is not None]


def run_of(study: Study, cell: Mapping[str, Any]) -> ResolvedRun | None:
    """The first run of a study with this cell alone; None where the study cannot have it.

    In the time of the study's other cells, whose nodes may be more.
    """
    try:
        run = run_with(study, {"name": "auto", "label": "auto", **cell})
    except (StudyError, UnsupportedError):
        return None
    world, most = run.spec.world, max(study.cluster.nodes)
    fewer = most if world.network == "emulated" and world.nodes < most else None
    return replace(run, spec=replace(run.spec, world=replace(world, dilated_for=fewer)))


def run_with(study: Study, cell: Mapping[str, Any], **changes: Any) -> ResolvedRun:
    """The first run of a study with this cell alone and other keys; raises what refuses it."""
    changed = study.but(cells=[cell], repeats=1, profile=None, **changes)
    run = runs_of(changed)[0]
    strategies.check([run.spec])
    run.strategy.check_precision(run.spec.precision)
    return run
