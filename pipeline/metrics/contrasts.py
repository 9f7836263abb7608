"""Tests between cells: rows of level `comparison`, the only source of the words faster and slower.

Claims, figures, tables and texts ask `Results` for them, and write `faster` or `slower` only where
a verdict says so.

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
from itertools import combinations, count
from math import comb, inf
from typing import Any

from pipeline.metrics.cells import CellRuns, Groups, find_base, find_plain
from pipeline.metrics.parity import NOT_COMPARED, UNEQUAL
from pipeline.metrics.statistics import (
    ALPHA,
    MIN_REPEATS,
    holm,
    interval_of_ratio,
    largest_effect_size,
    rank_sum,
    smallest_p_value,
)
from pipeline.metrics.table import Rows, interval_row, row
from pipeline.study.equal_work import unequal_work
from pipeline.study.study import Study
from pipeline.study.switches import switches
from pipeline.text import listed, plural

FASTER, SLOWER, UNDECIDED, TOO_FEW = "faster", "slower", "undecided", "too few repeats to decide"


def contrast_rows(
    groups: Groups, declared: Collection[str], parity: Iterable[Rows], bias: float | None
) -> list[Rows]:
    """Rows of all comparisons; `declared` are fields of equal work that the study lets differ.

    `bias` is the share by which times on emulated nodes may be off; None where it was not measured.
    """
    # Cells and node counts of which some verdict of parity is one of `UNEQUAL`.
    unequal = {
        (part.shared["cell"], part.shared["nodes"])
        for part in parity
        if any(value.get("text") in UNEQUAL for value in part.values)
    }
    parts = []
    for family, planned in _families(groups).items():
        pairs = []
        for one, other in planned:
            a, b = one.context, other.context
            about = _against(one, other) | {"level": "comparison"}
            if fields := unequal_work(a, b, declared):
                obstacle = f"not the same {listed(fields).replace('_', ' ')}"
            elif names := [c["cell"] for c in (a, b) if (c["cell"], c["nodes"]) in unequal]:
                obstacle = f"{names[0]} did not compute the same training"
            else:
                pairs.append((about, one, other))
                continue
            text = f"{NOT_COMPARED}: {obstacle}"
            parts.append(Rows(about, [row("speed_verdict", "1", 0.0, text=text)]))
        # Pairs with an obstacle are no tests, and cost the others of their family nothing.
        tests = [rank_sum(one.run_rates, other.run_rates) for _, one, other in pairs]
        adjusted = holm([p_value for p_value, _ in tests])
        # What the correction would leave if no two cells overlapped at all: the best there can be.
        least = holm([smallest_p_value(len(one.ok), len(other.ok)) for _, one, other in pairs])
        corrected = f"corrected for {len(pairs)} {family} (Holm)"
        tested = f"exact rank-sum test (Wilcoxon, Mann & Whitney), {corrected}"
        at_best = "if the two did not overlap at all"
        for (about, one, other), (_, effect), p_value, smallest in zip(
            pairs, tests, adjusted, least, strict=True
        ):
            ratio = interval_of_ratio(one.rate, other.rate)
            # Times of emulated nodes may be off either way: ratios this close to 1 say nothing.
            off = 1.0
            if about["network"] == "emulated":
                off = inf if bias is None else 1.0 + bias
            apart = ratio.low > off or ratio.high < 1 / off
            # The rank test alone would decide by runs that differ, however little; the interval
            # alone has no correction for the number of comparisons.
            if smallest >= ALPHA or ratio.n < MIN_REPEATS:
                verdict = TOO_FEW
            elif p_value < ALPHA and apart:
                verdict = FASTER if ratio.value > 1 else SLOWER
            else:
                verdict = UNDECIDED
            sign = {FASTER: 1.0, SLOWER: -1.0}.get(verdict, 0.0)
            n, largest = {"n": len(one.ok) + len(other.ok)}, (len(one.ok), len(other.ok))
            # The least p-value and the largest effect of so few runs say how to read the others.
            values = [
                interval_row("rate_ratio", "1", ratio),
                row("p_value", "1", p_value, text=tested, **n),
                row("smallest_p_value", "1", smallest, text=f"{at_best}, corrected", **n),
                row("effect_size", "1", effect, text="epsilon squared", **n),
                row("largest_effect_size", "1", largest_effect_size(*largest), text=at_best, **n),
                row("speed_verdict", "1", sign, text=verdict),
            ]
            parts.append(Rows(about, values))
    return parts


def _against(one: CellRuns, other: CellRuns) -> dict[str, Any]:
    """Columns of a row about a cell beside another one."""
    names = {"base": other.name, "other": other.context["cell"]}
    return {**one.context, **names, "other_nodes": other.context["nodes"]}


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
        (group.context["arm"], group.context.get("link"), nodes): group
        for (_, nodes), group in groups.items()
        if group.ok
    }
    parts = []
    for one in switches(study):
        value = row("switch", "count", float(one.beside), n=one.others, text=one.what)
        for (arm, link, nodes), having in at.items():
            if arm == one.having and (without := at.get((one.without, link, nodes))):
                parts.append(Rows(_against(having, without), [value]))
    return parts


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
