"""What the manuscript says of emulated nodes: what was set and what they got."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pipeline.metrics.emulation import bias_of
from pipeline.metrics.format import significant
from pipeline.metrics.select import listed, pick, plural

FULL_SHARE = 0.9
"""A run whose nodes got less of their cores than this shared the machine with something else."""

NAMED_RUNS = 3
"""Of the runs that are marked as stalled."""

METRICS = ("shares", "copies", "cores_per_node", "mtu", "measured_cores", "measured_mbits")
"""What the table says of each run on emulated nodes, beside its dilation."""


def emulation_facts(table: pd.DataFrame) -> dict[str, Any]:
    """Facts of the runs on emulated nodes; `any` is false where there are none. JSON types only."""
    dilation, reasons = pick(table, "run", "dilation"), pick(table, "run", "network_reason")
    # Runs that were to be emulated and were made on the loopback, and why.
    fell_back = {} if reasons.empty else {
        "runs": plural(len(reasons), "timed run"),
        "all": len(reasons) == len(pick(table, "run", "status")),
        "reasons": "; ".join(reasons["text"].unique()),
    }  # fmt: skip
    if dilation.empty:
        return {"any": False, "fell_back": fell_back}
    found = {name: pick(table, "run", name) for name in METRICS}
    share = (
        found["measured_cores"]["value"].to_numpy() / found["cores_per_node"]["value"].to_numpy()
    )
    # The lowest rate that any node of any run got, for each link.
    lowest = found["measured_mbits"].groupby("link", sort=False)["value"].min()
    real = pick(table, "real_time", "status")
    # How many runs were marked as stalled, and the first of them; nothing of former records.
    known = pick(table, "run", "stalled")
    marked = list(known.loc[known["value"] > 0, "run_id"])
    more = [f"{len(marked) - NAMED_RUNS} more"] if len(marked) > NAMED_RUNS else []
    stalled = {"runs": len(marked), "of": len(known),
               "which": listed(marked[:NAMED_RUNS] + more)} if len(known) else {}  # fmt: skip
    return {
        "any": True,
        "fell_back": fell_back,
        "links": listed(dict.fromkeys(dilation["link"].dropna())),
        "compared": bool((dilation["cell"] != dilation["arm"]).any()),
        "mtu": listed(f"{value:g}" for value in sorted(found["mtu"]["value"].unique())),
        "cores": f"{found['cores_per_node']['value'].max():g}",
        "dilation": f"{dilation['value'].max():g}",
        "horovod": bool(dilation["strategy"].eq("horovod").any()),
        "shares": sorted(found["shares"]["text"].unique()),
        "copies": f"{found['copies']['value'].max():g}",
        "least_share": significant(float(share.min()), 2),
        "runs_short": int((share < FULL_SHARE).sum()),
        "runs": len(share),
        "full_share": f"{FULL_SHARE:g}",
        "least_rates": listed(f"{rate:.0f} Mbit/s at {link}" for link, rate in lowest.items()),
        "tcp": _tcp(table, len(share)),
        "stalled": stalled,
        "accuracy": {
            "measured": bias_of(table) is not None,
            "runs": plural(len(real), "run"),
            "reasons": "; ".join(real["reason"].dropna().unique()),
        },
    }  # fmt: skip


def _tcp(table: pd.DataFrame, runs: int) -> dict[str, Any]:
    """How TCP was fitted to dilated time; empty where any of the runs is from before that."""
    control = pick(table, "run", "tcp_congestion_control")["text"]
    if len(control) < runs:
        return {}
    time_outs = pick(table, "run", "tcp_rto_min_seconds")["value"]
    idle = pick(table, "run", "tcp_slow_start_after_idle")["value"]
    return {
        "control": listed(control.unique()),
        # In time of the nodes it is as good as one for all factors.
        "time_out": listed(dict.fromkeys(f"{1000 * one:.0f} ms" for one in sorted(time_outs))),
        "keeps_window": not idle.any(),
    }
