"""Ask the table of metrics whether one cell is faster than another: `faster(table, a, b, nodes)`.

Figures, tables and the paper write `faster` or `slower` only where the verdict says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from pipeline.errors import ComparisonError
from pipeline.metrics.contrasts import FASTER, SLOWER, TOO_FEW
from pipeline.metrics.parity import NOT_COMPARED
from pipeline.metrics.select import records


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
    overlap: bool

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


def faster(table: pd.DataFrame, one: str, other: str, nodes: int) -> Verdict:
    """Is cell `one` faster than cell `other` at `nodes` nodes?

    Raises ComparisonError where the table holds no such comparison.
    """
    found = compared(table, (one, nodes), (other, nodes))
    if found is None:
        raise ComparisonError(
            f"no comparison of {one!r} with {other!r} at {nodes} nodes; name two cells of the "
            "study that both have a finished run there, over one link"
        )
    return found


def compared(table: pd.DataFrame, one: tuple[str, int], other: tuple[str, int]) -> Verdict | None:
    """Is (cell, nodes) `one` faster than `other`? None where that comparison was not planned."""
    for (cell, nodes), (against, at), turn in ((one, other, False), (other, one, True)):
        rows = [
            row
            for row in _comparison(table, cell, nodes)
            if (row["other"], row["other_nodes"]) == (against, at)
        ]
        if rows:
            return _turn(_figures(rows)) if turn else _figures(rows)
    return None


def faster_than_base(table: pd.DataFrame, cell: str, nodes: int, base: str) -> Verdict | None:
    """Is `cell` at `nodes` faster than the base of its speedup, named as in the column `base`?

    None where the cell is its own base.
    """
    rows = [row for row in _comparison(table, cell, nodes) if row["base"] == base]
    return _figures(rows) if rows else None


def _comparison(table: pd.DataFrame, cell: str, nodes: int) -> list[dict[str, Any]]:
    rows = table[table["level"] == "comparison"]
    columns = ["other", "other_nodes", "base", "metric", "value", "low", "high", "n", "text"]
    return records(rows.loc[(rows["cell"] == cell) & (rows["nodes"] == nodes), columns])


def _figures(rows: Sequence[Mapping[str, Any]]) -> Verdict:
    by_metric = {row["metric"]: row for row in rows}
    text = str(by_metric["speed_verdict"]["text"])
    if "rate_ratio" not in by_metric:
        nan = float("nan")
        return Verdict(text, nan, nan, nan, nan, nan, 0, overlap=False)
    ratio = by_metric["rate_ratio"]
    return Verdict(
        text,
        float(ratio["value"]),
        float(ratio["low"]),
        float(ratio["high"]),
        float(by_metric["p_value"]["value"]),
        float(by_metric["effect_size"]["value"]),
        int(ratio["n"]),
        overlap=bool(by_metric["intervals_overlap"]["value"]),
    )


def _turn(found: Verdict) -> Verdict:
    """The verdict on the inverse ratio: `b` over `a` from `a` over `b`."""
    verdict = {FASTER: SLOWER, SLOWER: FASTER}.get(found.verdict, found.verdict)
    return replace(
        found, verdict=verdict, ratio=1 / found.ratio, low=1 / found.high, high=1 / found.low
    )
