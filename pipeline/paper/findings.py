"""The results as facts: who is fastest at each node count, what scales, what memory is needed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd

from pipeline.figures.left_out import left_out
from pipeline.metrics.contrasts import FASTER, SLOWER, TOO_FEW, UNDECIDED, against_plain
from pipeline.metrics.format import ratio_interval, significant, with_interval
from pipeline.metrics.select import listed, pick, plural, records
from pipeline.metrics.verdicts import faster, faster_than_base
from pipeline.tables import summary

_MEBIBYTE = 2**20
# Ranks of one cell count as asymmetric when the largest needs so much more than the smallest.
_ASYMMETRIC = 1.1


def findings(table: pd.DataFrame) -> dict[str, Any]:
    """Facts about throughput, speedup, memory and final loss; empty lists where nothing ran.

    `headline` is the ranking at the most nodes and over the last link without conditions.
    """
    rankings = _throughput(table)
    several = [one for one in rankings if not one["alone"]]
    return {
        "throughput": rankings,
        "leaders": _leaders(several),
        "several": len(several),
        "decided": sum(one["fastest"] for one in several),
        "largest": summary.largest(table),
        "headline": ([one for one in rankings if not one["condition"]] or [{}])[-1],
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


def _leaders(rankings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How often each cell had the highest median, where it had others; the most often first."""
    firsts = Counter(one["arm"] for one in rankings)
    return [{"label": label, "number": number} for label, number in firsts.most_common()]


def _throughput(table: pd.DataFrame) -> list[dict[str, Any]]:
    """At each node count: the cell of the highest throughput, and which cells it is faster than.

    `beaten`, `undecided` and `apart` (not to be compared) list all other cells by what the test
    says of them; `fastest` is true only where it beats every one.
    """
    rates = pick(table, "cell", "tokens_per_second")
    rates = rates.assign(over=rates["link"].where(rates["cell"] != rates["arm"], "").fillna(""))
    conditions = set(against_plain(table)["link"])
    return [
        {"condition": link in conditions, **_ranking(table, int(str(nodes)), str(link), rows)}
        for nodes, part in rates.groupby("nodes", sort=True)
        for link, rows in part.groupby("over", sort=False)
    ]


def _ranking(table: pd.DataFrame, nodes: int, link: str, rows: pd.DataFrame) -> dict[str, Any]:
    # Where the link is named first, a cell's own name need not end with it.
    named = rows.assign(label=rows["arm_label"]) if link else rows
    ranked = records(named.sort_values("value", ascending=False))
    first, others = ranked[0], ranked[1:]
    near = [row for row in others if row["high"] >= first["low"]]
    answers = [(row["label"], faster(table, first["cell"], row["cell"], nodes)) for row in others]
    open_ones = [(name, v) for name, v in answers if v.compared and v.verdict != FASTER]
    return {
        "nodes": plural(nodes, "node") + (f" over {link}" if link else ""),
        "first": first["label"],
        "arm": first["arm_label"],
        "rate": _interval(first),
        "alone": not others,
        "overlapping": listed(row["label"] for row in near),
        "second": others[0]["label"] if others else "",
        "second_rate": _interval(others[0]) if others else "",
        "beaten": listed(name for name, v in answers if v.verdict == FASTER),
        "undecided": listed(name for name, _ in open_ones),
        "apart": listed(name for name, v in answers if not v.compared),
        "fastest": bool(others) and all(v.verdict == FASTER for _, v in answers),
        "too_few": bool(open_ones) and all(v.too_few for _, v in open_ones),
    }


def _interval(row: dict[str, Any]) -> str:
    return with_interval(row["value"], row["low"], row["high"])


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
