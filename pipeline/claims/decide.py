"""Rules by which an effect decides: interval, the tests behind it, one error rate for a study.

An effect counts with its whole 95 % interval: inside what the sentence allows it is reproduced,
outside not reproduced, and where it lies on both sides the data settle nothing. From fewer than six
runs of a cell there is no such interval, so nothing is decided. Times on emulated nodes must decide
also when they are off, either way, by what the emulation was found to be.

The p-value of a decision is that of one-sided rank tests on the values of the runs, doubled, so
that it agrees with a 95 % interval with two ends. A band has two such tests, one for each end, of
which the weaker counts (two one-sided tests; Schuirmann 1987): no test against equality enters it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple

from pipeline.claims.quantities import kind_of_runs
from pipeline.claims.types import DECIDED, NOT_REPRODUCED, REPRODUCED, UNDECIDED, Region, Verdict
from pipeline.claims.worlds import Evidence, Place
from pipeline.metrics.contrasts import FASTER, SLOWER, TOO_FEW
from pipeline.metrics.emulation import WHERE_MEASURED
from pipeline.metrics.format import probability, ratio_interval, with_interval
from pipeline.metrics.statistics import (
    ALPHA,
    COUNTED,
    MIN_REPEATS,
    Floats,
    Interval,
    holm,
    p_value_above,
)
from pipeline.text import plural, significant

REAL = "real nodes"
MOST_RUNS = 10
"""Largest number of runs that a claim is said to need, as a multiple of those that it has."""

Contrast = tuple[Floats, Floats]
"""Values of runs, shape (runs,), over those of others, or over one number, shape (1,)."""


class Beside(NamedTuple):
    """The effect by a second metric, which must decide alike."""

    effect: Interval
    how: str
    """The difference of that metric, in words."""
    agreeing: str
    """A study in which both would say the same, in words."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a test: the effect and what it is of, or a finding that is no number.

    The effect is the least or the greatest of the ratios of `contrasts`; an effect without
    contrasts, which is no ratio of two samples, is decided by its interval alone.
    """

    places: Sequence[Place]
    what: str = ""
    effect: Interval | None = None
    contrasts: Sequence[Contrast] = ()
    least: bool = True
    holds: bool | None = None
    why: str = ""
    speeds: Sequence[tuple[Place, Place]] = ()
    """Pairs of which the effect says that the first is faster, or slower, than the second."""
    num_times: int = 0
    """Number of ratios of times in the effect, each of which emulated nodes may bend."""
    bent: Callable[[float], tuple[float, float]] | None = None
    """Ends of the effect where a step on several nodes is off by up to this factor; asked where the
    effect is no product of ratios of times, which `num_times` counts."""
    beside: Beside | None = None
    kind_of_runs: str = ""
    """`profiled `, as `kind_of_runs` of a claim gives it."""


class Settled(NamedTuple):
    """A verdict with the finding behind it, its p-value where a test with one was made.

    `against` is what leaves it open besides the interval, a clause; `takes` what it takes at least
    to decide it, at the same effect and spread.
    """

    verdict: str
    why: str
    p_value: float | None = None
    against: str = ""
    takes: str = ""


def settle(outcome: Outcome, region: Region | None, evidence: Evidence) -> Settled:
    """The verdict on an outcome by itself."""
    effect = outcome.effect
    if effect is None or region is None:
        return Settled(REPRODUCED if outcome.holds else NOT_REPRODUCED, outcome.why)
    about = f"{outcome.what} is {effect_text(effect, region.limits)}"
    verdict = within(effect.low, effect.high, region)
    if effect.how == COUNTED:
        return Settled(verdict, f"{about}, claimed {region}")
    if effect.n < MIN_REPEATS:
        takes = f"{MIN_REPEATS} {outcome.kind_of_runs}runs a cell"
        return Settled(UNDECIDED, f"{about} (claimed {region})", takes=takes)
    if verdict == UNDECIDED:
        against = _beside(outcome)
        grounds = f"and the interval includes the bound{against and f', and {against}'}"
        why = f"{about}, {grounds} (claimed {region})"
        takes = _narrower(outcome, effect, region, evidence)
        return Settled(UNDECIDED, why, None, against, takes)
    # The interval decides. Whatever else speaks against it is enough to leave the claim open.
    p_value = _p_value(outcome, effect, verdict, region)
    against, takes = _objection(outcome, effect, verdict, region, evidence)
    if not against and p_value > ALPHA:
        against = f"the rank tests do not decide (p = {probability(p_value)})"
        takes = _runs(effect.n, _power(p_value), outcome.kind_of_runs)
    if against:
        why = f"{about}, and {against} (claimed {region})"
        return Settled(UNDECIDED, why, None, against, takes)
    return Settled(verdict, f"{about}, claimed {region}", p_value)


def _narrower(outcome: Outcome, effect: Interval, region: Region, evidence: Evidence) -> str:
    """The least that would decide an effect whose interval includes a bound, in words.

    That is more runs, unless the value would stay open however narrow its interval were.
    """
    at, beside = effect.value, outcome.beside
    verdict, growth = within(at, at, region), _growth(effect, region)
    if beside is not None:
        if within(beside.effect.value, beside.effect.value, region) != verdict:
            return beside.agreeing
        growth = max(growth, _growth(beside.effect, region))
    exact = replace(effect, low=at, high=at)
    _, takes = _by_emulation(outcome, exact, verdict, region, evidence)
    return takes or _runs(effect.n, growth, outcome.kind_of_runs)


def _growth(effect: Interval, region: Region) -> float:
    """Factor by which an interval must narrow so that it includes no bound; 1 where it does not."""
    at, low, high = effect.value, effect.low, effect.high
    inside = [limit for limit in region.limits if low <= limit <= high]
    ends = [(high if limit > at else low, limit) for limit in inside]
    factors = [math.inf if limit == at else (end - at) / (limit - at) for end, limit in ends]
    return max(factors, default=1.0)


def _power(p_value: float) -> float:
    """Factor by which a normal statistic must grow so that its p-value, now this, becomes ALPHA."""
    normal = NormalDist()
    now = normal.inv_cdf(1 - p_value / 2)
    return normal.inv_cdf(1 - ALPHA / 2) / now if now > 0 else math.inf


def _runs(n: int, growth: float, kind: str) -> str:
    """Number of runs, in words, with which a precision grows by a factor, as their root does."""
    return f"{max(n + 1, math.ceil(n * min(growth**2, MOST_RUNS)))} {kind}runs a cell"


def within(low: float, high: float, region: Region) -> str:
    """The verdict on an effect that lies from `low` to `high`."""
    least, most = region.limits
    if least <= low and high <= most:
        return REPRODUCED
    return NOT_REPRODUCED if high < least or low > most else UNDECIDED


def effect_text(effect: Interval, limits: Sequence[float], runs: str = "") -> str:
    """The effect with its interval, which it has from six runs on, and needs where it has noise.

    `runs` says how many there are of an effect that has none. No bound is rounded onto one of the
    `limits` of what was claimed: the verdict would seem to be another one.
    """
    if effect.how == COUNTED:
        return f"{significant(effect.value)} (counted)"
    if effect.n < MIN_REPEATS:
        few = runs or f"{effect.n} of the {MIN_REPEATS} runs it needs"
        return f"{significant(effect.value)} (no interval: {few})"
    ends = effect.low, effect.high
    if not 0.05 <= effect.value < 1000:
        return with_interval(effect.value, *ends)
    decimals = 2
    while decimals < 4 and any(
        round(end, decimals) == round(limit, decimals) != end for end in ends for limit in limits
    ):
        decimals += 1
    return ratio_interval(effect.value, *ends, decimals)


def _p_value(outcome: Outcome, effect: Interval, verdict: str, region: Region) -> float:
    """p-value of a decision on the side that the effect's interval lies on."""
    # Of an interval alone no more is known than that its test at 95 % would decide.
    if not outcome.contrasts:
        return ALPHA
    low, high = region.limits

    def p_of(side: int, bound: float) -> float:
        """One-sided p-value of the effect being above (side 1) or below (-1) a bound over 0."""
        each = [
            p_value_above(side * values, side * bound * others)
            for values, others in outcome.contrasts
        ]
        # The least of several is above where all are, the greatest where one is (Bonferroni).
        return max(each) if outcome.least == (side > 0) else min(1.0, len(each) * min(each))

    sides = [(-1, low)] if effect.high < low else [(1, high)]
    if verdict == REPRODUCED:
        sides = [(1, low), (-1, high)]
    # A region open at one end has one test, of a band the weaker of two counts. Doubled, since a
    # 95 % interval leaves 2.5 % at each of its ends.
    return min(1.0, 2 * max(p_of(side, at) for side, at in sides if math.isfinite(at)))


def _beside(outcome: Outcome) -> str:
    """The effect by the second metric in words; nothing where there is none."""
    if outcome.beside is None:
        return ""
    other, how, _ = outcome.beside
    one_value = other.low == other.high or other.n < MIN_REPEATS
    return f"{how} {significant(other.value) if one_value else effect_text(other, ())}"


def _objection(
    outcome: Outcome, effect: Interval, verdict: str, region: Region, evidence: Evidence
) -> tuple[str, str]:
    """An objection to a decision besides its own rank tests, or nothing; a remedy for it."""
    beside = outcome.beside
    if beside and within(beside.effect.low, beside.effect.high, region) != verdict:
        takes = beside.agreeing
        if within(beside.effect.value, beside.effect.value, region) == verdict:
            takes = _runs(effect.n, _growth(beside.effect, region), outcome.kind_of_runs)
        return _beside(outcome), takes
    against, takes = _by_emulation(outcome, effect, verdict, region, evidence)
    if against:
        return against, takes
    # The planned comparisons, by which the paper speaks of faster, test equality, so they are asked
    # about claims of more or less than 1 alone; the band of `slightly` ends there too.
    at_one = any(math.isclose(limit, 1.0, rel_tol=1e-3) for limit in region.limits)
    if not at_one or not outcome.speeds or effect.low <= 1 <= effect.high:
        return "", ""
    known = []
    for one, other in outcome.speeds:
        test = evidence.results.compared(one.key, other.key)
        if test is None:
            pair = f"{one.label} with {other.label}"
            return f"no comparison of {pair} was planned", "a study that plans this comparison"
        if not test.compared:
            return f"{one.label} and {other.label} were {test.verdict}", "equal work and training"
        known.append(test)
    # So few repeats could not have decided it, whatever they had measured.
    if any(test.verdict == TOO_FEW for test in known):
        few = f"{plural(known[0].n, 'repeat')} are too few for the rank test"
        return few, f"{known[0].n + 1} runs a cell"
    above = effect.value > 1
    decided = [test.verdict == (FASTER if above else SLOWER) for test in known]
    # The least of several is above 1 where all are, and below where one is.
    every = outcome.least == above
    if (all if every else any)(decided):
        return "", ""
    p_value = (max if every else min)(test.p_value for test in known)
    by_rank = f"the rank test between them does not decide (p = {probability(p_value)})"
    return by_rank, _runs(effect.n, _power(p_value), "")


def _by_emulation(
    outcome: Outcome, effect: Interval, verdict: str, region: Region, evidence: Evidence
) -> tuple[str, str]:
    """The objection that emulated times are off by too much, or nothing; with what removes it."""
    emulated = any(place.row["network"] == "emulated" for place in outcome.places)
    if not emulated or not (outcome.num_times or outcome.bent):
        return "", ""
    if (bias := evidence.results.bias) is None:
        return "how far emulated times are off was not measured here", WHERE_MEASURED

    def ends(bias: float) -> tuple[float, float]:
        """Ends of the effect where each ratio of times is off by so much, all the same way."""
        if outcome.bent:
            return outcome.bent(1 + bias)
        off = (1 + bias) ** outcome.num_times
        return effect.low / off, effect.high * off

    least, most = ends(bias)
    if within(least, most, region) == verdict:
        return "", ""
    per_cent = range(math.ceil(100 * bias) - 1, 0, -1)
    fit = next((one for one in per_cent if within(*ends(one / 100), region) == verdict), None)
    takes = f"emulated times off by at most {fit} %, or {REAL}" if fit else REAL
    if outcome.bent:
        finite = math.isfinite(least) and math.isfinite(most)
        it = f"is {significant(least)} to {significant(most)}" if finite else "could be any"
        return f"with steps as far off as emulated ones may be it {it}", takes
    off = (1 + bias) ** outcome.num_times - 1
    return f"within the emulation's own bias of {100 * off:.1f} % of the bound", takes


def corrected(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts of a study with Holm's correction for all of its tested claims.

    So the chance that noise between runs makes any decided verdict wrong is at most `ALPHA`. A
    finding without an error rate (a run that broke, what fits, counted bytes) is not among them.
    """
    tested = [one for one in verdicts if one.effect is not None and one.effect.how != COUNTED]
    # What did not decide by itself cannot decide now; it counts among the tests all the same.
    p_values = [1.0 if one.p_value is None else one.p_value for one in tested]
    adjusted = dict(zip([one.claim.id for one in tested], holm(p_values), strict=True))
    claims, final = plural(len(tested), "tested claim"), []
    for one in verdicts:
        p_value = adjusted.get(one.claim.id)
        if one.verdict in DECIDED and p_value is not None:
            how = f"p = {probability(p_value)} after correction for {claims}"
            assert one.effect is not None
            takes = _runs(one.effect.n, _power(p_value), kind_of_runs(one.claim))
            if one.p_value == ALPHA:  # of no test, see `_p_value`
                how = f"by its 95 % interval alone, counted with {how}"
                takes = "that all other tested claims are decided"
            one = replace(one, why=f"{one.why}; {how}", p_value=p_value)
            if p_value > ALPHA:
                one = replace(one, verdict=UNDECIDED, p_value=None, against=how, takes=takes)
        final.append(one)
    return final
