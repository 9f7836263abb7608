"""Is one cell faster than another? Rows of level `comparison`, the only source of such a sentence.

Every two cells at one node count are compared, every cell with the base of its speedup, and every
cell under a condition with itself without it. The values are the throughputs of the runs. A verdict
needs both: a rank test that finds a difference after Holm's correction for all comparisons of its
family (the pairs at one node count, the cells against their bases, or the cells under a condition),
and an interval of the ratio of medians that leaves out 1; on emulated nodes also all that these
may be off by on this machine, and nothing is decided of them where that was not measured.

`against_plain(table)` reads the comparisons under conditions back from the table of metrics: what a
condition of a link costs, as ratios of step times, for the figure, table and text on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations, count
from math import comb, inf
from typing import Any

import pandas as pd

from pipeline.metrics.cells import Group, Groups, base_name, find_base, find_plain
from pipeline.metrics.comparison import unequal_work
from pipeline.metrics.parity import NOT_COMPARED, UNEQUAL
from pipeline.metrics.pooling import BY_WORLD, circumstances, differing
from pipeline.metrics.ranks import (
    ALPHA,
    RANK_SUM,
    RankTest,
    holm,
    kruskal_wallis,
    largest_effect_size,
    smallest_p_value,
)
from pipeline.metrics.select import cells, pick, plural
from pipeline.metrics.statistics import MIN_REPEATS, bounds, interval_of_ratio
from pipeline.metrics.table import Rows, rows
from pipeline.study.study import Study

FASTER, SLOWER, UNDECIDED, TOO_FEW = "faster", "slower", "undecided", "too few repeats to decide"
Place = tuple[str, int]


@dataclass(frozen=True)
class Pair:
    """Two groups that both have finished runs: `one` is asked about, `other` is what it meets."""

    one: Group
    other: Group

    def obstacle(self, allowed: Collection[str], unequal: Collection[Place]) -> str | None:
        """Why the two are not to be compared, or None."""
        a, b = self.one.context, self.other.context
        fields = unequal_work(a, b, allowed)
        if fields:
            return f"{NOT_COMPARED}: {', '.join(fields)} differ"
        for context in (a, b):
            if (context["cell"], context["nodes"]) in unequal:
                return f"{NOT_COMPARED}: {context['cell']} did not compute the same training"
        return None

    def circumstances_differ(self) -> str:
        """What was not the same in all runs of both, but for what follows from the world."""
        worlds_differ = self.one.context["nodes"] != self.other.context["nodes"]
        runs = (circumstances(run.record.run) for run in [*self.one.ok, *self.other.ok])
        return differing(runs, BY_WORLD if worlds_differ else ())


def contrast_rows(
    groups: Groups,
    declared: Collection[str],
    parity: Iterable[Rows],
    bias: float | None = None,
) -> list[Rows]:
    """Rows of all comparisons; `declared` are fields of equal work that the study lets differ.

    `bias` is the share by which times on emulated nodes may be off; None where it was not measured.
    """
    unequal = _unequal_places(parity)
    frames = []
    for family, pairs in _families(groups).items():
        found = [(pair, pair.obstacle(declared, unequal)) for pair in pairs]
        frames += [
            rows(_context(pair), [_verdict(text, 0.0)]) for pair, text in found if text is not None
        ]
        frames += _decided([pair for pair, text in found if text is None], family, bias)
    return frames


def all_cells_rows(groups: Groups) -> list[dict[str, Any]]:
    """Kruskal-Wallis of all cells at once at each node count, as rows of level `study`."""
    found = []
    for nodes in sorted({nodes for _, nodes in groups}):
        rates = [g.run_rates for (_, n), g in groups.items() if n == nodes and g.ok]
        if len(rates) < 2:
            continue
        test = kruskal_wallis(rates)
        shared = {"level": "study", "unit": "1", "n": test.n, "nodes": nodes}
        text = f"Kruskal-Wallis of {len(rates)} cells, H = {test.statistic:.3g}"
        found += [
            {**shared, "metric": "all_cells_p_value", "value": test.p_value, "text": text},
            {**shared, "metric": "all_cells_effect_size", "value": test.effect_size,
             "text": "epsilon squared"},
        ]  # fmt: skip
    return found


def _unequal_places(parity: Iterable[Rows]) -> set[Place]:
    """Cells and node counts of which some verdict of parity is one of `UNEQUAL`."""
    found = set()
    for part in parity:
        if not {*UNEQUAL}.isdisjoint(part.column("text")):
            found.add((str(part.shared["cell"]), int(part.shared["nodes"])))
    return found


def _families(groups: Groups) -> Mapping[str, list[Pair]]:
    """The planned comparisons, each family corrected for itself.

    All pairs of cells at a node count that share a link (or use none) of one kind of network, every
    cell against the base of its speedup, and every cell under a condition against itself over the
    same link without it, these two again link by link. Six repeats can decide a family
    of 15 pairs: with no overlap at all p is 1/462, and 15 times that is 0.032; five repeats cannot
    (0.12).
    """
    finished = [group for group in groups.values() if group.ok]
    families: dict[str, list[Pair]] = {}
    for one, other in combinations(finished, 2):
        nodes, over = one.context["nodes"], {_over(one), _over(other)} - {""}
        alike = all(one.context[key] == other.context[key] for key in ("nodes", "network"))
        if alike and len(over) < 2:
            family = f"pairs at {plural(nodes, 'node')}{_of(over)}"
            families.setdefault(family, []).append(Pair(one, other))
    for group in finished:
        base = find_base(group, groups)
        if base is not None and base.context["nodes"] != group.context["nodes"]:
            family = f"cells against their base{_of({_over(group)} - {''})}"
            families.setdefault(family, []).append(Pair(group, base))
        plain = find_plain(group, groups)
        if plain is not None:
            family = f"cells against themselves without conditions{_of({_over(group)})}"
            families.setdefault(family, []).append(Pair(group, plain))
    return families


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


def _over(group: Group) -> str:
    """The link by which a cell differs from the others of its arm; empty where there is one."""
    context = group.context
    return str(context.get("link", "")) if context["cell"] != context["arm"] else ""


def _of(links: Collection[str]) -> str:
    return "".join(f" over {link}" for link in links)


def _decided(pairs: list[Pair], family: str, bias: float | None) -> list[Rows]:
    tests = [kruskal_wallis([p.one.run_rates, p.other.run_rates]) for p in pairs]
    adjusted = holm([test.p_value for test in tests])
    # What the correction would leave if no two cells overlapped at all: the best that can come.
    least = holm([smallest_p_value(len(p.one.ok), len(p.other.ok)) for p in pairs])
    return [
        rows(
            _context(pair),
            _values(pair, test, p_value, smallest, f"{len(pairs)} {family}", bias),
        )
        for pair, test, p_value, smallest in zip(pairs, tests, adjusted, least, strict=True)
    ]


def _context(pair: Pair) -> dict[str, Any]:
    other = pair.other.context
    return {
        **pair.one.context,
        "level": "comparison",
        "base": base_name(pair.other),
        "other": other["cell"],
        "other_nodes": other["nodes"],
    }


def _values(
    pair: Pair, test: RankTest, p_value: float, smallest: float, family: str, bias: float | None
) -> list[dict[str, Any]]:
    ratio = interval_of_ratio(pair.one.rate, pair.other.rate)
    overlap = pair.one.rate.overlaps(pair.other.rate)
    # Times of emulated nodes may be off either way, so that ratios this close to 1 say nothing.
    off = 1.0
    if pair.one.context["network"] == "emulated":
        off = inf if bias is None else 1.0 + bias
    apart = ratio.low > off or ratio.high < 1 / off
    if smallest >= ALPHA or ratio.n < MIN_REPEATS:
        verdict = TOO_FEW
    elif p_value < ALPHA and apart:
        verdict = FASTER if ratio.value > 1 else SLOWER
    else:
        verdict = UNDECIDED
    figures = [
        ("p_value", p_value, f"{RANK_SUM}, corrected for {family} (Holm)"),
        ("p_value_uncorrected", test.p_value, RANK_SUM),
        ("smallest_p_value", smallest, "if the two did not overlap at all, corrected"),
        ("effect_size", test.effect_size, "epsilon squared"),
        (
            "largest_effect_size",
            largest_effect_size(len(pair.one.ok), len(pair.other.ok)),
            "if the two did not overlap at all",
        ),
        ("intervals_overlap", float(overlap), "yes" if overlap else "no"),
    ]
    sign = {FASTER: 1.0, SLOWER: -1.0}.get(verdict, 0.0)
    differ = pair.circumstances_differ()
    return [
        {"metric": "rate_ratio", "unit": "1", **bounds(ratio)},
        *({"metric": metric, "unit": "1", "value": value, "n": test.n, "text": text}
          for metric, value, text in figures),
        {"metric": "circumstances_differ", "unit": "1", "value": float(bool(differ)),
         "text": differ or "no"},
        _verdict(verdict, sign),
    ]  # fmt: skip


def _verdict(text: str, sign: float) -> dict[str, Any]:
    return {"metric": "speed_verdict", "unit": "1", "value": sign, "text": text}


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
