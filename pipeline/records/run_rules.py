"""Rules of contradiction about run.json: what was executed against the spec and itself.

Each is a `Rule` of this package. Fields that older records lack are not missed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pipeline import models
from pipeline.documents import Unfit, check_plain
from pipeline.errors import StudyError, without_fix

if TYPE_CHECKING:
    from pipeline.records import RunRecord

BUSY_TOLERANCE, BUSY_TICKS = 1.1, 0.5
"""Share and cores: earlier records count CPU time in ticks of 10 ms, few in a short run."""

MODEL_TOLERANCE = 1e-2
"""Relative: another version may count what this one leaves out, such as the last layer norm."""

MASTERS = ("_o2", "_masters", "_reduced")
"""Ends of the names of precisions with master weights."""

NARROWEST_BYTES = 2
"""Of a weight: of every precision the narrowest type."""


def texts(record: RunRecord) -> Iterator[str]:
    """Every text but the reason of a failure, which quotes a log, can be shown in every format."""
    text = json.dumps({**record.run, "reason": None})  # as it is written: a tuple is a list
    try:
        check_plain(json.loads(text), printable=True)
    except Unfit as fault:
        yield f"run.json {str(fault).rpartition('; ')[0]}"


def differing(*pairs: tuple[str, Any, Any]) -> Iterator[str]:
    """A line on each value of run.json that is not the spec's: place, value, and what is asked."""
    for place, had, asked in pairs:
        if had != asked:
            yield f"run.json at $.{place}: {had!r}, the spec says {asked!r}"


def spec(record: RunRecord) -> Iterator[str]:
    """The spec holds together, and its hash and id are those of the record."""
    run = record.run
    try:
        asked = record.spec
    except StudyError as error:
        yield f"run.json at $.spec: {without_fix(error)}"
        return
    layout, work = run["execution"]["layout"], asked.workload
    parts = layout["data_parallel"] * layout.get("devices_per_process", 1)
    if work.global_batch % (pieces := parts * work.accumulation_steps):
        yield (
            f"run.json at $.spec: {pieces} micro-batches of a step do not divide global_batch "
            f"{work.global_batch}"
        )
    if run["spec_sha256"] != asked.sha256() or run["run_id"] != asked.run_id:
        yield (
            f"run.json at $.spec: does not hash to spec_sha256 {run['spec_sha256'][:12]}... and "
            f"run_id {run['run_id']}; the file was edited"
        )


def dates(record: RunRecord) -> Iterator[str]:
    """Start and end are dates of the calendar, in this order."""
    ends = []
    for name in ("started_at", "ended_at"):
        try:
            ends.append(datetime.fromisoformat(record.run[name]))
        except ValueError:
            yield f"run.json at $.{name}: {record.run[name]} is no date"
            return
    if ends[1] < ends[0]:
        order = f"{record.run['ended_at']} is before started_at {record.run['started_at']}"
        yield f"run.json at $.ended_at: {order}"


def world(record: RunRecord) -> Iterator[str]:
    """The execution has the spec's size, backend, threads and precision."""
    execution, asked = record.run["execution"], record.spec.world
    yield from differing(
        ("execution.world_size", execution["world_size"], asked.size),
        ("execution.backend", execution["backend"], asked.backend),
    )
    if (threads := asked.threads_per_rank) is not None:
        yield from differing(("execution.threads_per_rank", execution["threads_per_rank"], threads))
    if (had := record.run["precision"]) is not None:
        yield from differing(("precision.name", had["name"], record.spec.precision))


def precision(record: RunRecord) -> Iterator[str]:
    """Library, types, masters and loss scale are such as the named precision has."""
    about = record.run["precision"]
    name, dtype = about["name"], about["compute_dtype"]
    wrong = {
        "library": (about["library"] == "apex") != name.startswith("apex_"),
        "compute_dtype": (dtype == "float32") != (name == "fp32"),
        "master_weights": about["master_weights"] and not name.endswith(MASTERS),
        "loss_scaling": about["loss_scaling"] and dtype != "float16",
    }
    for key, is_wrong in wrong.items():
        if is_wrong:
            yield f"run.json at $.precision.{key}: {json.dumps(about[key])}, which {name} has not"


def model(record: RunRecord) -> Iterator[str]:
    """Parameters and FLOPs are those of the spec's model."""
    asked = record.spec.model
    expected = {
        "num_parameters": models.num_parameters(asked),
        "flops_per_token": models.flops_per_token(asked),
    }
    for key, value in expected.items():
        had = record.run["model"][key]
        if not math.isclose(had, value, rel_tol=MODEL_TOLERANCE):
            yield f"run.json at $.model.{key}: {had}, the spec's model has {value}"


def network(record: RunRecord) -> Iterator[str]:
    """The network is the spec's or says why not, and what only emulated nodes have is theirs."""
    execution, asked = record.run["execution"], record.spec.world
    had, why = execution["network"], execution.get("network_reason")
    emulation = execution.get("emulation")
    place = f"run.json at $.execution.network: {had}"
    if had != asked.network and (had, asked.network) != ("loopback", "emulated"):
        yield f"{place}, the spec says {asked.network}"
    if (had != asked.network) != (why is not None):
        reason = "without a" if why is None else "with a"
        yield f"{place} where the spec says {asked.network}, {reason} network_reason"
    if (had == "emulated") != (emulation is not None):
        yield f"{place}, with {'no' if emulation is None else 'an'} emulation beside it"
    elif emulation is None:
        if any("tcp" in rank for rank in record.run["ranks"]):
            yield f"run.json at $.ranks: counters of TCP, which no rank on the {had} network has"
    else:
        several = asked.nodes if asked.nodes > 1 and "disturbed_by" not in emulation else 0
        at = "execution.emulation"
        yield from differing(
            (f"{at}.cores_per_node", emulation["cores_per_node"], asked.cores_per_node),
            (f"{at}.link", emulation["link"], asked.link.to_dict() if asked.link else {}),
            (f"{at}.measured_cores", len(emulation["measured_cores"]), asked.nodes),
            (f"{at}.measured_mbits", len(emulation["measured_mbits"]), several),
        )


def ranks(record: RunRecord) -> Iterator[str]:
    """Check rank ids, device, placement and host count."""
    asked, execution = record.spec.world, record.run["execution"]
    layout, numbers = execution["layout"], [rank["rank"] for rank in record.run["ranks"]]
    count = layout.get("num_processes", asked.size)
    if numbers != list(range(count)):
        some = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "") or "none"
        yield f"run.json at $.ranks: ranks {some}, the layout has 0 to {count - 1} once"
    if count * layout.get("devices_per_process", 1) != asked.size:
        yield f"run.json at $.execution.layout: not the {asked.size} devices of the spec"
    if asked.size % layout["data_parallel"]:
        part = f"{layout['data_parallel']}, which is no part of {asked.size} devices"
        yield f"run.json at $.execution.layout.data_parallel: {part}"
    per_node = layout.get("processes_per_node", asked.ranks_per_node)
    for rank in record.run["ranks"]:
        place = f"run.json at $.ranks: rank {rank['rank']} on"
        if rank["device"].partition(":")[0] != asked.device:
            yield f"{place} device {rank['device']!r}, the spec says {asked.device}"
        if rank["node"] != rank["rank"] // per_node or rank["node"] >= asked.nodes:
            yield f"{place} node {rank['node']}, with {per_node} on each of {asked.nodes} nodes"
    hosts = execution.get("num_hosts", asked.num_machines)
    yield from differing(("execution.num_hosts", hosts, asked.num_machines))


def utilisation(record: RunRecord) -> Iterator[str]:
    """A GPU is busy at most all the time, a process with at most the cores of its machine."""
    alone = record.spec.world.num_machines == 1
    dilation = record.run["execution"].get("emulation", {}).get("dilation", 1)
    for rank in record.run["ranks"]:
        most = 1.0
        if record.spec.world.device == "cpu":
            machine = rank.get("environment") or (record.run["hardware"] if alone else {})
            # In dilated time what a node's threads do while its rank waits counts in full.
            cores = machine.get("num_cores", math.inf)
            most = cores * dilation * BUSY_TOLERANCE + BUSY_TICKS
        if (busy := rank["mean_utilisation"]) is not None and busy > most:
            place = f"run.json at $.ranks: rank {rank['rank']}"
            yield f"{place} has a mean_utilisation of {busy}, over its device"


def memory(record: RunRecord) -> Iterator[str]:
    """Ranks on processors take no more memory than their machine has, and hold the weights."""
    if record.spec.world.device != "cpu":
        return
    least = NARROWEST_BYTES * models.num_parameters(record.spec.model)
    total = sum(rank["peak_memory_bytes"] for rank in record.run["ranks"])
    if total < least:
        peaks = f"a peak_memory_bytes of {total} together"
        yield f"run.json at $.ranks: {peaks}, the weights alone are {least}"
    most = record.run["hardware"]["memory_bytes"]
    for rank in record.run["ranks"]:
        peak = rank["peak_memory_bytes"]
        if record.spec.world.num_machines == 1 and peak > most:
            place = f"run.json at $.ranks: rank {rank['rank']}"
            yield f"{place} has a peak_memory_bytes of {peak}, over the {most} of its machine"


def sent(record: RunRecord) -> Iterator[str]:
    """Bytes that a rank sent are counted in profiled runs alone, along axes of the layout.

    No more steps are counted than are timed, and every group has several of the ranks.
    """
    work, size = record.spec.workload, len(record.run["ranks"])
    for rank in record.run["ranks"]:
        if "sent" not in rank:
            continue
        place, about = f"run.json at $.ranks[{rank['rank']}].sent", rank["sent"]
        if not record.spec.profile:
            yield f"{place}: counted, but the run is none to profile"
        if not about["differing_steps"] < about["steps"] <= work.steps - work.first_timed():
            yield f"{place}: {about['steps']} steps counted, {about['differing_steps']} differing"
        if any(each["ranks"] > size for each in about["collectives"]):
            yield f"{place}: a collective of more than {size} ranks"


def environments(record: RunRecord) -> Iterator[str]:
    """Every rank says where it was or none does, on as many hosts as the record counts."""
    ranks = record.run["ranks"]
    hosts = [rank["environment"]["host"] for rank in ranks if "environment" in rank]
    if len(hosts) not in (0, len(ranks)):
        yield f"run.json at $.ranks: {len(hosts)} of {len(ranks)} ranks have an environment"
    count = len({*hosts})
    counted = record.run["execution"].get("num_hosts", count)
    if hosts and counted != count:
        yield f"run.json at $.ranks: {count} hosts, num_hosts says {counted}"
