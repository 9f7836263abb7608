"""What the manuscript says about conditions of links: who loses by which, where the data decide."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pipeline.metrics.contrasts import FASTER, SLOWER, against_plain
from pipeline.metrics.format import ratio_interval
from pipeline.metrics.parity import NOT_COMPARED
from pipeline.metrics.select import listed, plural, records


def what_if_facts(table: pd.DataFrame) -> dict[str, Any]:
    """Facts about cells under conditions; empty where none also ran without them."""
    found = against_plain(table)
    if found["ratio"].isna().all():
        return {}
    slower = found[found["verdict"] == SLOWER]
    return {
        "links": listed(found["plain_link"].unique()),
        "several_nodes": found["nodes"].nunique() > 1,
        "places": [
            _place(rows)
            for _, rows in found.groupby(["condition", "nodes"], sort=False)
        ],
        "largest": _most(slower) if found["condition"].nunique() > 1 else {},
    }  # fmt: skip


def _place(rows: pd.DataFrame) -> dict[str, Any]:
    """One condition at one node count: every cell stands in one of the lists."""
    slower = rows[rows["verdict"] == SLOWER].sort_values("ratio", ascending=False, kind="stable")
    apart = rows[rows["verdict"].str.startswith(NOT_COMPARED)]
    decided = rows["verdict"].isin([SLOWER, FASTER])
    undecided = rows[~decided & rows["ratio"].notna()]
    most, others = slower.head(1), slower.iloc[1:]
    near = others[others["high"] >= float(most["low"].iloc[0])] if len(most) else others
    return {
        "condition": rows["condition"].iloc[0],
        "link": rows["link"].iloc[0],
        "nodes": plural(int(rows["nodes"].iloc[0]), "node"),
        "most": _most(slower),
        "near": listed(near["arm_label"]),
        "slower": listed(map(_told, records(others))),
        "faster": listed(map(_told, records(rows[rows["verdict"] == FASTER]))),
        "undecided": listed(map(_told, records(undecided))),
        "apart": listed(apart["arm_label"]),
    }


def _most(slower: pd.DataFrame) -> dict[str, str]:
    """The cell whose step became longest, relative to itself; empty where none became longer."""
    if slower.empty:
        return {}
    top = records(slower.sort_values("ratio", kind="stable"))[-1]
    return {
        "label": top["arm_label"],
        "condition": top["condition"],
        "nodes": plural(int(top["nodes"]), "node"),
        "ratio": _ratio(top),
    }


def _told(row: dict[str, Any]) -> str:
    return f"{row['arm_label']} ({_ratio(row)})"


def _ratio(row: dict[str, Any]) -> str:
    return ratio_interval(row["ratio"], row["low"], row["high"])
