"""Cells of one strategy that differ in one thing alone, where a study changes several by turns.

`lin2020` is such a study: three optimisations, each added to the plain layout and left out of the
full one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import permutations
from typing import Any

from pipeline.study.study import Cell, Study


@dataclass(frozen=True)
class Switch:
    """One change between two arms: `what` it is, the arm `without` it and the one `having` it.

    `beside` counts the other changes that both have, of `others` that the study makes by turns.
    """

    what: str
    without: str
    having: str
    beside: int
    others: int


def switches(study: Study) -> list[Switch]:
    """Every change that at least two pairs of arms show, in the order of the study.

    None where a strategy's cells show one change alone, which the comparison of its pairs says. A
    change is away from what the first cell of the strategy has.
    """
    pairs: defaultdict[tuple[str, str], list[tuple[Cell, Cell]]] = defaultdict(list)
    plain: dict[str, Cell] = {}
    for arm in study.arms:
        plain.setdefault(arm.strategy, arm)
    for without, having in permutations(study.arms, 2):
        changed = _changed(without, having)
        if without.strategy != having.strategy or len(changed) != 1:
            continue
        [(part, what)] = changed.items()
        if what.startswith("global_batch ") and ", " not in what:
            continue  # another batch by itself is another setting, which improves nothing
        # Of a pair in both orders the one that leaves what the first cell has.
        if part not in _changed(plain[without.strategy], without):
            pairs[without.strategy, what].append((without, having))
    kept = {key: both for key, both in pairs.items() if len(both) > 1}
    changes = []
    for (strategy, what), both in kept.items():
        others = sum(strategy == name for name, _ in kept) - 1
        for without, having in both if others else ():
            beside = len(_changed(plain[strategy], without))
            changes.append(Switch(what, without.name, having.name, beside, others))
    return changes


def _changed(one: Cell, other: Cell) -> dict[str, str]:
    """Differences between two cells in words, by the part of a cell that states them."""
    parts: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
        "precision": ({"precision": one.precision}, {"precision": other.precision}),
        "options": (one.options, other.options),
        "workload": (asdict(one.workload), asdict(other.workload)),
        "optimiser": (asdict(one.optimiser), asdict(other.optimiser)),
    }
    return {
        part: ", ".join(
            f"{name} {a.get(name, 'unset')} to {b.get(name, 'unset')}"
            for name in {**a, **b}
            if a.get(name) != b.get(name)
        )
        for part, (a, b) in parts.items()
        if a != b
    }
