"""When an effect decides: its interval, the tests behind it, and one error rate for a study.

An effect counts with its whole 95 % interval: inside what the sentence allows it is reproduced,
outside not reproduced, and where it lies on both sides the data settle nothing. From fewer than six
runs of a cell there is no such interval, so nothing is decided. Times on emulated nodes must decide
also when they are off, either way, by what the emulation was found to be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pipeline.claims.found import Found
from pipeline.claims.types import (
    DECIDED,
    NOT_REPRODUCED,
    REPRODUCED,
    UNDECIDED,
    Region,
    Verdict,
)
from pipeline.claims.worlds import Evidence
from pipeline.metrics.contrasts import FASTER, SLOWER
from pipeline.metrics.emulation import HOW_TO_MEASURE
from pipeline.metrics.format import probability, ratio_interval, significant, with_interval
from pipeline.metrics.ranks import ALPHA, holm
from pipeline.metrics.select import plural
from pipeline.metrics.statistics import MIN_REPEATS, Interval
from pipeline.metrics.verdicts import compared

# A bound this close to 1 is about more or less than equal; the band of `slightly` ends there too.
_AT_ONE = 1e-3


def settle(
    found: Found, region: Region | None, evidence: Evidence
) -> tuple[str, str, float | None]:
    """The verdict, the finding behind it, and its p-value where a test with one was made."""
    effect = found.effect
    if effect is None or region is None:
        return (REPRODUCED if found.holds else NOT_REPRODUCED), found.why, None
    about = f"{found.what} is {effect_text(effect)}"
    claimed = f"claimed {region}"
    verdict = within(effect.low, effect.high, region)
    if found.too_few:
        return UNDECIDED, f"{about} ({claimed})", None
    if verdict == UNDECIDED:
        return UNDECIDED, f"{about}, and the interval includes the bound ({claimed})", None
    reason = _bent(found, effect, region, verdict, evidence) or _contradicted(
        found, region, evidence
    )
    p_value = found.p_value(verdict, region)
    if reason is None and p_value > ALPHA:
        reason = f"and the rank tests do not decide (p = {probability(p_value)})"
    if reason is not None:
        return UNDECIDED, f"{about}, {reason} ({claimed})", None
    return verdict, f"{about}, {claimed}", p_value


def within(low: float, high: float, region: Region) -> str:
    """The verdict on an effect that lies from `low` to `high`."""
    least, most = region.limits
    if least <= low and high <= most:
        return REPRODUCED
    return NOT_REPRODUCED if high < least or low > most else UNDECIDED


def effect_text(effect: Interval) -> str:
    """The effect with its interval, which it has from six runs on."""
    if effect.n < MIN_REPEATS:
        few = f"no interval: {effect.n} of the {MIN_REPEATS} runs it needs"
        return f"{significant(effect.value)} ({few})"
    shape = ratio_interval if 0.05 <= effect.value < 1000 else with_interval
    return shape(effect.value, effect.low, effect.high)


def _bent(
    found: Found, effect: Interval, region: Region, verdict: str, evidence: Evidence
) -> str | None:
    """Why times of emulated nodes decide nothing here, or None."""
    emulated = any(place.row["network"] == "emulated" for place in found.places)
    if not (emulated and found.num_times):
        return None
    if evidence.bias is None:
        return f"and how far emulated times are off was not measured here ({HOW_TO_MEASURE})"
    off = (1 + evidence.bias) ** found.num_times
    if within(effect.low / off, effect.high * off, region) != verdict:
        return f"within the emulation's own bias of {100 * (off - 1):.1f} % of the bound"
    return None


def _contradicted(found: Found, region: Region, evidence: Evidence) -> str | None:
    """Why the planned comparisons, by which the paper speaks of faster, object, or None.

    They test equality, so only a claim of more or less than 1 is asked of them: a claim of being
    about equal, or twice as fast, is decided by its interval.
    """
    assert found.effect is not None
    one = any(math.isclose(limit, 1.0, rel_tol=_AT_ONE) for limit in region.limits)
    if not one or not found.speeds or found.effect.low <= 1 <= found.effect.high:
        return None
    tests = [compared(evidence.table, a.key, b.key) for a, b in found.speeds]
    known = [test for test in tests if test is not None]
    if len(known) < len(tests):
        first, second = next(p for p, t in zip(found.speeds, tests, strict=True) if t is None)
        return f"and no comparison of {first.label} with {second.label} was planned"
    if any(test.too_few for test in known):
        return f"and {plural(known[0].n, 'repeat')} are too few for the rank test"
    above = found.effect.value > 1
    decided = [test.verdict == (FASTER if above else SLOWER) for test in known]
    # The least of several is above 1 where all are, and below where one is.
    if (all if (found.combined == "all") == above else any)(decided):
        return None
    worst = max(test.p_value for test in known)
    return f"and the rank test between them does not decide (p = {probability(worst)})"


def corrected(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts of a study with Holm's correction for all of its tested claims.

    So the chance that noise between runs makes any decided verdict wrong is at most `ALPHA`. A
    finding without an error rate (a run that broke, what fits) is not among them.
    """
    tested = [one for one in verdicts if one.verdict in (*DECIDED, UNDECIDED) and one.effect]
    # What did not decide by itself cannot decide now; it counts among the tests all the same.
    p_values = [1.0 if one.p_value is None else one.p_value for one in tested]
    adjusted = dict(zip([one.claim.id for one in tested], holm(p_values), strict=True))
    return [_after(one, adjusted.get(one.claim.id), len(tested)) for one in verdicts]


def _after(one: Verdict, p_value: float | None, count: int) -> Verdict:
    if one.verdict not in DECIDED or p_value is None:
        return one
    shown = f"p = {probability(p_value)} after correction for {plural(count, 'tested claim')}"
    if p_value <= ALPHA:
        return replace(one, why=f"{one.why}; {shown}", p_value=p_value)
    return replace(one, verdict=UNDECIDED, why=f"{one.why}; {shown}", p_value=None)
