"""Environment of a run, as its record has it: rows of level `run`.

Repeats of a cell are one sample only where network, processor, software and source were the same.
Where they were not, the cell is marked: rows of metric `mixed`, whose text names what differs.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.metrics.flops import flops_per_token, padding_share
from pipeline.metrics.table import row
from pipeline.records import RunRecord, texts
from pipeline.text import listed


def fact_rows(record: RunRecord) -> list[dict[str, Any]]:
    """Versions, hardware and provenance as rows of text, for the table of the environment."""
    run = record.run
    hardware, execution, provenance = run["hardware"], run["execution"], run["provenance"]
    dirty = " (with uncommitted changes)" if provenance["git_dirty"] else ""
    # A record names the axes of its mesh where there are others than `data`.
    layout = execution["layout"]
    axes = dict(layout.get("axes", [("data", layout["data_parallel"])]))
    facts: dict[str, Any] = {
        **{f"version:{name}": version for name, version in sorted(run["versions"].items())},
        **{name: hardware[name] for name in ("cpu_model", "num_cores", "memory_bytes")},
        "gpus": ", ".join(hardware["gpus"]) or "none",
        **{name: execution[name] for name in ("launcher", "threads_per_rank", "backend", "clock")},
        **{f"axis:{name}": size for name, size in axes.items()},
        "git_commit": f"{provenance['git_commit'] or 'unknown'}{dirty}",
        "image_digest": provenance["image_digest"] or "none (run on the host)",
        "tokenizer_sha256": run["data"]["tokenizer_sha256"],
        **{name: run[name] for name in ("started_at", "ended_at")},
        "record_bytes": sum(len(text) for text in texts(record).values()),
    }
    if "network_reason" in execution:
        facts["network_reason"] = execution["network_reason"]
    emulation = execution.get("emulation", {})
    if emulation:
        # Records from before 2026-11-27 count copies of a small world that filled the machine.
        settings = ("dilation", "copies", "shares", "cores_per_node", "mtu")
        facts |= {name: emulation[name] for name in settings if name in emulation}
        # What the nodes really got: the least of all.
        facts["measured_cores"] = min(emulation["measured_cores"])
        if emulation["measured_mbits"]:
            facts["measured_mbits"] = min(emulation["measured_mbits"])
        if "latency_us" in emulation:
            facts["latency_us"] = emulation["latency_us"]
        # In time of the emulated cluster, as all times are.
        tcp = emulation["tcp"]
        facts["tcp_rto_min_seconds"] = tcp["rto_min_ms"] / 1000 / emulation["dilation"]
        facts["tcp_congestion_control"] = tcp["congestion_control"]
    facts |= _facts_of_ranks(run["ranks"])
    if run["precision"] is not None:
        facts["compute_dtype"] = run["precision"]["compute_dtype"]
    if run["model"] is not None:
        facts["num_parameters"] = run["model"]["num_parameters"]
        facts["flops_per_token"] = flops_per_token(record)
        if any("padding_share" in rank for rank in run["ranks"]):
            facts["padding_share"] = padding_share(record)
    # Each as a text, by which runs are told apart, and as a number where it is one.
    values: list[dict[str, Any]] = [
        {"metric": name, "text": str(fact),
         "value": float(fact) if isinstance(fact, int | float) else None}
        for name, fact in facts.items()
    ]  # fmt: skip
    # Whether a run on emulated nodes stalled, and where.
    if emulation and record.status == "ok":
        where = emulation.get("stalled")
        values.append(row("stalled", "1", float(where is not None), text=where or "no"))
    return values


def _facts_of_ranks(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Machines of the ranks, with all values that they have; nothing in older records."""
    environments = [rank["environment"] for rank in ranks if "environment" in rank]
    names = ("host", "kernel", "virtualisation", "driver", "nccl", "interface", "interface_mbits")
    values = {name: sorted({str(one[name]) for one in environments} - {"None"}) for name in names}
    facts: dict[str, Any] = {name: ", ".join(own) for name, own in values.items() if own}
    # The networks of NCCL as it tells of them; `nccl_tcp` where it used TCP sockets.
    accounts = [rank["nccl"] for rank in ranks if "nccl" in rank]
    for name in ("transports", "cards"):
        if used := sorted({value for one in accounts for value in one[name]}):
            facts[f"nccl_{name}"] = ", ".join(used)
    if channels := [one["channels"] for one in accounts if one["channels"] is not None]:
        facts["nccl_channels"] = max(channels)
    if any(one["tcp"] for one in accounts):
        facts["nccl_tcp"] = 1
    if shares := [rank["steal_share"] for rank in ranks if "steal_share" in rank]:
        facts["steal_share"] = max(shares)
    if speeds := [rank["machine_speed"]["median"] for rank in ranks if "machine_speed" in rank]:
        facts["machine_speed"] = statistics.median(speeds)
    if clocks := [mhz for rank in ranks if (mhz := rank.get("cpu_mhz")) is not None]:
        facts["cpu_mhz"] = min(clocks)
    return facts


def circumstances(run: Mapping[str, Any]) -> dict[str, str]:
    """Name -> value of each circumstance that a record (the content of run.json) tells."""

    def of_ranks(name: str) -> str:
        """The values of a fact over all ranks; empty where no rank tells it."""
        values = {rank.get("environment", {}).get(name) for rank in run["ranks"]}
        return " beside ".join(sorted(str(value) for value in values - {None}))

    execution, provenance = run["execution"], run["provenance"]
    dirty = " with changes" if provenance["git_dirty"] else ""
    known = {
        "network": str(execution["network"]),
        "threads per rank": str(execution["threads_per_rank"]),
        "torch": str(run["versions"].get("torch", "unknown")),
        "commit": f"{str(provenance['git_commit'] or 'unknown')[:12]}{dirty}",
        "image": str(provenance["image_digest"] or "none (on the host)"),
        "processor": of_ranks("cpu_model") or str(run["hardware"]["cpu_model"]),
        "GPU": of_ranks("gpu") or ", ".join(sorted({*run["hardware"]["gpus"]})) or "none",
        **{name: of_ranks(name) for name in ("driver", "kernel", "nccl")},
    }
    if (emulation := execution.get("emulation")) is not None:
        known["MTU"] = str(emulation["mtu"])
        known["dilation"] = f"{emulation['dilation']:g}"
        # Of one cell on so many nodes: those of other worlds compute other micro-batches.
        if (forward := emulation.get("forward_seconds")) is not None:
            known["forward pass by the yardstick"] = f"{1e3 * forward:.4g} ms"
    return {name: value for name, value in known.items() if value}


def mixed(runs: Sequence[Mapping[str, Any]]) -> str:
    """Circumstances with several known values, such as `torch 2.12 and 2.13`; empty without any."""
    known = [circumstances(run) for run in runs]
    names = dict.fromkeys(name for one in known for name in one)
    values = {name: {one[name] for one in known if name in one} for name in names}
    return "; ".join(f"{n} {listed(sorted(own))}" for n, own in values.items() if len(own) > 1)
