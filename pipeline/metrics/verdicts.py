"""Comparisons read back from the table of metrics: all of them, one, and those under conditions.

Figures, tables and the paper write `faster` or `slower` only where a verdict says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from pipeline.metrics.contrasts import FASTER, SLOWER, TOO_FEW
from pipeline.metrics.parity import NOT_COMPARED
from pipeline.metrics.select import KEYS, beside, bounds_of, cells, pick, records


@dataclass(frozen=True)
class Verdict:
    """Answer on a pair of cells; all figures are NaN where they were not to be compared.

    `ratio` is the throughput of the first over that of the second, `low` and `high` its interval;
    `p_value` is corrected for the number of comparisons, `effect_size` is epsilon squared, `n` the
    smaller number of repeats.
    """

    verdict: str
    ratio: float
    low: float
    high: float
    p_value: float
    effect_size: float
    n: int

    @property
    def decided(self) -> bool:
        """Whether the data say which of the two is faster."""
        return self.verdict in (FASTER, SLOWER)

    @property
    def compared(self) -> bool:
        """Whether the two may be compared at all; else `verdict` says why not."""
        return not self.verdict.startswith(NOT_COMPARED)

    @property
    def too_few(self) -> bool:
        """Whether so few repeats could not have decided it, whatever they had measured."""
        return self.verdict == TOO_FEW


def compared(table: pd.DataFrame, one: tuple[str, int], other: tuple[str, int]) -> Verdict | None:
    """Is (cell, nodes) `one` faster than `other`? None where that comparison was not planned."""
    planned = table[table["level"] == "comparison"]
    for asked, met in ((one, other), (other, one)):
        rows = planned[(planned["cell"] == asked[0]) & (planned["nodes"] == asked[1])]
        rows = rows[(rows["other"] == met[0]) & (rows["other_nodes"] == met[1])]
        if not rows.empty:
            break
    else:
        return None
    by_metric = {row["metric"]: row for row in records(rows)}
    text, nan = str(by_metric["speed_verdict"]["text"]), math.nan
    if "rate_ratio" not in by_metric:
        return Verdict(text, nan, nan, nan, nan, nan, n=0)
    ratio, p_value, effect = (by_metric[m] for m in ("rate_ratio", "p_value", "effect_size"))
    value, low, high = (float(ratio[name]) for name in ("value", "low", "high"))
    if asked != one:
        # The inverse ratio: `b` over `a` from `a` over `b`.
        text = {FASTER: SLOWER, SLOWER: FASTER}.get(text, text)
        value, low, high = 1 / value, 1 / high, 1 / low
    n, p = int(ratio["n"]), float(p_value["value"])
    return Verdict(text, value, low, high, p, float(effect["value"]), n)


_PAIR = [*KEYS, "other", "other_nodes"]
_FIGURES = ("p_value", "smallest_p_value", "effect_size", "largest_effect_size")


def comparisons(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each comparison; the ratio is the throughput of the cell over the other one's."""
    found = pick(table, "comparison", "speed_verdict")[[*_PAIR, "arm", "link", "base", "text"]]
    found = found.rename(columns={"text": "verdict"})
    found["other_arm"] = found["other"].map(cells(table).set_index("cell")["arm"])
    names = {**bounds_of("rate_ratio"), "n": "repeats", "interval": "interval"}
    found = beside(found, table, "rate_ratio", names, "comparison", _PAIR)
    for metric in _FIGURES:
        found = beside(found, table, metric, {"value": metric}, "comparison", _PAIR)
    return found


def against_plain(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell under a condition at each node count, condition by condition.

    Only conditions call for a comparison of two cells of one arm on as many nodes. `cell` and
    `plain` are the two, `condition` is the name of the link, `adds` what it adds to the text of
    `plain_link`; `ratio`, `low` and `high` are of step times, NaN where the two are not compared.
    """
    found, known = comparisons(table), cells(table).set_index("cell")
    found = found[(found["other_arm"] == found["arm"]) & (found["nodes"] == found["other_nodes"])]
    found = found.rename(columns={"other": "plain"})
    plain_link = found["plain"].map(known["link"])
    names = zip(found["cell"], found["arm"], strict=True)
    texts = zip(found["link"], plain_link, strict=True)
    place = {link: number for number, link in enumerate(dict.fromkeys(known["link"].dropna()))}
    found = found.assign(
        arm_label=found["cell"].map(known["arm_label"]),
        condition=[cell.removeprefix(f"{arm}-") for cell, arm in names],
        adds=[link.removeprefix(f"{plain}, ") for link, plain in texts],
        plain_link=plain_link,
        ratio=1 / found["rate_ratio"],
        low=1 / found["rate_ratio_high"],
        high=1 / found["rate_ratio_low"],
        place=found["link"].map(place),
    )
    found = found.sort_values(["place", "nodes"], kind="stable", ignore_index=True)
    found = beside(found, table, "step_seconds", bounds_of("seconds"))
    of_plain = bounds_of("plain_seconds")
    seconds = pick(table, "cell", "step_seconds")[[*KEYS, *of_plain]]
    found = found.merge(seconds.rename(columns={"cell": "plain", **of_plain}), how="left")
    columns = ["arm", "arm_label", "condition", "adds", "link", "plain_link", "verdict"]
    numbers = ["interval", "ratio", "low", "high", "p_value", *bounds_of("seconds").values()]
    return found[["cell", "plain", "nodes", *columns, *numbers, *of_plain.values()]]
