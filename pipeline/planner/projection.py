"""The cells of a study on more nodes of GPUs than are here: `predict --study --device --link`.

Each cell keeps its strategy, options and work, and gets other nodes. Seconds are the cost model's,
memory is that of `plan`. All of it is *projected*: nothing is measured (docs/planner.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline import models
from pipeline.cost.constants import Constants
from pipeline.cost.job import Refused
from pipeline.cost.points import ADDED, answer_of, band_of
from pipeline.cost.predict import predict
from pipeline.cost.score import errors_of
from pipeline.errors import StudyError, UnsupportedError
from pipeline.planner.auto import run_with
from pipeline.planner.memory import peak
from pipeline.planner.ranking import Cluster, job_of
from pipeline.resolved import ResolvedRun
from pipeline.study.expansion import data_devices
from pipeline.study.spec import WorldSpec
from pipeline.study.study import Cell, Study
from pipeline.text import align, significant

COLUMNS = ("cell", "nodes", "gpus", "global_batch", "provenance", *ADDED, "tokens_per_s_pred",
           "efficiency_pred")  # fmt: skip


def project(
    study: Study, cluster: Cluster, counts: Sequence[int], *, weak: bool
) -> list[dict[str, str]]:
    """A row for each cell and node count, with a reason where there is no prediction.

    `weak`: the batch of a device stays that of the study's fewest nodes, where the study says that
    the whole one does. A cell of one node alone stays there.
    """
    models.family(study.model).shape(study.model)  # raises where the cost model has none
    rows = []
    for cell in study.arms:
        least = 0.0
        for nodes in (1,) if cell.nodes == (1,) else counts:
            row = dict.fromkeys(COLUMNS, "") | {
                "cell": cell.name, "nodes": str(nodes), "gpus": str(nodes * cell.ranks_per_node),
                "provenance": "projected",
            }  # fmt: skip
            rows.append(row)
            try:
                run = _run(study, cell, nodes, weak=weak)
                row |= {"global_batch": str(run.spec.workload.global_batch)}
                row |= _answer(run, replace(cluster, gpus_per_node=cell.ranks_per_node))
            except (StudyError, UnsupportedError, Refused) as refused:
                row["reason"] = str(refused).removeprefix(f"{study.name}/{cell.name}/n{nodes}/r0: ")
                continue
            rate = run.spec.global_batch_tokens / float(row["step_s_pred"])
            # Against the fewest nodes that could be projected.
            least = least or rate / int(row["gpus"])
            row["tokens_per_s_pred"] = f"{rate:.6g}"
            row["efficiency_pred"] = f"{rate / int(row['gpus']) / least:.4g}"
    return rows


def _run(study: Study, cell: Cell, nodes: int, *, weak: bool) -> ResolvedRun:
    """The first run of the cell on so many nodes of GPUs."""
    entry: dict[str, Any] = next(c for c in study.to_dict()["cells"] if c["name"] == cell.name)
    entry["nodes"] = [nodes]
    if weak and cell.workload.scaling == "strong":
        fewest = WorldSpec(min(cell.nodes), cell.ranks_per_node, "cuda", "nccl", "real")
        devices = data_devices(cell.strategy, cell.options, fewest)
        if cell.workload.global_batch % devices:
            raise StudyError(f"{devices} devices do not divide the batch of the fewest nodes")
        work = {"scaling": "weak", "global_batch": cell.workload.global_batch // devices}
        entry["workload"] = {**entry.get("workload", {}), **work}
    gpus = {"device": "cuda", "backend": "nccl", "network": "real", "nodes": [nodes],
            "ranks_per_node": study.cluster.ranks_per_node}  # fmt: skip
    run = run_with(study, entry, cluster=gpus)
    run.layout.check_batch(run.spec)
    return run


def _answer(run: ResolvedRun, cluster: Cluster) -> Mapping[str, str]:
    """The columns of a prediction; raises Refused where the cost model has no such step."""
    spec = run.spec
    if spec.compile:
        raise Refused("compiled blocks are not modelled")
    degrees = run.strategy.degrees(spec, run.layout)
    if degrees is None:
        raise Refused(
            f"no published step was made as strategy {spec.strategy} does with "
            + (", ".join(spec.options) or "its defaults")
        )
    work = spec.workload
    if isinstance(work.recompute, tuple):
        raise Refused("blocks that are recomputed by their numbers are not modelled")
    given = degrees, work.global_batch, spec.precision, work.recompute
    job = job_of(spec.model, cluster, spec.world.nodes, *given)
    job = replace(job, optimiser=spec.optimiser.name)
    needed = peak(run, {0, run.layout.num_processes - 1})
    step = replace(predict(job, Constants()), memory=needed)
    return answer_of(job, step, band_of(job, Constants()))


def shown(rows: Sequence[Mapping[str, str]], hardware: str) -> list[str]:
    """The rows as a table; of each cell the first reason and how many node counts it has."""
    fewest: dict[str, str] = {}
    for row in rows:
        if not row["reason"]:
            fewest.setdefault(row["cell"], row["nodes"])
    ideal = " or ".join(sorted({*fewest.values()}, key=int))
    against = f" against {ideal} node{'s'[: ideal != '1']}" if ideal else ""
    heads = ("cell", "nodes", "GPUs", "batch", "step s", "band s", "tokens/s",
             f"efficiency{against}", "exposed", "GiB", "fits")  # fmt: skip
    table: list[tuple[str, ...]] = [heads]
    reasons: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        if row["reason"]:
            reasons.setdefault(row["cell"], []).append(row)
            continue
        step, low, high = (float(row[f"step_s_{end}"]) for end in ("pred", "low", "high"))
        table.append((
            row["cell"], row["nodes"], row["gpus"], row["global_batch"],
            significant(step), f"{significant(low)} to {significant(high)}",
            f"{float(row['tokens_per_s_pred']):,.0f}",
            f"{float(row['efficiency_pred']):.0%}",
            f"{float(row['communication_s_pred']) / step:.0%}",
            significant(float(row["mem_gib_pred"])), "yes" if row["fits"] == "true" else "no",
        ))  # fmt: skip
    lines = [*align(table), ""]
    for cell, refused in reasons.items():
        counts = ", ".join(row["nodes"] for row in refused)
        lines.append(f"{cell} on {counts} node{'s'[: counts != '1']}: {refused[0]['reason']}")
    return [
        *lines,
        "Projected by the cost model, nothing is measured; exposed: communication that computing "
        f"does not hide; {errors_of(hardware)}.",
    ]
