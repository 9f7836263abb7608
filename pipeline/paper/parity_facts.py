"""What the manuscript may say about parity."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pipeline.metrics.bands import BANDS, FIRST_STEPS
from pipeline.metrics.cells import base_name
from pipeline.metrics.format import limit, scientific
from pipeline.metrics.parity import EQUAL, UNEQUAL
from pipeline.metrics.select import listed, pick, plural, records


def parity_facts(table: pd.DataFrame) -> dict[str, Any]:
    """Counts of the verdicts, the worst deviations and the bands that were applied."""
    verdicts = pick(table, "cell", "parity_verdict")
    equal, unequal = verdicts[verdicts["text"] == EQUAL], verdicts[verdicts["text"].isin(UNEQUAL)]
    skipped = verdicts[~verdicts["text"].isin([EQUAL, *UNEQUAL])]
    used = set(pick(table, "cell", "parity_band")["text"])
    again = pick(table, "cell", "repeats_bit_equal")
    steps = pick(table, "cell", "parity_steps")["value"].dropna()
    # What the cells were held against: a single device, or the first cell of equal work.
    against = set(pd.concat([equal, unequal])["base"])
    places = records(pick(table, "cell", "num_ok"))
    several_ranks = {base_name(row) for row in places if row["world_size"] > 1}
    of_equal_work = "a run of equal work, on a single device where the study has one"
    return {
        "compared": plural(len(equal) + len(unequal), "comparison"),
        "any_compared": len(equal) + len(unequal) > 0,
        "reference": of_equal_work if against & several_ranks else "a single-device run",
        "equal": len(equal),
        "all_equal": len(unequal) == 0,
        "unequal": [_place(row) for row in records(unequal)],
        "skipped": [f"{_place(row)} ({row['text']})" for row in records(skipped)],
        "bands": [
            {
                "name": band.name,
                "first": limit(band.first_step),
                "early": limit(band.first_steps),
                "reason": band.reason,
                **_worst(table, band.name),
            }
            for band in BANDS
            if band.name in used
        ],
        "steps": plural(int(steps.max()) if len(steps) else FIRST_STEPS, "step"),
        "any_repeated": len(again) > 0,
        "repeated": plural(len(again), "setting"),
        "not_deterministic": _settings(again[again["value"] == 0.0]),
    }


def _place(row: dict[str, Any]) -> str:
    against = "" if pd.isna(row["base"]) else f" against {row['base']}"
    return f"{row['label']} at {plural(int(row['nodes']), 'node')}{against}"


def _settings(rows: pd.DataFrame) -> list[str]:
    """Cells with their node counts and links, each said once: `A at 4 and 8 nodes over B and C`."""
    found: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    named = rows.assign(link=rows["link"].astype(object).fillna(""))
    for (arm, link), part in named.groupby(["arm_label", "link"], sort=False):
        nodes = tuple(sorted({int(n) for n in part["nodes"]}))
        found.setdefault((str(arm), nodes), []).extend([str(link)] if link else [])
    return [
        f"{arm} at {listed(nodes)} node{'' if nodes == (1,) else 's'}"
        + (f" over {listed(links)}" if links else "")
        for (arm, nodes), links in found.items()
    ]


def _worst(table: pd.DataFrame, band: str) -> dict[str, str]:
    """Largest deviations among the comparisons that fall under a band."""
    keys = ["cell", "nodes", "base"]
    under = pick(table, "cell", "parity_band")
    under = under.loc[under["text"] == band, keys]

    def largest(*metrics: str) -> str:
        rows = pick(table, "cell", *metrics).merge(under, on=keys)
        return scientific(float(rows["value"].max()))

    return {
        "worst_first": largest("parity_loss_first", "parity_norm_first"),
        "worst_early": largest("parity_loss_early", "parity_norm_early"),
        "worst_loss": largest("parity_loss_all"),
        "worst_norm": largest("parity_norm_all"),
    }
