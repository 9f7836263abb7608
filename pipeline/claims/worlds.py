"""A study and its metrics as the tests of claims ask them: `Evidence`, and a `Place` in it.

A study is asked by strategy, precision and options, never by its names of cells. Which places a
test compares is chosen in `choose.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from pipeline import strategies
from pipeline.claims.types import Selector
from pipeline.metrics.labels import short_label
from pipeline.metrics.parity import UNEQUAL
from pipeline.metrics.select import pick, records
from pipeline.study.link import LinkSpec
from pipeline.study.study import Study

# Ranks of these networks are processes of one machine and share its cores.
_SHARED = ("loopback", "emulated")
# A model counts as that of a claim within this share of its parameters.
SAME_MODEL = 0.1

APEX, BACKENDS = "apex", ("gloo", "nccl")
"""Software that a claim may name, besides the packages that its strategy requires."""

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

    @property
    def label(self) -> str:
        """What sentences call it."""
        return str(self.row["label"])

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
        """One row for each cell and node count, with the labels of sentences."""
        rows = records(pick(self.table, "cell", "num_ok"))
        return [row | {"label": short_label(row)} for row in rows]

    @cached_property
    def options(self) -> dict[str, Mapping[str, Any]]:
        """Options of each arm, which the table does not hold."""
        return {arm.name: arm.options for arm in self.study.arms}

    @cached_property
    def links(self) -> dict[str, LinkSpec]:
        """Each link, by its text."""
        return {link.text: link for link in self.study.cluster.links}

    @cached_property
    def least(self) -> dict[str, float]:
        """The smallest value of each fact of the runs."""
        runs = self.table[self.table["level"] == "run"]
        least = runs.groupby("metric", sort=False)["value"].min()
        return {str(metric): float(value) for metric, value in least.items()}

    def fact(self, metric: str) -> float:
        """The smallest value of a fact over all runs; NaN where no run has it."""
        return self.least.get(metric, math.nan)

    def after(self, judged: Iterable[World]) -> Evidence:
        """This evidence where these worlds were judged; what was found in the table is kept."""
        _ = self.groups, self.options, self.links, self.least, self.axes, self.parameters
        other = copy(self)
        object.__setattr__(other, "judged", frozenset(judged))
        return other

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

    def substituted(self, place: Place) -> bool:
        """Whether the claim names software, and something else ran in its place here."""
        named, row = place.selector.software, place.row
        ran = [self.study.cluster.backend, *strategies.load(row["strategy"], {}).requires]
        ran += [APEX] if str(row["precision"]).startswith("apex_") else []
        return named is not None and named.lower() not in ran

    def runs(self, places: Iterable[Place], level: str = "run") -> tuple[str, ...]:
        """Ids of the finished runs of these places, timed or profiled, in the study's order."""
        keys = {place.key for place in places}
        status = pick(self.table, level, "status")
        ok = records(status[status["text"] == "ok"])
        return tuple(row["run_id"] for row in ok if (row["cell"], row["nodes"]) in keys)

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
        and want.scaling in (None, row["scaling"])
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
