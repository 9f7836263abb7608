"""Tests between cells: rows of level `comparison`, the only source of the words faster and slower.

`contrast_rows` makes them; `compared`, `comparisons` and `against_plain` read them back for claims,
figures, tables and texts, which write `faster` or `slower` only where a verdict says so.

Every two cells at one node count are compared, every cell with the base of its speedup, and every
cell under a condition with itself without it. The values are the throughputs of the runs. A verdict
needs both: a rank test that finds a difference after Holm's correction for all comparisons of its
family (the pairs at one node count, the cells against their bases, or the cells under a condition),
and an interval of the ratio of medians that leaves out 1; on emulated nodes also all that these
may be off by on this machine, and nothing is decided of them where that was not measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations, count
from math import comb, inf, nan
from typing import Any

import pandas as pd

from pipeline.metrics.cells import CellRuns, Groups, base_name, find_base, find_plain
from pipeline.metrics.comparison import unequal_work
from pipeline.metrics.parity import NOT_COMPARED, UNEQUAL
from pipeline.metrics.ranks import (
    ALPHA,
    RANK_SUM,
    RankTest,
    holm,
    largest_effect_size,
    rank_sum,
    smallest_p_value,
)
from pipeline.metrics.select import KEYS, beside, bounds_of, cells, pick, plural, records
from pipeline.metrics.statistics import MIN_REPEATS, interval_of_ratio
from pipeline.metrics.table import Rows, interval_row, row, rows
from pipeline.study.study import Study
from pipeline.study.switches import switches

FASTER, SLOWER, UNDECIDED, TOO_FEW = "faster", "slower", "undecided", "too few repeats to decide"


def contrast_rows(
    groups: Groups,
    declared: Collection[str],
    parity: Iterable[Rows],
    bias: float | None = None,
) -> list[Rows]:
    """Rows of all comparisons; `declared` are fields of equal work that the study lets differ.

    `bias` is the share by which times on emulated nodes may be off; None where it was not measured.
    """
    # Cells and node counts of which some verdict of parity is one of `UNEQUAL`.
    unequal = {
        (str(part.shared["cell"]), int(part.shared["nodes"]))
        for part in parity
        if not {*UNEQUAL}.isdisjoint(part.column("text"))
    }
    frames = []
    for family, planned in _families(groups).items():
        pairs = []
        for one, other in planned:
            a, b = one.context, other.context
            about = {**a, "level": "comparison", "base": base_name(b), "other": b["cell"],
                     "other_nodes": b["nodes"]}  # fmt: skip
            if fields := unequal_work(a, b, declared):
                obstacle = f"{', '.join(fields)} differ"
            elif names := [c["cell"] for c in (a, b) if (c["cell"], c["nodes"]) in unequal]:
                obstacle = f"{names[0]} did not compute the same training"
            else:
                pairs.append((about, one, other))
                continue
            text = f"{NOT_COMPARED}: {obstacle}"
            frames.append(rows(about, [row("speed_verdict", "1", 0.0, text=text)]))
        tests = [rank_sum(one.run_rates, other.run_rates) for _, one, other in pairs]
        adjusted = holm([test.p_value for test in tests])
        # What the correction would leave if no two cells overlapped at all: the best there can be.
        least = holm([smallest_p_value(len(one.ok), len(other.ok)) for _, one, other in pairs])
        name = f"{len(pairs)} {family}"
        for pair, test, p, smallest in zip(pairs, tests, adjusted, least, strict=True):
            about, one, other = pair
            frames.append(rows(about, _values(one, other, test, p, smallest, name, bias)))
    return frames


def _families(groups: Groups) -> Mapping[str, list[tuple[CellRuns, CellRuns]]]:
    """The planned comparisons, each family corrected for itself.

    Six repeats can decide a family of 15 pairs: with no overlap at all p is 1/462, and 15 times
    that is 0.032; five repeats cannot (0.12).
    """

    def links(*members: CellRuns) -> list[str]:
        """Links by which cells differ from the others of their arms, each once."""
        contexts = [group.context for group in members]
        return sorted({str(c["link"]) for c in contexts if c["cell"] != c["arm"] and "link" in c})

    finished = [group for group in groups.values() if group.ok]
    # All pairs at a node count that share a link, or use none, of one kind of network.
    families: defaultdict[str, list[tuple[CellRuns, CellRuns]]] = defaultdict(list)
    for one, other in combinations(finished, 2):
        alike = all(one.context[key] == other.context[key] for key in ("nodes", "network"))
        if alike and len(over := links(one, other)) < 2:
            at = plural(one.context["nodes"], "node")
            families[" over ".join([f"pairs at {at}", *over])].append((one, other))
    # Link by link, every cell against its base, and under a condition against itself without it.
    for group in finished:
        base, over = find_base(group, groups), links(group)
        if base is not None and base.context["nodes"] != group.context["nodes"]:
            families[" over ".join(["cells against their base", *over])].append((group, base))
        if (plain := find_plain(group, groups)) is not None:
            name = "cells against themselves without conditions"
            families[" over ".join([name, *over])].append((group, plain))
    return families


def switch_rows(study: Study, groups: Groups) -> list[Rows]:
    """A row for each change of a cell that the study makes by turns, at each link and node count.

    `text` is the change, `other` the cell without it, `value` counts the other changes that both
    cells have, of `n`.
    """
    at = {
        (group.context["arm"], group.context.get("link"), nodes): group.context
        for (_, nodes), group in groups.items()
        if group.ok
    }
    frames = []
    for one in switches(study):
        for (arm, link, nodes), having in at.items():
            if arm == one.having and (without := at.get((one.without, link, nodes))):
                about = {**having, "level": "cell", "base": base_name(without),
                         "other": without["cell"], "other_nodes": nodes}  # fmt: skip
                value = row("switch", "count", float(one.beside), n=one.others, text=one.what)
                frames.append(rows(about, [value]))
    return frames


def largest_family(study: Study) -> tuple[int, str]:
    """Comparisons in the largest family that a study plans, and what they are; see `_families`.

    Every link, and one node, has each cell of the study once, so no family grows with the links.
    """
    nodes = [arm.nodes for arm in study.arms]
    sizes = {"cells against their base": sum(n > 1 for counts in nodes for n in counts)}
    for number in sorted({n for counts in nodes for n in counts}):
        members = sum(number in counts for counts in nodes)
        sizes[f"pairs of {members} cells at {plural(number, 'node')}"] = comb(members, 2)
    what = max(sizes, key=lambda name: sizes[name])
    return sizes[what], what


def fewest_repeats(num_pairs: int) -> int:
    """Repeats of two cells from which a family of so many pairs can decide anything."""
    return next(n for n in count(MIN_REPEATS) if num_pairs * smallest_p_value(n, n) < ALPHA)


def _values(
    one: CellRuns,
    other: CellRuns,
    test: RankTest,
    p_value: float,
    smallest: float,
    family: str,
    bias: float | None,
) -> list[dict[str, Any]]:
    ratio = interval_of_ratio(one.rate, other.rate)
    # Times of emulated nodes may be off either way, so that ratios this close to 1 say nothing.
    off = 1.0
    if one.context["network"] == "emulated":
        off = inf if bias is None else 1.0 + bias
    apart = ratio.low > off or ratio.high < 1 / off
    if smallest >= ALPHA or ratio.n < MIN_REPEATS:
        verdict = TOO_FEW
    elif p_value < ALPHA and apart:
        verdict = FASTER if ratio.value > 1 else SLOWER
    else:
        verdict = UNDECIDED
    n, apart_at_best = test.n, "if the two did not overlap at all"
    effect = largest_effect_size(len(one.ok), len(other.ok))
    corrected = f"{RANK_SUM}, corrected for {family} (Holm)"
    return [
        interval_row("rate_ratio", "1", ratio),
        row("p_value", "1", p_value, n=n, text=corrected),
        row("smallest_p_value", "1", smallest, n=n, text=f"{apart_at_best}, corrected"),
        row("effect_size", "1", test.effect_size, n=n, text="epsilon squared"),
        row("largest_effect_size", "1", effect, n=n, text=apart_at_best),
        row("speed_verdict", "1", {FASTER: 1.0, SLOWER: -1.0}.get(verdict, 0.0), text=verdict),
    ]


@dataclass(frozen=True)
class SpeedTest:
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
    def compared(self) -> bool:
        """True where the two may be compared; else `verdict` says why not."""
        return not self.verdict.startswith(NOT_COMPARED)

    @property
    def too_few(self) -> bool:
        """True where so few repeats could not have decided it, whatever they had measured."""
        return self.verdict == TOO_FEW


def compared(table: pd.DataFrame, one: tuple[str, int], other: tuple[str, int]) -> SpeedTest | None:
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
    text = str(by_metric["speed_verdict"]["text"])
    if "rate_ratio" not in by_metric:
        return SpeedTest(text, nan, nan, nan, nan, nan, n=0)
    ratio, p_value, effect = (by_metric[m] for m in ("rate_ratio", "p_value", "effect_size"))
    value, low, high = (float(ratio[name]) for name in ("value", "low", "high"))
    if asked != one:
        # The inverse ratio: `b` over `a` from `a` over `b`.
        text = {FASTER: SLOWER, SLOWER: FASTER}.get(text, text)
        value, low, high = 1 / value, 1 / high, 1 / low
    n, p = int(ratio["n"]), float(p_value["value"])
    return SpeedTest(text, value, low, high, p, float(effect["value"]), n)


_PAIR = [*KEYS, "other", "other_nodes"]
_FIGURES = ("p_value", "smallest_p_value", "effect_size", "largest_effect_size")


def comparisons(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each comparison; the ratio is the throughput of the cell over the other one's."""
    frame = pick(table, "comparison", "speed_verdict")[[*_PAIR, "arm", "link", "base", "text"]]
    frame = frame.rename(columns={"text": "verdict"})
    frame["other_arm"] = frame["other"].map(cells(table).set_index("cell")["arm"])
    names = {**bounds_of("rate_ratio"), "n": "repeats", "interval": "interval"}
    frame = beside(frame, table, "rate_ratio", names, "comparison", _PAIR)
    for metric in _FIGURES:
        frame = beside(frame, table, metric, {"value": metric}, "comparison", _PAIR)
    return frame


def against_plain(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell under a condition at each node count, condition by condition.

    Only conditions call for a comparison of two cells of one arm on as many nodes. `cell` and
    `plain` are the two, `condition` is the name of the link, `adds` what it adds to the text of
    `plain_link`; `ratio`, `low` and `high` are of step times, NaN where the two are not compared.
    """
    frame, known = comparisons(table), cells(table).set_index("cell")
    frame = frame[(frame["other_arm"] == frame["arm"]) & (frame["nodes"] == frame["other_nodes"])]
    frame = frame.rename(columns={"other": "plain"})
    plain_link = frame["plain"].map(known["link"])
    names = zip(frame["cell"], frame["arm"], strict=True)
    texts = zip(frame["link"], plain_link, strict=True)
    place = {link: number for number, link in enumerate(dict.fromkeys(known["link"].dropna()))}
    frame = frame.assign(
        arm_label=frame["cell"].map(known["arm_label"]),
        condition=[cell.removeprefix(f"{arm}-") for cell, arm in names],
        adds=[link.removeprefix(f"{plain}, ") for link, plain in texts],
        plain_link=plain_link,
        ratio=1 / frame["rate_ratio"],
        low=1 / frame["rate_ratio_high"],
        high=1 / frame["rate_ratio_low"],
        place=frame["link"].map(place),
    )
    frame = frame.sort_values(["place", "nodes"], kind="stable", ignore_index=True)
    frame = beside(frame, table, "step_seconds", bounds_of("seconds"))
    of_plain = bounds_of("plain_seconds")
    seconds = pick(table, "cell", "step_seconds")[[*KEYS, *of_plain]]
    frame = frame.merge(seconds.rename(columns={"cell": "plain", **of_plain}), how="left")
    columns = ["arm", "arm_label", "condition", "adds", "link", "plain_link", "verdict"]
    numbers = ["interval", "ratio", "low", "high", "p_value", *bounds_of("seconds").values()]
    return frame[["cell", "plain", "nodes", *columns, *numbers, *of_plain.values()]]
