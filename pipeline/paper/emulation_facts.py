"""What the manuscript says of emulated nodes: what was set, what they got, how far to trust it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.metrics.select import listed, pick, plural
from pipeline.tables.format import ratio_interval, significant

CHECKS = {
    "dilated_over_undilated": (
        "Step time on one core, dilated, over that on two: {cell}, {rate_mbits:g} Mbit/s",
        "1 ± 0.05",
    ),
    "bandwidth": (
        "All-reduce bandwidth over the set rate: {nodes} nodes, {rate_mbits:g} Mbit/s",
        "0.9 or more",
    ),
    "eight_nodes": ("Step time of 8 nodes dilated onto 2 cores over that on 16", "1 ± 0.1"),
    "twice_as_slow": ("Longer step at half the rate over what a ring costs: {nodes} nodes", "1"),
}
"""What each check of the bench compares, and what an exact emulation gives."""

FULL_SHARE = 0.9
"""A run whose nodes got less of their cores than this shared the machine with something else."""

NAMED_RUNS = 3
"""Of the runs that are marked as stalled."""

METRICS = ("shares", "copies", "cores_per_node", "mtu", "measured_cores", "measured_mbits")
"""What the table says of each run on emulated nodes, beside its dilation."""


def emulation_facts(
    table: pd.DataFrame, validation: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Facts of the runs on emulated nodes; `any` is false where there are none. JSON types only.

    `validation` is what `make bench` wrote; it says itself when and on what it was measured.
    """
    dilation, fell_back = pick(table, "run", "dilation"), _fell_back(table)
    if dilation.empty:
        return {"any": False, "fell_back": fell_back}
    found = {name: pick(table, "run", name) for name in METRICS}
    cores, rates = found["measured_cores"], found["measured_mbits"]
    share = cores["value"].to_numpy() / found["cores_per_node"]["value"].to_numpy()
    return {
        "any": True,
        "fell_back": fell_back,
        "links": listed(dict.fromkeys(dilation["link"].dropna())),
        "compared": bool((dilation["cell"] != dilation["arm"]).any()),
        "mtu": listed(f"{value:g}" for value in sorted(found["mtu"]["value"].unique())),
        "cores": f"{found['cores_per_node']['value'].max():g}",
        "dilation": f"{dilation['value'].max():g}",
        "horovod": bool(dilation["strategy"].eq("horovod").any()),
        "by_fairness": bool((found["shares"]["text"] == "pinned").any()),
        "copies": f"{found['copies']['value'].max():g}",
        "least_share": significant(float(share.min()), 2),
        "runs_short": int((share < FULL_SHARE).sum()),
        "runs": len(share),
        "full_share": f"{FULL_SHARE:g}",
        "least_rates": _least_rates(rates),
        "tcp": _tcp(table, len(share)),
        "stalled": _stalled(table),
        "validation": _validation(validation, table),
    }


def _fell_back(table: pd.DataFrame) -> dict[str, Any]:
    """How many runs were to be emulated and were made on the loopback, and why; empty for none."""
    reasons = pick(table, "run", "network_reason")
    if reasons.empty:
        return {}
    return {
        "runs": plural(len(reasons), "timed run"),
        "all": len(reasons) == len(pick(table, "run", "status")),
        "reasons": "; ".join(reasons["text"].unique()),
    }


def _least_rates(rates: pd.DataFrame) -> str:
    """`948 Mbit/s of 1 Gbit/s`: the lowest that any node of any run got, for each link."""
    lowest = rates.groupby("link", sort=False)["value"].min()
    return listed(f"{value:.0f} Mbit/s at {link}" for link, value in lowest.items())


def _tcp(table: pd.DataFrame, runs: int) -> dict[str, Any]:
    """How TCP was fitted to dilated time; empty where any of the runs is from before that."""
    control = pick(table, "run", "tcp_congestion_control")["text"]
    if len(control) < runs:
        return {}
    time_outs = pick(table, "run", "tcp_rto_min_seconds")["value"]
    idle = pick(table, "run", "tcp_slow_start_after_idle")["value"]
    return {
        "control": listed(control.unique()),
        "time_out": listed(f"{1000 * seconds:.0f} ms" for seconds in sorted(time_outs.unique())),
        "keeps_window": not idle.any(),
    }


def _stalled(table: pd.DataFrame) -> dict[str, Any]:
    """How many runs were marked, and the first of them; empty where none says whether it was."""
    known = pick(table, "run", "stalled")
    marked = known[known["value"] > 0]["run_id"]
    if known.empty:
        return {}
    more = len(marked) - NAMED_RUNS
    return {
        "runs": len(marked),
        "of": len(known),
        "which": listed([*marked[:NAMED_RUNS], *([f"{more} more"] if more > 0 else [])]),
    }


def _validation(result: Mapping[str, Any] | None, table: pd.DataFrame) -> dict[str, Any]:
    """The checks of `bench/emulation.py` as rows of text; none where they were not run.

    They are of this machine where all runs recorded the same processor model and number of cores.
    """
    if result is None:
        return {"rows": []}
    hardware = result["hardware"]
    cpus, cores = (set(pick(table, "run", n)["text"]) for n in ("cpu_model", "num_cores"))
    here = (cpus, cores) == ({hardware["cpu_model"]}, {str(hardware["num_cores"])})
    found = [(check, one) for check in CHECKS for one in _results(result[check])]
    return {
        "measured_at": result["measured_at"][:10],
        "here": here and bool(hardware["cpu_model"]),
        "cpu": hardware["cpu_model"] or "an unknown processor",
        "cores": plural(hardware["num_cores"], "core"),
        "commit": (result["git_commit"] or "unknown")[:12],
        "repeats": result["repeats"],
        "parameters": f"{result['num_parameters'] / 1e6:.2g}",
        "dropped": sum(one.get("dropped", 0) for _, one in found),
        "disturbed": sum(one.get("disturbed", 0) for _, one in found),
        "rows": [_row(check, one) for check, one in found],
    }


def _results(found: Any) -> list[Mapping[str, Any]]:
    """A check of several settings is a list, a check of one a mapping."""
    return found if isinstance(found, list) else [found]


def _row(check: str, one: Mapping[str, Any]) -> dict[str, str]:
    what, expected = CHECKS[check]
    found = (
        f"not run: {one['not_run']}"
        if "not_run" in one
        else ratio_interval(one["value"], one["low"], one["high"], decimals=3)
    )
    return {"what": what.format(**one), "expected": expected, "found": found}
