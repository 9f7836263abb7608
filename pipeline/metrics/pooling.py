"""Whether runs that are pooled were made under the same circumstances.

Repeats of a cell are one sample only where network, processor, software and source were the same.
Where they were not, the cell is marked: rows of metric `mixed`, whose text names what differs. A
comparison of two cells names what differs between their runs (`circumstances_differ`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.metrics.facts import FORMER_CLOCK, FORMER_MTU
from pipeline.metrics.select import listed

YARDSTICK = "forward pass by the yardstick"
BY_WORLD = ("dilation", "threads per rank", YARDSTICK)
"""They follow from the number of nodes, so cells of other worlds differ in them by design."""

NO_IMAGE = "none (on the host)"


def circumstances(run: Mapping[str, Any]) -> dict[str, str]:
    """Name -> value of each circumstance that a record (the content of run.json) tells."""
    execution, provenance = run["execution"], run["provenance"]
    found = {
        "network": str(execution["network"]),
        "threads per rank": str(execution["threads_per_rank"]),
        "clock": str(execution.get("clock", FORMER_CLOCK)),
        "torch": str(run["versions"].get("torch", "unknown")),
        "commit": _commit(provenance),
        "image": str(provenance["image_digest"] or NO_IMAGE),
        "processor": _of_ranks(run, "cpu_model") or str(run["hardware"]["cpu_model"]),
        "GPU": _of_ranks(run, "gpu") or ", ".join(sorted({*run["hardware"]["gpus"]})) or "none",
    }
    if (emulation := execution.get("emulation")) is not None:
        found["MTU"] = str(emulation.get("mtu", FORMER_MTU))
        found["dilation"] = f"{emulation['dilation']:g}"
        # Of one cell on so many nodes: those of other worlds compute other micro-batches.
        if (forward := emulation.get("forward_seconds")) is not None:
            found[YARDSTICK] = f"{1e3 * forward:.4g} ms"
    for name in ("driver", "kernel", "nccl"):
        if told := _of_ranks(run, name):
            found[name] = told
    return found


def _commit(provenance: Mapping[str, Any]) -> str:
    dirty = " with changes" if provenance["git_dirty"] else ""
    return f"{str(provenance['git_commit'] or 'unknown')[:12]}{dirty}"


def _of_ranks(run: Mapping[str, Any], name: str) -> str:
    """The values of a fact over all ranks; empty where no rank tells it."""
    told = {rank.get("environment", {}).get(name) for rank in run["ranks"]}
    return " beside ".join(sorted(str(value) for value in told - {None}))


def mixed(runs: Sequence[Mapping[str, Any]]) -> str:
    """What was not the same in all runs, such as `torch 2.12 and 2.13`; empty where nothing was."""
    return differing([circumstances(run) for run in runs])


def differing(found: Iterable[Mapping[str, str]], leave_out: Sequence[str] = ()) -> str:
    """Each circumstance that has several values, with these. What one run lacks is no value."""
    values: dict[str, set[str]] = {}
    for one in found:
        for name, value in one.items():
            values.setdefault(name, set()).add(value)
    apart = {name: told for name, told in values.items() if len(told) > 1 and name not in leave_out}
    return "; ".join(f"{name} {listed(sorted(told))}" for name, told in apart.items())
