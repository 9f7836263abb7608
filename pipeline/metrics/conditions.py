"""What a condition of a link costs: `against_plain(table)`, for the figure, table and text on it.

A cell under a condition is compared with the same cell over the same link without it. The ratios,
their intervals and the words are those of the planned comparisons (`pipeline.metrics.contrasts`),
turned from throughputs to step times: over 1 the condition made the step longer.
"""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.select import cells, pick

_KEYS = ["cell", "plain", "nodes"]
_COLUMNS = ["arm", "arm_label", "condition", "adds", "link", "plain_link"]


def against_plain(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell under a condition at each node count, condition by condition.

    `cell` and `plain` are the two cells, `condition` is the name of the link, `adds` what it adds
    to the text of `plain_link`; `ratio`, `low` and `high` are NaN where the two are not compared.
    """
    found = _verdicts(table)
    ratio = pick(table, "comparison", "rate_ratio").rename(columns={"other": "plain"})
    turned = {"ratio": 1 / ratio["value"], "low": 1 / ratio["high"], "high": 1 / ratio["low"]}
    ratio = ratio[[*_KEYS, "interval"]].assign(**turned)
    p_value = pick(table, "comparison", "p_value")
    p_value = p_value.rename(columns={"other": "plain", "value": "p_value"})[[*_KEYS, "p_value"]]
    found = found.merge(ratio, on=_KEYS, how="left").merge(p_value, on=_KEYS, how="left")
    seconds = pick(table, "cell", "step_seconds")[["cell", "nodes", "value", "low", "high"]]
    for of, prefix in (("cell", ""), ("plain", "plain_")):
        own = seconds.set_axis(
            [of, "nodes", *(f"{prefix}seconds{end}" for end in ("", "_low", "_high"))], axis=1
        )
        found = found.merge(own, on=[of, "nodes"], how="left")
    return found


def _verdicts(table: pd.DataFrame) -> pd.DataFrame:
    """The comparisons of two cells of one arm on as many nodes: only conditions call for these."""
    arms, over = (cells(table).set_index("cell")[column] for column in ("arm", "link"))
    rows = pick(table, "comparison", "speed_verdict").rename(
        columns={"other": "plain", "text": "verdict"}
    )
    rows = rows[(rows["plain"].map(arms) == rows["arm"]) & (rows["nodes"] == rows["other_nodes"])]
    pairs = list(zip(rows["cell"], rows["arm"], strict=True))
    rows = rows.assign(
        condition=[cell.removeprefix(f"{arm}-") for cell, arm in pairs],
        plain_link=rows["plain"].map(over),
    )
    both = zip(rows["link"], rows["plain_link"], strict=True)
    rows = rows.assign(adds=[link.removeprefix(f"{plain}, ") for link, plain in both])
    place = {link: number for number, link in enumerate(dict.fromkeys(over.dropna()))}
    order = rows.assign(place=rows["link"].map(place)).sort_values(
        ["place", "nodes", "cell_order"], kind="stable"
    )
    return order[[*_KEYS, *_COLUMNS, "verdict"]].reset_index(drop=True)
