"""Names of a cell and the columns that all its rows share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.records import RunRecord
from pipeline.study.equal_work import model_text, schedule_text, updates_per_step
from pipeline.study.expansion import FALLBACK, cells_of, fallback_name
from pipeline.study.study import Study

_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "tf32": "tf32"}
_LEVEL = {"amp_o1": "O1", "amp_o2": "O2", "apex_o1": "O1", "apex_o2": "O2"}

Labels = Mapping[tuple[str, bool], Mapping[str, Any]]
"""Names of the cell that a run counts to, by `cell_of` it."""


def precision_as_ran(run: Mapping[str, Any]) -> str:
    """Library, level and compute type of a record, for example `torch amp O1, bf16`."""
    asked, ran = str(run["spec"]["precision"]), run["precision"]
    if ran is None:
        return f"{asked} (did not run)"
    dtype, level = _SHORT[ran["compute_dtype"]], _LEVEL.get(str(ran["name"]))
    if level is None:
        return f"{ran['library']} {dtype if ran['name'] in _SHORT.values() else ran['name']}"
    amp = "amp " if ran["library"] == "torch" else ""
    return f"{ran['library']} {amp}{level}, {dtype}"


def cell_of(record: RunRecord) -> tuple[str, bool]:
    """Cell of a run, and whether its nodes were to be emulated and shared the loopback instead."""
    had = record.run["execution"]["network"]
    return record.spec.cell, record.spec.world.network == "emulated" and had != "emulated"


def cell_labels(study: Study, records: Iterable[RunRecord]) -> Labels:
    """For each cell: its name, label, cell_order, precision_ran, and its arm with its label.

    The label names library and type wherever it is not plain fp32, so that Apex and torch's own
    mixed precision can never be taken for one another. Runs of an arm that fell back to the
    loopback count to one cell, whatever link they were planned over: they are repeats of one thing.
    """
    cells = cells_of(study)
    arms = {one.name: one.arm for one in cells}
    ran: dict[str, str] = {}
    for record in records:
        arm = arms[record.spec.cell]
        # A run that did not start has no library or number format; one that finished has.
        if arm not in ran or record.status == "ok":
            ran[arm] = precision_as_ran(record.run)
    labels: dict[tuple[str, bool], dict[str, Any]] = {}
    for place, one in enumerate(cells):
        # One arm has one precision, over whatever link: what ran in it is the same.
        own, arm = ran[one.arm], one.arm
        arm_label = one.label if one.precision == "fp32" else f"{one.label} [{own}]"
        shared = {"precision_ran": own, "arm": arm, "arm_label": arm_label}
        over = f", {one.link.text}" if one.link and one.name != arm else ""
        names = {"cell": one.name, "label": f"{arm_label}{over}", "cell_order": place}
        labels[one.name, False] = shared | names
        # Behind all others, in the order of the arms.
        names = {"cell": fallback_name(arm), "label": f"{arm_label}, {FALLBACK}",
                 "cell_order": len(cells) + list(ran).index(arm)}  # fmt: skip
        labels[one.name, True] = shared | names
    return labels


def short_label(row: Mapping[str, Any]) -> str:
    """A cell's label without library and type where the label names the library that ran itself."""
    ran = str(row["precision_ran"])
    plain = str(row["label"]).replace(f" [{ran}]", "")
    named = [name for name in ("apex", "amp") if name in plain.lower()]
    return plain if named == ["apex" if ran.startswith("apex") else "amp"] else str(row["label"])


def run_context(record: RunRecord, label: Mapping[str, Any]) -> dict[str, Any]:
    """Columns that every row of one run shares, with the names of its cell by `label`."""
    spec, run, world = record.spec, record.run, record.spec.world
    layout = run["execution"]["layout"]
    # The link that the run was really made over; one node sends nothing over any.
    link = {"link": world.link.text} if world.link and world.nodes > 1 else {}
    _, fell_back = cell_of(record)
    return {
        "study": spec.study,
        "cell": spec.cell,
        **label,
        "strategy": spec.strategy,
        "precision": spec.precision,
        "nodes": world.nodes,
        "ranks_per_node": world.ranks_per_node,
        "world_size": world.size,
        "data_devices": layout["data_parallel"] * layout.get("devices_per_process", 1),
        "global_batch": spec.workload.global_batch,
        "global_batch_tokens": spec.global_batch_tokens,
        "accumulation": spec.workload.accumulation_steps,
        "updates_per_step": updates_per_step(spec),
        "scaling": spec.workload.scaling,
        "schedule": schedule_text(spec),
        "data": run["data"]["manifest_sha256"],
        "model": model_text(spec),
        "device": world.device,
        "network": run["execution"]["network"],
        **({"link": FALLBACK} if fell_back else link),
        "origin": run["origin"],
        "run_id": spec.run_id,
        "repeat": spec.repeat,
        "seed": spec.seed,
        "status": record.status,
        "reason": run["reason"],
    }
