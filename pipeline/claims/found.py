"""What a test found in one world, and how sure its side of a bound is.

The p-value of a decision is that of one-sided rank tests on the values of the runs, doubled, so
that it agrees with a 95 % interval with two ends. A band has two such tests, one for each end, of
which the weaker counts (two one-sided tests; Schuirmann 1987): no test against equality enters it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.claims.types import REPRODUCED, Region
from pipeline.claims.worlds import Place
from pipeline.metrics.ranks import ALPHA, p_value_above
from pipeline.metrics.statistics import MIN_REPEATS, Floats, Interval

NOMINAL = ALPHA
"""The p-value of a decision by an interval alone, of an effect that is no ratio of two samples."""


@dataclass(frozen=True)
class Contrast:
    """Values of runs over those of others, both of shape (runs,); by default over 1."""

    values: Floats
    others: Floats = field(default_factory=lambda: np.ones(1))

    def above(self, bound: float) -> float:
        """One-sided p-value of the ratio of the two being above a positive bound."""
        return p_value_above(self.values, bound * self.others)

    def below(self, bound: float) -> float:
        """One-sided p-value of the ratio of the two being below a positive bound."""
        return p_value_above(-self.values, -bound * self.others)


@dataclass(frozen=True)
class Found:
    """What a test found: the effect and what it is of, or a finding that is no number.

    The effect is the least (`all`) or the greatest (`any`) of the ratios of `contrasts`; an effect
    without contrasts is decided by its interval alone.
    """

    places: Sequence[Place]
    what: str
    effect: Interval | None = None
    contrasts: Sequence[Contrast] = ()
    combined: str = "all"
    holds: bool | None = None
    why: str = ""
    speeds: Sequence[tuple[Place, Place]] = ()
    """Pairs of which the effect says that the first is faster, or slower, than the second."""
    num_times: int = 0
    """How many ratios of times the effect is made of, each of which emulated nodes may bend."""

    @property
    def too_few(self) -> bool:
        """Whether its repeats are too few for a 95 % interval, so that nothing is decided."""
        return self.effect is not None and self.effect.n < MIN_REPEATS

    def p_value(self, verdict: str, region: Region) -> float:
        """p-value of a decision on the side that the effect's interval lies on."""
        low, high = region.limits
        effect = self.effect
        assert effect is not None
        if not self.contrasts:
            return NOMINAL
        if verdict == REPRODUCED:
            sides = [self._above(low)] if np.isfinite(low) else []
            sides += [self._below(high)] if np.isfinite(high) else []
            one_sided = max(sides)
        else:
            one_sided = self._below(low) if effect.high < low else self._above(high)
        return min(1.0, 2 * one_sided)

    def _above(self, bound: float) -> float:
        """The least of several is above where all are, the greatest where one is (Bonferroni)."""
        each = [contrast.above(bound) for contrast in self.contrasts]
        return max(each) if self.combined == "all" else min(1.0, len(each) * min(each))

    def _below(self, bound: float) -> float:
        each = [contrast.below(bound) for contrast in self.contrasts]
        return min(1.0, len(each) * min(each)) if self.combined == "all" else max(each)


def least(intervals: Sequence[Interval]) -> Interval:
    """The smallest of several, with the bounds of the smallest."""
    return _extreme(intervals, min)


def most(intervals: Sequence[Interval]) -> Interval:
    """The largest of several, with the bounds of the largest.

    Its lower bound is the largest of several, which errs more often than each: a decision on that
    side is corrected for their number by `Found.p_value`.
    """
    return _extreme(intervals, max)


def _extreme(intervals: Sequence[Interval], of: Callable[..., float]) -> Interval:
    hows = "; ".join(dict.fromkeys(one.how for one in intervals))
    return Interval(
        of(one.value for one in intervals), of(one.low for one in intervals),
        of(one.high for one in intervals), min(one.n for one in intervals), hows,
    )  # fmt: skip


RATE = "tokens_per_second"
TIMES = (RATE, "step_seconds", "seconds_to_loss", "model_flops_utilisation", "device_teraflops")
"""Metrics of a test that are times, or follow from one."""


def named(metric: str, places: Sequence[Place]) -> str:
    """A metric of a cell, or of one cell over another, for a reader."""
    name = {RATE: "throughput", "step_seconds": "step time"}.get(metric, metric.replace("_", " "))
    return f"{name} of {joined(places)}"


def joined(places: Sequence[Place], join: str = " over ") -> str:
    """The names of the cells."""
    return join.join(place.label for place in places)
