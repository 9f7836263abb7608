"""Which cells at which world a test compares, and whether they may be compared at all.

A study is asked by strategy, precision and options, never by its names of cells. A world is a node
count, a number of ranks and a link; it is admissible where every cell of the test finished, trained
the same and did equal work. The nearest to the claim's own scale comes first; where there is none,
the reason of the nearest is given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import pandas as pd

from pipeline.claims.types import Claim, NotTestableError, Selector
from pipeline.metrics.comparison import unequal_fields
from pipeline.metrics.parity import UNEQUAL
from pipeline.metrics.select import listed, pick, plural, records
from pipeline.study.spec import LinkSpec
from pipeline.study.study import Study

ONE_MACHINE, SEVERAL_NODES = "one_machine", "several_nodes"
# Ranks of these networks are processes of one machine and share its cores.
_SHARED = ("loopback", "emulated")
# Between these nodes there is a wire, so that a claim on several nodes can be tested.
_WIRED = ("real", "emulated")
# Work of a step that is no field of equal work, because it leaves the training as it is.
_EXTRA_WORK = ("empty_cache",)
_SINGLE = "single"
# A model counts as that of a claim within this share of its parameters.
SAME_MODEL = 0.1

World = tuple[int, int, str]
"""Nodes, ranks, and the text of the link, empty where there is none."""


@dataclass(frozen=True)
class Place:
    """A cell of the study at one node count; `row` has the columns that all its metrics share."""

    cell: str
    nodes: int
    row: Mapping[str, Any]
    options: Mapping[str, Any]
    selector: Selector

    link: LinkSpec | None = None
    """Where its nodes are emulated and several."""

    @property
    def ranks(self) -> int:
        """Size of the world."""
        return int(self.row["world_size"])

    def beside(self, many: Place) -> bool:
        """Whether it is the same arm over the same network, and over the same link if any."""
        alike = all(self.row[key] == many.row[key] for key in ("arm", "network"))
        return alike and (self.cell == many.cell or 1 in (self.nodes, many.nodes))

    @property
    def key(self) -> tuple[str, int]:
        """(cell, nodes), by which the table of metrics is asked."""
        return self.cell, self.nodes


@dataclass(frozen=True)
class Evidence:
    """A study and its table of metrics, as the tests ask it."""

    study: Study
    table: pd.DataFrame
    bias: float | None = 0.0
    """Share by which times on emulated nodes may be off, as validated; None where it was not."""
    judged: frozenset[World] = frozenset()
    """Worlds in which the claim was judged already, so that `choose` gives another."""

    @cached_property
    def groups(self) -> list[dict[str, Any]]:
        """One row for each cell and node count."""
        return records(pick(self.table, "cell", "num_ok"))

    @cached_property
    def options(self) -> dict[str, Mapping[str, Any]]:
        """Options of each arm, which the table does not hold."""
        return {arm.name: arm.options for arm in self.study.arms}

    @cached_property
    def links(self) -> dict[str, LinkSpec]:
        """Each link, by its text."""
        return {link.text: link for link in self.study.cluster.links}

    def fact(self, metric: str) -> float:
        """The smallest value of a fact over all runs; NaN where no run has it."""
        return float(pick(self.table, "run", metric)["value"].min())

    @cached_property
    def axes(self) -> dict[tuple[str, int], dict[str, int]]:
        """Ranks along each axis of the mesh, by cell and node count; none in former records."""
        found: dict[tuple[str, int], dict[str, int]] = {}
        for row in records(self.table[self.table["metric"].str.startswith("axis:")]):
            axis = str(row["metric"]).partition(":")[2]
            found.setdefault((row["cell"], int(row["nodes"])), {})[axis] = int(row["value"])
        return found

    @cached_property
    def parameters(self) -> dict[tuple[str, int], float]:
        """Parameters of the model that each cell trained at each node count."""
        rows = pick(self.table, "run", "num_parameters").dropna(subset=["value"])
        return {(row["cell"], int(row["nodes"])): float(row["value"]) for row in records(rows)}

    def places(self, selector: Selector) -> list[Place]:
        """Every cell at every node count that the selector means, the preferred ones first."""
        found = [
            Place(
                row["cell"],
                int(row["nodes"]),
                row,
                self.options[row["arm"]],
                selector,
                self.links.get(row["link"]),
            )
            for row in self.groups
        ]
        return sorted((p for p in found if _matches(p) and self._narrow(p)), key=_preference)

    def _narrow(self, place: Place) -> bool:
        """Whether the place has the mesh and the size of model that its selector asks for."""
        want, axes = place.selector, self.axes.get(place.key, {})
        size = self.parameters.get(place.key, math.nan)
        return all(axes.get(name, 1) == size for name, size in want.axes.items()) and (
            want.parameters is None or abs(size / want.parameters - 1) <= SAME_MODEL
        )

    def finished(self, place: Place) -> int:
        """How many repeats finished."""
        return int(place.row["value"])

    def runs(self, places: Iterable[Place]) -> tuple[str, ...]:
        """Ids of the finished runs of these places, in the order of the study."""
        keys = {place.key for place in places}
        status = pick(self.table, "run", "status")
        return tuple(
            str(row["run_id"])
            for row in records(status[status["text"] == "ok"])
            if (row["cell"], int(row["nodes"])) in keys
        )

    def unequal_training(self, place: Place) -> bool:
        """Whether the cell left the tolerance of its training."""
        rows = pick(self.table, "cell", "parity_verdict")
        own = rows[(rows["cell"] == place.cell) & (rows["nodes"] == place.nodes)]
        return bool(own["text"].isin(UNEQUAL).any())

    def own_core_each(self, place: Place) -> bool:
        """Whether each rank has a core, or a device, of its own."""
        row = place.row
        if row["device"] != "cpu":
            return True
        if row["network"] == "emulated":
            # In dilated time each node has its cores; the ranks of a node may have to share them.
            return bool(row["ranks_per_node"] <= self.fact("cores_per_node"))
        ranks = place.ranks if row["network"] in _SHARED else int(row["ranks_per_node"])
        return bool(ranks <= self.fact("num_cores"))


def _matches(place: Place) -> bool:
    want, row = place.selector, place.row
    mixed = str(row["precision"]).startswith(("amp_", "apex_"))
    per_rank = row["global_batch"] / row["data_devices"]
    return bool(
        row["strategy"] == want.strategy
        and (mixed if want.precision == "mixed" else row["precision"] == want.precision)
        and all(place.options.get(key, False) == value for key, value in want.options.items())
        and want.min_batch_per_rank <= per_rank <= want.max_batch_per_rank
        and want.nodes in (None, row["nodes"])
        and want.accumulation in (None, row["accumulation"])
    )


def _preference(place: Place) -> tuple[Any, ...]:
    """Finished cells first, then those as published, plain links before those with conditions.

    Then fast links, Apex before AMP, and the study's order.
    """
    row = place.row
    return (
        row["status"] != "ok",
        len(differences(place)),
        place.link is not None and bool(place.link.conditions),
        -place.link.rate_mbits if place.link else 0.0,
        not str(row["precision"]).startswith("apex"),
        int(row["cell_order"]),
    )


def differences(place: Place) -> dict[str, tuple[Any, Any]]:
    """Where a cell is not as published: key -> (published, here)."""
    have = {"precision": place.row["precision"], **place.options}
    published = place.selector.as_published
    return {
        key: (value, have.get(key)) for key, value in published.items() if have.get(key) != value
    }


def choose(
    evidence: Evidence,
    claim: Claim,
    selectors: Sequence[Selector],
    where: str,
    compares: Iterable[str] = (),
) -> list[Place]:
    """One place for each selector, all at the nearest admissible world that was not judged yet.

    Raises NotTestableError with the reason where there is none.
    """
    found = [evidence.places(selector) for selector in selectors]
    for selector, places in zip(selectors, found, strict=True):
        if not places:
            raise NotTestableError(f"the study has no cell of {selector}")
    parallel = [p for places in found for p in places if p.selector.strategy != _SINGLE]
    reasons: list[str] = []
    judged = {world[:2] for world in evidence.judged} if where == ONE_MACHINE else ()
    for world in _worlds(evidence, claim, parallel, where):
        if world in judged:
            continue
        at = [_at(places, world) for places in found]
        absent = [s for s, places in zip(selectors, at, strict=True) if not places]
        if absent:
            reasons.append(f"the study has no cell of {absent[0]} on {world[1]} ranks")
        for group in product(*at):
            if where == SEVERAL_NODES and world_of(group) in evidence.judged:
                continue
            fault = _fault(evidence, group, set(compares))
            if fault is None:
                return list(group)
            reasons.append(fault)
    raise NotTestableError(reasons[0] if reasons else "every admissible world was judged")


def world_of(places: Sequence[Place]) -> World:
    """The world that a test was made in: that of the largest of its places."""
    largest = max(places, key=lambda p: (p.nodes, p.ranks))
    return largest.nodes, largest.ranks, largest.link.text if largest.link else ""


def _at(places: Sequence[Place], world: tuple[int, int]) -> list[Place]:
    """Those of one selector at a world; a single device is compared with every world."""
    return [
        p
        for p in places
        if (p.nodes, p.ranks) == world or (p.selector.strategy == _SINGLE and p.ranks == 1)
    ]


def _worlds(
    evidence: Evidence, claim: Claim, places: Sequence[Place], where: str
) -> list[tuple[int, int]]:
    """(nodes, ranks) that the claim can be tested at, the nearest to its own scale first.

    Nodes on a loopback are processes of one machine, so they count as one machine and never as
    several nodes.
    """
    made, several = claim.made_at, where == SEVERAL_NODES
    if several:
        _require_wire(places)
        fit = [p for p in places if p.nodes > 1 and p.row["network"] in _WIRED]
    else:
        together = [p for p in places if p.nodes == 1 or p.row["network"] == "loopback"]
        fit = [p for p in together if p.ranks > 1]
        if not fit:
            raise NotTestableError(
                "it is about several ranks on one machine, and here each has one"
            )
    own = [p for p in fit if evidence.own_core_each(p)]
    if not own:
        cores = plural(int(evidence.fact("num_cores")), "core")
        raise NotTestableError(
            f"{min(p.ranks for p in fit)} ranks share {cores}, so that not each has its own"
        )

    def distance(world: tuple[int, int]) -> tuple[float, tuple[int, int]]:
        nodes, ranks = world
        factor = nodes / made.nodes if several else ranks / (made.nodes * made.ranks_per_node)
        return abs(math.log2(factor)), world

    return sorted({(p.nodes, p.ranks) for p in own}, key=distance)


def _require_wire(places: Sequence[Place]) -> None:
    several = [p for p in places if p.nodes > 1]
    if not several:
        raise NotTestableError("the claim is about several nodes, and these cells ran on one only")
    if not any(p.row["network"] in _WIRED for p in several):
        raise NotTestableError(
            "the nodes here are processes of one machine over its loopback: they share its cores "
            "and there is no wire between them"
        )


def _fault(evidence: Evidence, group: Sequence[Place], compares: set[str]) -> str | None:
    """Why these places may not be compared, or None; precision is what most claims are about."""
    for place in group:
        row = place.row
        if row["status"] != "ok":
            return f"{place.cell} on {place.ranks} ranks is {row['status']} ({row['reason']})"
        if evidence.finished(place) < 2:
            return f"{place.cell} on {place.ranks} ranks has one finished run, so no interval"
        if evidence.unequal_training(place):
            return f"{place.cell} on {place.ranks} ranks did not compute the same training"
    over = {str(p.row["link"]) for p in group if p.row["cell"] != p.row["arm"]}
    if len(over) > 1 or len({p.row["network"] for p in group}) > 1:
        return f"{listed(p.cell for p in group)} ran over different links or networks"
    first = group[0]
    for other in group[1:]:
        fields = unequal_fields(pd.Series(dict(first.row)), pd.Series(dict(other.row)))
        extra = [k for k in _EXTRA_WORK if _extra(first, k) != _extra(other, k)]
        unequal = [f.replace("_", " ") for f in [*fields, *extra] if f not in compares]
        if unequal:
            return f"{first.cell} and {other.cell} did unequal work, in {listed(unequal)}"
    return None


def _extra(place: Place, key: str) -> object:
    """Extra work of a step that the selector did not ask for."""
    return None if key in place.selector.options else place.options.get(key, False)
