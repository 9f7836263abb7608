"""Cuts of a chain of operators, the cheapest of them, and what a step's parts cost.

The problem is that of Alpa (Zheng et al. 2022, arXiv 2201.12023, section 4.2): each operator takes
one of several cuts, neighbours pay to move what passes between them from one cut to the other, and
memory is a limit. Alpa solves it for whole graphs by an integer program; a chain as short as a
block's is enumerated. Which cuts there are, and what they send, says the strategy that runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pipeline.cost.predict import Prediction


@dataclass(frozen=True)
class Prices:
    """Seconds of what a cut changes, on a rank; `ranks` share a cut operator.

    `product`: both passes over (tokens, inputs, outputs). `all_reduce` and `gather` move so many
    numbers of an activation between the ranks. `pieces`: micro-batches of a step. `a_parameter`:
    update and reduction of each parameter that a rank holds, once a step.
    """

    ranks: int
    product: Callable[[int, int, int], float]
    all_reduce: Callable[[int], float]
    gather: Callable[[int], float]
    pieces: int
    a_parameter: float


class Choice(NamedTuple):
    """A cut of an operator: its name, its seconds of a step, and parameters that a rank keeps."""

    name: str
    seconds: float
    kept: int


@dataclass(frozen=True)
class Chain:
    """Operators one after the other, each with its `choices`.

    `moves[n][i][j]`: seconds of a step between choice i of operator n and j of the next one.
    """

    choices: Sequence[Sequence[Choice]]
    moves: Sequence[Sequence[Sequence[float]]]

    def seconds(self, picks: Sequence[int]) -> float:
        """Seconds with these choices."""
        own = sum(each[i].seconds for each, i in zip(self.choices, picks, strict=True))
        between = zip(self.moves, pairwise(picks), strict=True)
        return own + sum(each[i][j] for each, (i, j) in between)

    def kept(self, picks: Sequence[int]) -> int:
        """Parameters that a rank keeps with these choices."""
        return sum(each[i].kept for each, i in zip(self.choices, picks, strict=True))

    def cheapest(self, most: float) -> tuple[int, ...] | None:
        """The choices of least seconds that keep at most so many parameters; None without any.

        All are tried: of four layers with three cuts each there are 81.
        """
        every = product(*(range(len(each)) for each in self.choices))
        fitting = (picks for picks in every if self.kept(picks) <= most)
        return min(fitting, key=self.seconds, default=None)


@dataclass(frozen=True)
class Cuts:
    """The choice for the operators of a model, as `knobs` of the strategy that runs it.

    `computing` and `communicating` are seconds by which a step changes; `share`: of all parameters
    that a rank holds.
    """

    knobs: dict[str, Any]
    computing: float
    communicating: float
    share: float

    def of(self, whole: Prediction) -> Prediction:
        """The step, by that in which every rank has all operators whole."""
        return replace(
            whole,
            computation=whole.computation + self.computing,
            communication=self.share * whole.communication + self.communicating,
            optimiser=self.share * whole.optimiser,
        )
