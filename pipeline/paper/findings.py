"""The results as facts: what scales, and what memory is needed."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pipeline.figures.left_out import left_out
from pipeline.metrics.contrasts import FASTER, SLOWER, TOO_FEW, UNDECIDED
from pipeline.metrics.format import ratio_interval, significant, with_interval
from pipeline.metrics.select import listed, pick, plural, records
from pipeline.metrics.verdicts import faster_than_base

_MEBIBYTE = 2**20
# Ranks of one cell count as asymmetric when the largest needs so much more than the smallest.
_ASYMMETRIC = 1.1


def findings(table: pd.DataFrame) -> dict[str, Any]:
    """Facts about speedup, memory and final loss; empty lists where nothing ran."""
    return {
        "scaling": _scaling(table),
        "memory": _memory(table),
        "loss": _loss(table),
        "spread": _spread(table),
    }


def _spread(table: pd.DataFrame) -> dict[str, str]:
    """The median step time with the widest interval for its size; empty where none has one."""
    rows = pick(table, "cell", "step_seconds").dropna(subset=["low", "high"])
    if rows.empty:
        return {}
    widest = records(rows.loc[[((rows["high"] - rows["low"]) / rows["value"]).idxmax()]])[0]
    value, low, high = (1000 * widest[key] for key in ("value", "low", "high"))
    return {
        "label": widest["label"],
        "nodes": plural(int(widest["nodes"]), "node"),
        "interval": with_interval(value, low, high),
    }


def _scaling(table: pd.DataFrame) -> dict[str, Any]:
    """Each cell's speedup at its largest node count, sorted by the test against its base."""
    speedups = pick(table, "cell", "speedup")
    several = speedups.groupby("cell")["nodes"].transform("max")
    last = speedups[(speedups["nodes"] == several) & (speedups["nodes"] > 1)]
    keys = ["cell", "nodes"]
    ideal = pick(table, "cell", "ideal_speedup")[[*keys, "value"]]
    efficiency = pick(table, "cell", "efficiency")[[*keys, "value", "low", "high"]]
    rows = last.merge(ideal.rename(columns={"value": "ideal"}), on=keys)
    rows = rows.merge(efficiency, on=keys, suffixes=("", "_efficiency"))
    described = [
        {
            "label": row["label"],
            "arm": row["arm_label"],
            "over": row["link"] if row["cell"] != row["arm"] else "",
            "nodes": plural(row["nodes"], "node"),
            "speedup": ratio_interval(row["value"], row["low"], row["high"]),
            "base": row["base"],
            "ideal": significant(row["ideal"], 2),
            "efficiency": ratio_interval(
                row["value_efficiency"], row["low_efficiency"], row["high_efficiency"]
            ),
            "verdict": _verdict(table, row),
        }
        for row in records(rows)
    ]
    bases = pick(table, "cell", "base_tokens_per_second").drop_duplicates("base")
    return {
        "cells": described,
        "links": [
            {
                "link": link,
                **_by_verdict([cell for cell in described if cell["over"] == link]),
            }
            for link in dict.fromkeys(cell["over"] for cell in described)
        ],
        "too_few": any(c["verdict"] == TOO_FEW for c in described),
        "bases": [
            {"name": row["base"], "rate": significant(row["value"])} for row in records(bases)
        ],
    }


def _by_verdict(there: list[dict[str, Any]]) -> dict[str, str]:
    """The cells over one link by whether more nodes paid; `all 5 cells` where all are alike."""

    def named(chosen: list[dict[str, Any]]) -> str:
        if len(chosen) == len(there) > 2:
            return f"all {len(there)} cells"
        return listed(cell["arm"] for cell in chosen)

    faster = [cell for cell in there if cell["verdict"] == FASTER]
    slower = [cell for cell in there if cell["verdict"] == SLOWER]
    unclear = [cell for cell in there if cell["verdict"] not in (FASTER, SLOWER)]
    return {"faster": named(faster), "slower": named(slower), "unclear": named(unclear)}


def _verdict(table: pd.DataFrame, row: dict[str, Any]) -> str:
    """What the comparison of a speedup's cell with its base says; undecided against itself."""
    found = faster_than_base(table, row["cell"], int(row["nodes"]), row["base"])
    return UNDECIDED if found is None else found.verdict


def _memory(table: pd.DataFrame) -> dict[str, Any]:
    """The largest peak of a rank, and the cells whose ranks need unequal memory.

    `even` is why no figure shows them; empty where one does.
    """
    largest = pick(table, "cell", "peak_memory_bytes")
    if largest.empty:
        return {}
    smallest = pick(table, "cell", "least_peak_memory_bytes")[["cell", "nodes", "value"]]
    both = largest.merge(smallest.rename(columns={"value": "least"}), on=["cell", "nodes"])
    both["ratio"] = both["value"] / both["least"]
    uneven = both[both["ratio"] > _ASYMMETRIC].groupby("arm_label", sort=False)
    top = records(both.sort_values("value"))[-1]
    return {
        "cell": top["label"],
        "nodes": plural(int(top["nodes"]), "node"),
        "peak": f"{top['value'] / _MEBIBYTE:,.0f}",
        "percent": f"{100 * (_ASYMMETRIC - 1):.0f}",
        "even": left_out(table).get("memory", ""),
        "uneven": [
            {
                "label": label,
                "nodes": f"{listed(sorted({int(n) for n in rows['nodes']}))} nodes",
                "ratio": " to ".join(
                    dict.fromkeys(significant(f(rows["ratio"])) for f in (min, max))
                ),
            }
            for label, rows in uneven
        ],
    }


def _loss(table: pd.DataFrame) -> dict[str, Any]:
    """First and final loss over all cells and repeats, in nats per token."""
    loss = pick(table, "step", "loss").dropna(subset=["value"])
    if loss.empty:
        return {}
    first = loss[loss["step"] == loss["step"].min()]["value"]
    last = loss[loss["step"] == loss["step"].max()]["value"]
    return {
        "first": f"{first.median():.2f}",
        "last_low": f"{last.min():.3f}",
        "last_high": f"{last.max():.3f}",
        "last_same": f"{last.min():.3f}" == f"{last.max():.3f}",
        "falls": bool(last.max() < first.min()),
    }
