"""Claims and verdicts: what was said of which cells at which scale, and what became of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.metrics.statistics import Interval
from pipeline.reference import Number
from pipeline.text import parameters, plural

REPRODUCED, NOT_REPRODUCED = "reproduced", "not reproduced"
UNDECIDED, NOT_TESTABLE = "undecided", "not testable here"
DECIDED = (REPRODUCED, NOT_REPRODUCED)
VERDICTS = (*DECIDED, UNDECIDED, NOT_TESTABLE)
"""The four verdicts; an undecided claim was tested, and the data settle nothing."""


class NotTestableError(Exception):
    """Reason why a claim cannot be tested here: a verdict, never an error of the program."""


@dataclass(frozen=True)
class Selector:
    """Selection of the cells of any study that a claim speaks of, as `claims.schema.yaml` says.

    Cells that match `as_published` are preferred, and a difference is said in the verdict. Where
    something else than the `software` that a claim names ran in its place, it decides nothing.
    Two that are equal select the same runs: `points` are of the cost model alone.
    """

    name: str = field(compare=False)
    strategy: str
    precision: str
    options: Mapping[str, Any] = field(default_factory=dict)
    min_batch_per_rank: int = 1
    max_batch_per_rank: float = math.inf
    as_published: Mapping[str, Any] = field(default_factory=dict)
    nodes: int | None = None
    axes: Mapping[str, int] = field(default_factory=dict)
    accumulation: int | None = None
    parameters: float | None = None
    scaling: str | None = None
    software: str | None = None
    points: Sequence[str] = field(default=(), compare=False)

    def __str__(self) -> str:
        def text(value: Any) -> str:
            if not isinstance(value, Mapping):
                return str(value)
            return ", ".join(f"{name} {size}" for name, size in value.items())

        options = ", ".join(f"{key} = {text(value)}" for key, value in self.options.items())
        low, high, axes = self.min_batch_per_rank, self.max_batch_per_rank, text(self.axes)
        narrowed = {
            f" with {options}": options,
            f" at {plural(low, 'sequence')} a rank": low == high,
            f" at {low} or more sequences a rank": 1 < low != high,
            f" at {high:g} or fewer sequences a rank": low != high < math.inf,
            f" on {self.nodes} nodes": self.nodes,
            f" over a mesh of {axes}": axes,
            f" with {self.accumulation} micro-batches a step": self.accumulation,
            f" with {parameters(self.parameters or 0)}": self.parameters,
            f" under {self.scaling} scaling": self.scaling,
            f" by {self.software}": self.software,
        }
        more = "".join(text for text, given in narrowed.items() if given)
        return f"{self.strategy} in {self.precision}{more}"


@dataclass(frozen=True)
class Scale:
    """Scale at which a claim was made; `parameters` counts those of the model.

    A publication that does not state its size has none of the three numbers.
    """

    device: str
    hardware: str
    nodes: int | None = None
    ranks_per_node: int | None = None
    parameters: float | None = None

    @property
    def world(self) -> tuple[int, int] | None:
        """(nodes, ranks), where they are stated."""
        if self.nodes is None or self.ranks_per_node is None:
            return None
        return self.nodes, self.nodes * self.ranks_per_node

    def __str__(self) -> str:
        if self.world is None or self.parameters is None:
            return self.hardware
        nodes, ranks = self.world
        on = f" on {nodes} nodes" if nodes > 1 else ""
        return f"{ranks:,} {self.hardware}{on} with {parameters(self.parameters)}"


@dataclass(frozen=True)
class Region:
    """Range of the effects for which the sentence holds.

    `above` and `below` are sides of `bound`, `about` is a band around it; `tolerance` is relative
    to `bound` and counts for the claim. `within` is below a largest relative distance from the
    numbers that the sentence states.
    """

    comparison: str
    bound: float
    tolerance: float

    @property
    def limits(self) -> tuple[float, float]:
        """Smallest and largest effect that the sentence allows."""
        slack = abs(self.bound) * self.tolerance
        low = -math.inf if self.comparison in ("below", "within") else self.bound - slack
        high = math.inf if self.comparison == "above" else self.bound + slack
        return low, high

    def __str__(self) -> str:
        low, high = self.limits
        if self.comparison == "about":
            return f"{low:.3g} to {high:.3g}"
        if self.comparison == "within":
            share = {0.1: "a tenth", 0.25: "a quarter"}.get(high, f"{100 * high:.3g} %")
            return f"within {share} of these"
        return f"{self.comparison} {low if self.comparison == 'above' else high:.3g}"


@dataclass(frozen=True)
class Claim:
    """One published sentence, in our own words, and the test that it is put to.

    `place` is that in the `source`. `test` is the mapping of the file, with its cells resolved to
    `Selector`s; `needs` names what the test makes no sense without, `published` the effect by the
    authors' own figures. `part_of` is the whole sentence where it was split into claims,
    `shared_effect` what claims of other publications are about too: they count once.
    """

    id: str
    document: str
    sentence: str
    source: str
    place: str
    made_at: Scale
    kind: str
    test: Mapping[str, Any]
    region: Region | None
    needs: Mapping[str, Any]
    published: Number | None
    disagreement: str | None
    part_of: str | None
    shared_effect: str | None


@dataclass(frozen=True)
class Verdict:
    """Verdict on a claim by one study.

    `why` is the reason of a claim that is not testable, else what was compared and what is claimed;
    `scale` says where the claim was made and where it was tested, `notes` what else differs.
    `p_value` is that of the decision; None where no test with an error rate was made. `worlds` are
    the names of the admissible worlds, each with the verdict there. `against`: what leaves a claim
    open besides its interval, `takes`: what would decide it.
    """

    claim: Claim
    verdict: str
    why: str
    scale: str
    effect: Interval | None = None
    notes: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    p_value: float | None = None
    worlds: tuple[tuple[str, str], ...] = ()
    against: str = ""
    takes: str = ""

    @property
    def line(self) -> str:
        """The verdict in one line, with everything that a reader must know besides it."""
        takes = [f"to decide it takes at least {self.takes}"] if self.takes else []
        return "; ".join([f"{self.verdict}: {self.why}", *takes, self.scale, *self.notes])
