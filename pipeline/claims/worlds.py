"""A study and its metrics as the tests of claims ask them, and the places that a test compares.

A study is asked by strategy, precision and options, never by its names of cells: `Evidence` gives
every `Place` that a `Selector` means, and `choose` those of the nearest world in which all cells of
a test may be compared: they finished, trained the same and did equal work.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pandas as pd

from pipeline import strategies
from pipeline.claims.types import Claim, NotTestableError, Selector
from pipeline.metrics.parity import UNEQUAL
from pipeline.metrics.results import Results, records
from pipeline.study.equal_work import FIELDS
from pipeline.study.link import LinkSpec
from pipeline.study.study import Study
from pipeline.text import listed, plural

ONE_MACHINE, SEVERAL_NODES = "one_machine", "several_nodes"
# A model counts as that of a claim within this share of its parameters.
SAME_MODEL = 0.1

APEX, BACKENDS = "apex", ("gloo", "nccl")
"""Software that a claim may name, besides the packages that its strategy requires."""

World = tuple[int, int, str]
"""Nodes, ranks, and the text of the link, empty where there is none."""


@dataclass(frozen=True)
class Place:
    """A cell of the study at one node count, with `ranks` in its world and a `label` for sentences.

    `row` has the columns that all its metrics share; `link` is that of its nodes where they are
    emulated and several.
    """

    cell: str
    nodes: int
    ranks: int
    label: str
    row: Mapping[str, Any]
    options: Mapping[str, Any]
    selector: Selector
    link: LinkSpec | None

    @property
    def key(self) -> tuple[str, int]:
        """(cell, nodes), by which the table of metrics is asked."""
        return self.cell, self.nodes

    def beside(self, many: Place) -> bool:
        """True for the same arm over the same network, and over the same link if any."""
        alike = all(self.row[key] == many.row[key] for key in ("arm", "network"))
        return alike and (self.cell == many.cell or 1 in (self.nodes, many.nodes))

    def differences(self) -> dict[str, tuple[Any, Any]]:
        """Options and precision of the cell that are not as published: key -> (published, here)."""
        have = {"precision": self.row["precision"], **self.options}
        published = self.selector.as_published.items()
        return {key: (value, have.get(key)) for key, value in published if have.get(key) != value}


@dataclass(frozen=True)
class Evidence:
    """A study and its results, as the tests ask them."""

    study: Study
    results: Results
    judged: frozenset[World] = frozenset()
    """Worlds in which the claim was judged already, so that `choose` gives another."""

    def rows(self, place: Place, level: str, *metrics: str) -> pd.DataFrame:
        """Rows of these metrics that are of a place, ordered as by `Results.pick`."""
        return own(self.results.pick(level, *metrics), place)

    def places(self, selector: Selector) -> list[Place]:
        """Every cell at every node count that the selector means, the preferred ones first.

        Finished cells come first, then those as published, plain links before those with
        conditions, fast links, Apex before AMP, and the study's order.
        """
        # The table does not hold options.
        options = {arm.name: arm.options for arm in self.study.arms}
        links = {link.text: link for link in self.study.cluster.links}
        places = [
            Place(row["cell"], int(row["nodes"]), int(row["world_size"]), row["label"], row,
                  options[row["arm"]], selector, links.get(row["link"]))
            for row in self.results.places if matches(row, options[row["arm"]], selector)
        ]  # fmt: skip

        def preference(place: Place) -> tuple[Any, ...]:
            row, link = place.row, place.link
            return (
                row["status"] != "ok",
                len(place.differences()),
                link is not None and bool(link.conditions),
                -link.rate_mbits if link else 0.0,
                not str(row["precision"]).startswith("apex"),
                int(row["cell_order"]),
            )

        return sorted(places, key=preference)

    def substituted(self, place: Place) -> bool:
        """True where the claim names software, and something else ran in its place here."""
        named, row = place.selector.software, place.row
        ran = [self.study.cluster.backend, *strategies.load(row["strategy"], {}).requires]
        ran += [APEX] if str(row["precision"]).startswith("apex_") else []
        return named is not None and named.lower() not in ran

    def runs(self, places: Iterable[Place], level: str) -> tuple[str, ...]:
        """Ids of the finished runs of these places, timed or profiled, in the study's order."""
        keys = {place.key for place in places}
        status = self.results.pick(level, "status")
        ok = records(status[status["text"] == "ok"])
        return tuple(row["run_id"] for row in ok if (row["cell"], row["nodes"]) in keys)

    def own_core_each(self, place: Place) -> bool:
        """True where each rank has a core, or a device, of its own."""
        row, network = place.row, place.row["network"]
        # On the loopback all ranks are processes of one machine. In dilated time each node has its
        # cores, which its ranks may have to share.
        ranks = place.ranks if network == "loopback" else row["ranks_per_node"]
        cores = "cores_per_node" if network == "emulated" else "num_cores"
        return bool(row["device"] != "cpu" or ranks <= self.results.least(cores))


def matches(row: Mapping[str, Any], options: Mapping[str, Any], want: Selector) -> bool:
    """True where a cell with these columns and options is one that the selector means."""
    if row["strategy"] != want.strategy:
        return False
    strategy = strategies.load(want.strategy, options)  # whose fields are the options with defaults
    mixed = str(row["precision"]).startswith(("amp_", "apex_"))
    per_rank = row["global_batch"] / row["data_devices"]
    return bool(
        (mixed if want.precision == "mixed" else row["precision"] == want.precision)
        and all(getattr(strategy, key) == value for key, value in want.options.items())
        and want.min_batch_per_rank <= per_rank <= want.max_batch_per_rank
        and want.nodes in (None, row["nodes"])
        and want.accumulation in (None, row["accumulation"])
        and want.scaling in (None, row["scaling"])
        and all(row["axes"].get(name, 1) == size for name, size in want.axes.items())
        and (want.parameters is None or abs(row["parameters"] / want.parameters - 1) <= SAME_MODEL)
    )


def own(table: pd.DataFrame, place: Place) -> pd.DataFrame:
    """Rows of `table` that are of this place."""
    return table[(table["cell"] == place.cell) & (table["nodes"] == place.nodes)]


def choose(
    evidence: Evidence, claim: Claim, selectors: Sequence[Selector], where: str
) -> list[Place]:
    """One place for each selector, all at the nearest admissible world that was not judged yet.

    A world is admissible where every cell of the test finished, trained the same and did equal
    work, but for what the test `compares`. Raises NotTestableError where there is none, with the
    reason of the nearest.
    """
    places_of = [evidence.places(selector) for selector in selectors]
    if unknown := [s for s, places in zip(selectors, places_of, strict=True) if not places]:
        raise NotTestableError(f"the study has no cell of {unknown[0]}")
    # One device is no world of its own: it is the base in all of them.
    parallel = [p for places in places_of for p in places if p.selector.strategy != "single"]
    reasons: list[str] = []
    for world in _worlds(evidence, claim, parallel, where):
        if where == ONE_MACHINE and world in {judged[:2] for judged in evidence.judged}:
            continue
        at = [
            [p for p in places if (p.nodes, p.ranks) == world or p.selector.strategy == "single"]
            for places in places_of
        ]
        if absent := [s for s, places in zip(selectors, at, strict=True) if not places]:
            reasons.append(f"the study has no cell of {absent[0]} on {world[1]} ranks")
        # The places of each selector stand in order of preference, so the first group that may be
        # compared is the best of this world.
        for group in product(*at):
            if where == SEVERAL_NODES and world_of(group) in evidence.judged:
                continue
            fault = _fault(evidence, group, claim.test.get("compares", ()))
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
    if several:
        fit = [p for p in places if p.nodes > 1 and p.row["network"] != "loopback"]
        none = "the claim is about several nodes, and these cells ran on one only"
        if any(p.nodes > 1 for p in places):
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
    # Ranks that share a core slow one another, whichever strategy they run.
    alone = [p for p in fit if evidence.own_core_each(p)]
    if not alone:
        cores = plural(int(evidence.results.least("num_cores")), "core")
        raise NotTestableError(
            f"{min(p.ranks for p in fit)} ranks share {cores}, so that not each has its own"
        )

    def distance(world: tuple[int, int]) -> tuple[float, tuple[int, int]]:
        if made is None:  # the largest is likest to a cluster of unknown size
            return -world[1], world
        factor = world[0] / made[0] if several else world[1] / made[1]
        return abs(math.log2(factor)), world

    return sorted({(p.nodes, p.ranks) for p in alone}, key=distance)


def _fault(evidence: Evidence, group: Sequence[Place], compares: Collection[str]) -> str | None:
    """Reason why these places may not be compared, or None; their precision may differ."""
    for place in group:
        row, at = place.row, f"{place.label} on {place.ranks} ranks"
        if row["status"] != "ok":
            return f"{at} is {row['status']} ({row['reason']})"
        if row["value"] < 2:  # of `num_ok`
            return f"{at} has one finished run, so no interval"
        if evidence.rows(place, "cell", "parity_verdict")["text"].isin(UNEQUAL).any():
            return f"{at} did not compute the same training"
    over = {str(p.row["link"]) for p in group if p.row["cell"] != p.row["arm"]}
    if len(over) > 1 or len({p.row["network"] for p in group}) > 1:
        return f"{listed(p.label for p in group)} ran over different links or networks"

    def work(place: Place) -> dict[str, Any]:
        # Emptying the cache is no field of equal work, because it leaves the training as it is;
        # it counts where the selector says nothing of it.
        key = "empty_cache"
        emptied = None if key in place.selector.options else place.options.get(key, False)
        alike = [field for field in FIELDS if field not in ("precision", *compares)]
        return {field: place.row[field] for field in alike} | {key: emptied}

    first, *others = group
    for other in others:
        one, two = work(first), work(other)
        if unequal := [field.replace("_", " ") for field in one if one[field] != two[field]]:
            why = f"{first.label} and {other.label} did unequal work, in {listed(unequal)}"
            declared = "; a test that is about it says `compares: [global_batch]`"
            return why + (declared if unequal == ["global batch"] else "")
    return None
