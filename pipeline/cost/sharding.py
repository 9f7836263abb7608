"""Cuts of a chain of operators, the cheapest by an integer program, and what a step's parts cost.

As in Alpa (Zheng et al. 2022, arXiv 2201.12023, section 4.2): each operator takes one of several
cuts, neighbours pay to move what passes between them from one cut to the other, and memory is a
limit. Which cuts there are, and what they send, is said by the strategy that runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, product
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
        """The choices of least seconds that keep at most so many parameters; None without any."""
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint, milp

        # A variable for each choice, which is 0 or 1, and one for each pair of neighbours: the
        # pairs of a choice with those before it add up to it, and so do those with the next ones.
        counts = [len(each) for each in self.choices]
        starts = [0, *accumulate(counts)]
        costs = [one.seconds for each in self.choices for one in each]
        kept = [float(one.kept) for each in self.choices for one in each]
        pairs = [
            (starts[n] + i, starts[n + 1] + j, move[i][j])
            for n, move in enumerate(self.moves)
            for i, j in product(range(counts[n]), range(counts[n + 1]))
        ]
        size = starts[-1] + len(pairs)
        rows: list[Any] = []
        sums: list[float] = []
        for first, end in pairwise(starts):
            rows.append(np.zeros(size))
            rows[-1][first:end] = 1.0
            sums.append(1.0)
        for n in range(len(self.moves)):
            for side in (0, 1):
                for choice in range(starts[n + side], starts[n + side + 1]):
                    rows.append(np.zeros(size))
                    rows[-1][choice] = -1.0
                    sums.append(0.0)
                    for place, pair in enumerate(pairs, starts[-1]):
                        if pair[side] == choice:
                            rows[-1][place] = 1.0
        costs += [seconds for *_, seconds in pairs]
        # The solver's tolerances are absolute, and made for numbers near 1.
        scale = 1e3 / max(map(abs, costs)) if any(costs) else 1.0
        limit = np.zeros((1, size))
        limit[0, : starts[-1]] = np.array(kept) / max(kept)
        solution = milp(
            scale * np.array(costs),
            integrality=(np.arange(size) < starts[-1]).astype(int),
            bounds=Bounds(0, 1),
            constraints=[
                LinearConstraint(np.array(rows), sums, sums),
                LinearConstraint(limit, -np.inf, most / max(kept)),
            ],
            options={"mip_rel_gap": 0.0},
        )
        if solution.x is None:
            return None
        return tuple(int(np.argmax(solution.x[a:b])) for a, b in pairwise(starts))


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
