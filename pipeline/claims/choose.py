"""Which cells at which world a test compares, and whether they may be compared at all.

A world is a node count, a number of ranks and a link; it is admissible where every cell of the test
finished, trained the same and did equal work. The nearest to the claim's own scale comes first;
where there is none, the reason of the nearest is given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import product

from pipeline.claims.types import Claim, NotTestableError, Selector
from pipeline.claims.worlds import Evidence, Place, World
from pipeline.metrics.comparison import FIELDS
from pipeline.metrics.select import listed, plural

ONE_MACHINE, SEVERAL_NODES = "one_machine", "several_nodes"
# Between these nodes there is a wire, so that a claim on several nodes can be tested.
_WIRED = ("real", "emulated")
# Work of a step that is no field of equal work, because it leaves the training as it is.
_EXTRA_WORK = ("empty_cache",)
_SINGLE = "single"


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
        at = [
            [
                p
                for p in places
                # A single device is compared with every world.
                if (p.nodes, p.ranks) == world or (p.selector.strategy == _SINGLE and p.ranks == 1)
            ]
            for places in found
        ]
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


def _worlds(
    evidence: Evidence, claim: Claim, places: Sequence[Place], where: str
) -> list[tuple[int, int]]:
    """(nodes, ranks) that the claim can be tested at, the nearest to its own scale first.

    Nodes on a loopback are processes of one machine, so they count as one machine and never as
    several nodes.
    """
    made, several = claim.made_at.world, where == SEVERAL_NODES
    many = [p for p in places if p.nodes > 1]
    if several:
        fit = [p for p in many if p.row["network"] in _WIRED]
        none = "the claim is about several nodes, and these cells ran on one only"
        if many:
            none = (
                "the nodes here are processes of one machine over its loopback: they share its "
                "cores and there is no wire between them"
            )
    else:
        together = [p for p in places if p.nodes == 1 or p.row["network"] == "loopback"]
        fit = [p for p in together if p.ranks > 1]
        none = "it is about several ranks on one machine, and here each has one"
    if not fit:
        raise NotTestableError(none)
    own = [p for p in fit if evidence.own_core_each(p)]
    if not own:
        cores = plural(int(evidence.fact("num_cores")), "core")
        raise NotTestableError(
            f"{min(p.ranks for p in fit)} ranks share {cores}, so that not each has its own"
        )

    def distance(world: tuple[int, int]) -> tuple[float, tuple[int, int]]:
        if made is None:  # the largest is likest to a cluster of unknown size
            return -world[1], world
        factor = world[0] / made[0] if several else world[1] / made[1]
        return abs(math.log2(factor)), world

    return sorted({(p.nodes, p.ranks) for p in own}, key=distance)


def _fault(evidence: Evidence, group: Sequence[Place], compares: set[str]) -> str | None:
    """Why these places may not be compared, or None; precision is what most claims are about."""
    for place in group:
        row = place.row
        if row["status"] != "ok":
            return f"{place.label} on {place.ranks} ranks is {row['status']} ({row['reason']})"
        if evidence.finished(place) < 2:
            return f"{place.label} on {place.ranks} ranks has one finished run, so no interval"
        if evidence.unequal_training(place):
            return f"{place.label} on {place.ranks} ranks did not compute the same training"
    over = {str(p.row["link"]) for p in group if p.row["cell"] != p.row["arm"]}
    if len(over) > 1 or len({p.row["network"] for p in group}) > 1:
        return f"{listed(p.label for p in group)} ran over different links or networks"
    first = group[0]
    for other in group[1:]:
        fields = [f for f in FIELDS if f != "precision" and first.row[f] != other.row[f]]
        extra = [k for k in _EXTRA_WORK if _extra(first, k) != _extra(other, k)]
        unequal = [f.replace("_", " ") for f in [*fields, *extra] if f not in compares]
        if unequal:
            return f"{first.label} and {other.label} did unequal work, in {listed(unequal)}"
    return None


def _extra(place: Place, key: str) -> object:
    """Extra work of a step that the selector did not ask for."""
    return None if key in place.selector.options else place.options.get(key, False)
