"""Emulated nodes in the manuscript; what they got stands in the table of the environment."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pipeline.metrics.emulation import bias_of
from pipeline.metrics.select import listed, pick, plural


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
    real, shares = pick(table, "real_time", "status"), pick(table, "run", "shares")["text"]
    return {
        "any": True,
        "fell_back": fell_back,
        "links": listed(dict.fromkeys(dilation["link"].dropna())),
        "compared": bool((dilation["cell"] != dilation["arm"]).any()),
        "mtu": listed(f"{one:g}" for one in sorted(pick(table, "run", "mtu")["value"].unique())),
        "cores": f"{pick(table, 'run', 'cores_per_node')['value'].max():g}",
        "dilation": f"{dilation['value'].max():g}",
        "horovod": bool(dilation["strategy"].eq("horovod").any()),
        "shares": sorted(shares.unique()),
        "yardstick": not pick(table, "run", "machine_speed").empty,
        # Whether TCP's timers were dilated in all runs; older records have none of them.
        "tcp": len(pick(table, "run", "tcp_congestion_control")) == len(dilation),
        "accuracy": {
            "measured": bias_of(table) is not None,
            "runs": plural(len(real), "run"),
            "reasons": "; ".join(real["reason"].dropna().unique()),
        },
    }
