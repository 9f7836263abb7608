"""From what a test found to a verdict with its one line.

An effect counts only with its whole interval: inside what the sentence allows it is reproduced,
outside not reproduced, and where it lies on both sides the data settle nothing. Times on emulated
nodes must settle it also when they are off, either way, by what the emulation was found to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pipeline.claims.kinds import KINDS, Found
from pipeline.claims.types import (
    NOT_REPRODUCED,
    NOT_TESTABLE,
    REPRODUCED,
    Claim,
    NotTestableError,
    Region,
    Verdict,
)
from pipeline.claims.worlds import Evidence, Place, differences
from pipeline.metrics.contrasts import FASTER, SLOWER
from pipeline.metrics.format import ratio_interval
from pipeline.metrics.select import listed, pick, plural
from pipeline.metrics.verdicts import compared

# A model counts as that of the claim within this share of its parameters.
_SAME_MODEL = 0.1
_DEVICES = {"cpu": "CPU", "cuda": "GPU"}


def judge_all(claims: Iterable[Claim], evidence: Evidence) -> list[Verdict]:
    """The verdict on every claim, in their order."""
    return [judge(claim, evidence) for claim in claims]


def judge(claim: Claim, evidence: Evidence) -> Verdict:
    """The verdict on one claim; a claim that cannot be tested says why."""
    made = f"made on {claim.made_at}"
    try:
        _require(claim.needs, claim, evidence)
        found = KINDS[claim.kind](claim, evidence)
    except NotTestableError as reason:
        ran = f"{made}, this study ran on {_hardware(evidence)}"
        return Verdict(claim, NOT_TESTABLE, str(reason), ran)
    emulated = any(place.row["network"] == "emulated" for place in found.places)
    bias = evidence.bias if emulated and found.timed else 0.0
    verdict, why = _settle(found, claim.region, bias)
    if verdict != NOT_TESTABLE and found.speeds:
        verdict, why = _agree(verdict, why, found, evidence)
    runs = evidence.runs(found.places)
    here = _here(claim, evidence, found.places)
    scale = f"{made}, tested {here} in {plural(len(runs), 'run')}"
    return Verdict(claim, verdict, why, scale, found.effect, tuple(_notes(found.places)), runs)


def _settle(found: Found, region: Region | None, bias: float | None) -> tuple[str, str]:
    """The verdict and the finding behind it; the effect may be off by the share `bias`.

    Where that is not known, nothing is decided.
    """
    effect = found.effect
    if effect is None or region is None:
        return (REPRODUCED if found.holds else NOT_REPRODUCED), found.why
    verdict = _within(effect.low, effect.high, region)
    shown = f"{found.what} is {ratio_interval(effect.value, effect.low, effect.high)}"
    claimed = f"claimed {region}"
    if verdict == NOT_TESTABLE:
        return verdict, f"undecided, {shown}, and the interval includes the bound ({claimed})"
    if bias is None:
        unknown = "and how far emulated times are off was not measured (make bench does that)"
        return NOT_TESTABLE, f"undecided, {shown}, {unknown} ({claimed})"
    if _within(effect.low / (1 + bias), effect.high * (1 + bias), region) != verdict:
        within = f"within the emulation's own bias of {100 * bias:.1f} % of the bound"
        return NOT_TESTABLE, f"undecided, {shown}, {within} ({claimed})"
    return verdict, f"{shown}, {claimed}"


def _within(low: float, high: float, region: Region) -> str:
    """The verdict on an effect that lies from `low` to `high`."""
    least, most = region.limits
    if least <= low and high <= most:
        return REPRODUCED
    return NOT_REPRODUCED if high < least or low > most else NOT_TESTABLE


def _agree(verdict: str, why: str, found: Found, evidence: Evidence) -> tuple[str, str]:
    """The verdict where the rank test, by which the paper speaks of faster, does not object.

    An interval that includes 1 says of neither cell that it is faster, so there is nothing to test.
    """
    effect = found.effect
    if effect is None or effect.low <= 1 <= effect.high:
        return verdict, why
    tests = [compared(evidence.table, a.key, b.key) for a, b in found.speeds]
    known = [test for test in tests if test is not None]
    if not known:
        return verdict, why
    if any(test.too_few for test in known):
        return NOT_TESTABLE, f"undecided, {known[0].n} repeats are too few for the rank test, {why}"
    # The first cell is faster than all others, or slower than at least one.
    expected = {test.verdict for test in known if test.decided}
    one_sided = expected == {FASTER} and len(expected) == 1 and all(t.decided for t in known)
    if not (one_sided or SLOWER in expected):
        worst = max(test.p_value for test in known)
        return NOT_TESTABLE, f"undecided by the rank test (p = {worst:.2g}), {why}"
    weakest = max(known, key=lambda test: test.p_value if test.decided else 0.0)
    shown = f"rank test p = {weakest.p_value:.2g}, effect size {weakest.effect_size:.2g}"
    return verdict, f"{why} ({shown})"


def _require(needs: Mapping[str, object], claim: Claim, evidence: Evidence) -> None:
    """Raise NotTestableError where the study lacks what the test makes no sense without."""
    device = str(evidence.groups[0]["device"])
    hardware = _hardware(evidence)
    lacks = None
    if needs.get("device", device) != device:
        lacks = f"a {_DEVICES[str(needs['device'])]}"
    elif str(needs.get("hardware", "")) not in hardware:
        lacks = f"a {needs['hardware']}"
    elif needs.get("same_model") and not _same_model(claim, evidence):
        made = _millions(claim.made_at.parameters)
        lacks = f"a model of {made}, and this one has {_millions(_parameters(evidence))}"
    if lacks is not None:
        raise NotTestableError(f"needs {lacks}: {needs['because']}")


def _hardware(evidence: Evidence) -> str:
    """The devices that the runs recorded, each name once."""
    if evidence.groups[0]["device"] == "cpu":
        return "a CPU"
    facts = pick(evidence.table, "run", "gpus")["text"]
    return listed(sorted({name for text in facts for name in str(text).split(", ")}))


def _parameters(evidence: Evidence) -> float:
    return evidence.fact("num_parameters")


def _millions(parameters: float) -> str:
    return f"{parameters / 1e6:.3g} M parameters"


def _same_model(claim: Claim, evidence: Evidence) -> bool:
    return abs(_parameters(evidence) / claim.made_at.parameters - 1) <= _SAME_MODEL


def _here(claim: Claim, evidence: Evidence, places: Sequence[Place]) -> str:
    """Where the test ran, in the words of the claim's own scale."""
    made, hardware = claim.made_at, _hardware(evidence)
    largest = max(places, key=lambda p: (p.nodes, p.ranks))
    row, ranks = largest.row, largest.ranks
    world = (largest.nodes, ranks) == (made.nodes, made.nodes * made.ranks_per_node)
    if world and made.hardware in hardware and _same_model(claim, evidence):
        return "at that scale"
    nodes = f" on {largest.nodes} nodes" if largest.nodes > 1 else ""
    joined = {
        "loopback": " of one machine",
        "emulated": f"{nodes} over an emulated network",
        "real": nodes,
    }[str(row["network"])]
    model = _millions(_parameters(evidence))
    kind = hardware.removeprefix("a ")
    return f"on {ranks} {kind} {'rank' if ranks == 1 else 'ranks'}{joined} with {model}"


def _notes(places: Sequence[Place]) -> list[str]:
    """What differs from the publication in the cells themselves."""
    notes = []
    # Over several links the one node of an arm is a cell of its own, of which the same holds.
    first = {p.row["arm"]: p for p in reversed(places)}
    for place in reversed(first.values()):
        for key, (published, here) in differences(place).items():
            if key == "precision":
                notes.append(f"{place.cell} ran in {place.row['precision_ran']}, not {published}")
            else:
                own = f"the default {key}" if here is None else f"{key} {here}"
                notes.append(f"{place.cell} ran with {own}, not {published}")
    return notes
