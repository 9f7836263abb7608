"""Rules of contradiction about run.json: what was executed against the spec and itself.

Each takes a record that fits the schemas and returns one line on its first contradiction, which
begins with the name of the file, or None. Fields that older records lack are not missed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pipeline import models
from pipeline.errors import StudyError
from pipeline.text import unprintable

if TYPE_CHECKING:
    from pipeline.records.record import RunRecord

EARLIEST, CLOCKS = 2022, timedelta(days=1)
"""Year of the first run that there can be, and how far clocks of two machines may be apart."""

BUSY_TOLERANCE, BUSY_TICKS = 1.1, 0.5
"""Share and cores: earlier records count CPU time in ticks of 10 ms, few in a short run."""


MODEL_TOLERANCE = 1e-2
"""Relative: another version may count what this one leaves out, such as the last layer norm."""

NARROWEST_BYTES = 2
"""Of a weight: of every precision the narrowest type."""


def texts(record: RunRecord) -> str | None:
    """Every text but the reason of a failure, which quotes a log, can be shown in every format."""
    for path, text in _texts({**record.run, "reason": None}, "$"):
        if wrong := unprintable(text):
            return f"run.json at {path}: {text[:80]!a} holds {wrong!a}, which cannot be printed"
    return None


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Place and content of each text in plain JSON types, keys included."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield path, key
            yield from _texts(part, f"{path}.{key}")
    elif isinstance(value, list):
        for place, part in enumerate(value):
            yield from _texts(part, f"{path}[{place}]")
    elif isinstance(value, str):
        yield path, value


def spec(record: RunRecord) -> str | None:
    """The spec holds together, and its hash and id are those of the record."""
    run = record.run
    try:
        found = record.spec
    except StudyError as error:
        return f"run.json at $.spec: {error}"
    layout, work = run["execution"]["layout"], found.workload
    parts = layout.get("data_parallel", 1) * layout.get("devices_per_process", 1)
    pieces = parts * work.accumulation_steps
    if work.global_batch % pieces:
        said = f"{pieces} micro-batches of a step do not divide global_batch {work.global_batch}"
        return f"run.json at $.spec: {said}"
    if run["spec_sha256"] != found.sha256() or run["run_id"] != found.run_id:
        return (
            f"run.json at $.spec: does not hash to spec_sha256 {run['spec_sha256'][:12]}... and "
            f"run_id {run['run_id']}; the file was edited"
        )
    return None


def dates(record: RunRecord) -> str | None:
    """Start and end are dates of the calendar, in this order."""
    ends = {}
    for name in ("started_at", "ended_at"):
        try:
            ends[name] = datetime.fromisoformat(record.run[name])
        except ValueError:
            return f"run.json at $.{name}: {record.run[name]} is no date"
    if ends["started_at"].year < EARLIEST:
        said = f"{record.run['started_at']} is before there was a Samestep"
        return f"run.json at $.started_at: {said}"
    if ends["ended_at"] > datetime.now(UTC) + CLOCKS:
        return f"run.json at $.ended_at: {record.run['ended_at']} is yet to come"
    if ends["ended_at"] < ends["started_at"]:
        said = f"{record.run['ended_at']} is before started_at {record.run['started_at']}"
        return f"run.json at $.ended_at: {said}"
    return None


def world(record: RunRecord) -> str | None:
    """What was executed has the spec's size, backend, threads and precision."""
    execution, asked = record.run["execution"], record.spec.world
    pairs: list[tuple[str, Any, Any]] = [
        ("execution.world_size", execution["world_size"], asked.size),
        ("execution.backend", execution["backend"], asked.backend),
    ]
    if asked.threads_per_rank is not None:
        threads = execution["threads_per_rank"]
        pairs.append(("execution.threads_per_rank", threads, asked.threads_per_rank))
    if record.run["precision"] is not None:
        pairs.append(("precision.name", record.run["precision"]["name"], record.spec.precision))
    for name, found, expected in pairs:
        if found != expected:
            return f"run.json at $.{name}: {found!r}, the spec says {expected!r}"
    return None


def described(record: RunRecord) -> str | None:
    """A run that finished says in which precision it ran and which model it trained."""
    for name in ("precision", "model"):
        if record.run[name] is None:
            return f"run.json at $.{name}: null, which no run that ended `ok` has"
    return None


def precision(record: RunRecord) -> str | None:
    """Library, types, masters and loss scale are such as the named precision has."""
    about = record.run["precision"]
    name, dtype = about["name"], about["compute_dtype"]
    wrong = {
        "library": (about["library"] == "apex") != name.startswith("apex_"),
        "compute_dtype": (dtype == "float32") != (name == "fp32"),
        "master_weights": about["master_weights"] and not name.endswith("_o2"),
        "loss_scaling": about["loss_scaling"] and dtype != "float16",
    }
    key = next((key for key, is_wrong in wrong.items() if is_wrong), None)
    if key is None:
        return None
    return f"run.json at $.precision.{key}: {json.dumps(about[key])}, which {name} has not"


def model(record: RunRecord) -> str | None:
    """Parameters and FLOPs are those of the spec's model."""
    asked = record.spec.model
    expected = {
        "num_parameters": models.num_parameters(asked),
        "flops_per_token": models.flops_per_token(asked),
    }
    for key, value in expected.items():
        found = record.run["model"][key]
        if not math.isclose(found, value, rel_tol=MODEL_TOLERANCE):
            return f"run.json at $.model.{key}: {found}, the spec's model has {value}"
    return None


def network(record: RunRecord) -> str | None:
    """The network is the spec's or says why not, and what only emulated nodes have is theirs."""
    execution, asked = record.run["execution"], record.spec.world
    had, why = execution["network"], execution.get("network_reason")
    if had != asked.network and (had, asked.network) != ("loopback", "emulated"):
        return f"run.json at $.execution.network: {had}, the spec says {asked.network}"
    if (had != asked.network) != (why is not None):
        return (
            f"run.json at $.execution.network: {had} where the spec says {asked.network}, "
            f"{'without a' if why is None else 'with a'} network_reason"
        )
    emulation = execution.get("emulation")
    if (had == "emulated") != (emulation is not None):
        there = "no emulation" if emulation is None else "an emulation"
        return f"run.json at $.execution.network: {had}, with {there} beside it"
    if emulation is None and any("tcp" in rank for rank in record.run["ranks"]):
        return f"run.json at $.ranks: counters of TCP, which no rank on the {had} network has"
    return None if emulation is None else _emulated(record, emulation)


def _emulated(record: RunRecord, emulation: Mapping[str, Any]) -> str | None:
    """What was set and measured of emulated nodes is that of the spec's nodes and link."""
    asked = record.spec.world
    several = asked.nodes if asked.nodes > 1 and "disturbed_by" not in emulation else 0
    pairs: list[tuple[str, Any, Any]] = [
        ("cores_per_node", emulation["cores_per_node"], asked.cores_per_node),
        ("link", emulation["link"], asked.link.to_dict() if asked.link else {}),
        ("measured_cores", len(emulation["measured_cores"]), asked.nodes),
        ("measured_mbits", len(emulation["measured_mbits"]), several),
    ]
    for name, found, expected in pairs:
        if found != expected:
            said = f"{json.dumps(found)}, expected {json.dumps(expected)} by the spec"
            return f"run.json at $.execution.emulation.{name}: {said}"
    return None


def ranks(record: RunRecord) -> str | None:
    """The ranks are those of the layout, each once and on its node, on machines as many as said."""
    asked, execution = record.spec.world, record.run["execution"]
    layout, found = execution["layout"], [rank["rank"] for rank in record.run["ranks"]]
    count = layout.get("num_processes", asked.size)
    if found != list(range(count)):
        return f"run.json at $.ranks: ranks {_some(found)}, the layout has 0 to {count - 1} once"
    if count * layout.get("devices_per_process", 1) != asked.size:
        return f"run.json at $.execution.layout: not the {asked.size} devices of the spec"
    if asked.size % layout.get("data_parallel", 1):
        said = f"{layout['data_parallel']}, which is no part of {asked.size} devices"
        return f"run.json at $.execution.layout.data_parallel: {said}"
    per_node = layout.get("processes_per_node", asked.ranks_per_node)
    for rank in record.run["ranks"]:
        if rank["device"].partition(":")[0] != asked.device:
            said = f"rank {rank['rank']} on device {rank['device']!r}"
            return f"run.json at $.ranks: {said}, the spec says {asked.device}"
        if rank["node"] != rank["rank"] // per_node or rank["node"] >= asked.nodes:
            said = f"rank {rank['rank']} on node {rank['node']}"
            return f"run.json at $.ranks: {said}, with {per_node} on each of {asked.nodes} nodes"
    hosts = execution.get("num_hosts", asked.num_machines)
    if hosts != asked.num_machines:
        return f"run.json at $.execution.num_hosts: {hosts}, the spec says {asked.num_machines}"
    return None


def utilisation(record: RunRecord) -> str | None:
    """A GPU is busy at most all the time, a process with at most the cores of its machine."""
    execution = record.run["execution"]
    dilation = execution.get("emulation", {}).get("dilation", 1)
    for rank in record.run["ranks"]:
        most = 1.0
        if record.spec.world.device == "cpu":
            # In dilated time what a node's threads do while its rank waits counts in full.
            most = _cores(record, rank) * dilation * BUSY_TOLERANCE + BUSY_TICKS
        if (busy := rank["mean_utilisation"]) is not None and busy > most:
            place = f"rank {rank['rank']}"
            return f"run.json at $.ranks: {place} has a mean_utilisation of {busy}, over its device"
    return None


def memory(record: RunRecord) -> str | None:
    """Ranks on processors take no more memory than their machine has, and hold the weights."""
    if record.spec.world.device != "cpu":
        return None
    least = NARROWEST_BYTES * models.num_parameters(record.spec.model)
    total = sum(rank["peak_memory_bytes"] for rank in record.run["ranks"])
    if total < least:
        said = f"a peak_memory_bytes of {total} together, the weights alone are {least}"
        return f"run.json at $.ranks: {said}"
    if record.spec.world.num_machines > 1:
        return None
    most = record.run["hardware"]["memory_bytes"]
    for rank in record.run["ranks"]:
        if rank["peak_memory_bytes"] > most:
            said = f"rank {rank['rank']} has a peak_memory_bytes of {rank['peak_memory_bytes']}"
            return f"run.json at $.ranks: {said}, over the {most} of its machine"
    return None


def sent(record: RunRecord) -> str | None:
    """What a rank sent is counted in profiled runs alone, along axes of the layout.

    No more steps are counted than are timed, and every group has several of the ranks.
    """
    work, size = record.spec.workload, len(record.run["ranks"])
    for rank in record.run["ranks"]:
        if "sent" not in rank:
            continue
        place, about = f"run.json at $.ranks[{rank['rank']}].sent", rank["sent"]
        if not record.spec.profile:
            return f"{place}: counted, but the run is none to profile"
        if not about["differing_steps"] < about["steps"] <= work.steps - work.untimed_steps:
            return f"{place}: {about['steps']} steps counted, {about['differing_steps']} differing"
        if any(each["ranks"] > size for each in about["collectives"]):
            return f"{place}: a collective of more than {size} ranks"
    return None


def _cores(record: RunRecord, rank: Mapping[str, Any]) -> float:
    """Cores of the machine of a rank; infinite where only those of another machine are known."""
    if "environment" in rank:
        return int(rank["environment"]["num_cores"])
    alone = record.spec.world.num_machines == 1
    return int(record.run["hardware"]["num_cores"]) if alone else math.inf


def environments(record: RunRecord) -> str | None:
    """Every rank says where it was or none does, on as many hosts as the record counts."""
    ranks = record.run["ranks"]
    hosts = {rank["environment"]["host"] for rank in ranks if "environment" in rank}
    told = sum("environment" in rank for rank in ranks)
    if told not in (0, len(ranks)):
        return f"run.json at $.ranks: {told} of {len(ranks)} ranks have an environment"
    counted = record.run["execution"].get("num_hosts", len(hosts))
    if told and counted != len(hosts):
        return f"run.json at $.ranks: {len(hosts)} hosts, num_hosts says {counted}"
    return None


def _some(found: list[int]) -> str:
    return f"{', '.join(map(str, found[:8]))}{', ...' if len(found) > 8 else ''}" or "none"
