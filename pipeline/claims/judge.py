"""From what a test found to a verdict with its one line.

A verdict is that of the nearest admissible world; the claim is judged in all others too, and where
one of them says the contrary nothing is decided. `decide.py` says when an effect decides, and holds
all decisions of a study to one error rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.claims.choose import world_of
from pipeline.claims.decide import Found, corrected, effect_text, settle
from pipeline.claims.kinds import KINDS
from pipeline.claims.types import (
    DECIDED,
    NOT_TESTABLE,
    UNDECIDED,
    Claim,
    NotTestableError,
    Verdict,
)
from pipeline.claims.worlds import SAME_MODEL, Evidence, Place, differences
from pipeline.metrics.format import significant
from pipeline.metrics.select import listed, pick, plural

# A claim on the speed of mixed precision needs devices to which it is fast at all: this many times
# the peak of fp32. A V100 has 8 (tensor cores), a processor without bf16 units less than 1.
LOW_PRECISION_GAIN = 2.0
# Neither of these depends on how fast a number format is.
_ANY_SPEED = ("peak_memory_bytes", "memory_asymmetry", "loss_roughness", "phase_bubble")
_OF_PROFILED_RUNS = ("sent_bytes", "phase_bubble", "time_asymmetry")
_DEVICES = {"cpu": "CPU", "cuda": "GPU"}


@dataclass(frozen=True)
class _Judged:
    """A claim in one world."""

    found: Found
    verdict: str
    why: str
    p_value: float | None


def judge_all(claims: Iterable[Claim], evidence: Evidence) -> list[Verdict]:
    """The verdict on every claim, in their order; together they keep one error rate."""
    return corrected([judge(claim, evidence) for claim in claims])


def judge(claim: Claim, evidence: Evidence) -> Verdict:
    """The verdict on one claim by itself; a claim that cannot be tested says why."""
    made = f"made on {claim.made_at}"
    try:
        _require(claim, evidence)
        worlds = _in_all_worlds(claim, evidence)
        named = [w for w in worlds if not any(map(evidence.substituted, w.found.places))]
        if not named:
            raise NotTestableError(_instead(worlds[0].found, evidence))
    except NotTestableError as reason:
        ran = f"{made}, this study ran on {_hardware(evidence)}"
        return Verdict(claim, NOT_TESTABLE, str(reason), ran)
    worlds, first = named, named[0]
    found, verdict, why = first.found, first.verdict, first.why
    if verdict in DECIDED and any(w.verdict in DECIDED and w.verdict != verdict for w in worlds):
        verdict = UNDECIDED
        why = f"other worlds of this study say the contrary, here {why}"
    if len(worlds) > 1:
        # `5 of 6 worlds agree`, the nearest counted, which the verdict is of.
        words = [one.verdict for one in worlds]
        others = [word for word in dict.fromkeys(words) if word != words[0]]
        apart = "".join(f", {words.count(word)} {word}" for word in others)
        why = f"{why} ({words.count(words[0])} of {len(words)} worlds agree{apart})"
    # Bytes, passes and phases are those of profiled runs, all else is of timed ones.
    profiled = str(claim.test.get("metric")).startswith(_OF_PROFILED_RUNS)
    runs = evidence.runs(found.places, "profile" if profiled else "run")
    ran = plural(len(runs), "profiled run" if profiled else "run")
    scale = f"{made}, tested {_here(claim, evidence, found.places)} in {ran}"
    names = []
    for one in worlds:
        nodes, ranks, link = world_of(one.found.places)
        over = f" over {link}" if link else ""
        names.append((f"{plural(nodes, 'node')} with {plural(ranks, 'rank')}{over}", one.verdict))
    return Verdict(
        claim, verdict, why, scale, found.effect, tuple(_notes(found.places)), runs,
        first.p_value if verdict in DECIDED else None, tuple(names),
    )  # fmt: skip


def _in_all_worlds(claim: Claim, evidence: Evidence) -> list[_Judged]:
    """The claim in every admissible world, the nearest first; raises where there is none."""
    worlds: list[_Judged] = []
    judged: set[tuple[int, int, str]] = set()
    while True:
        try:
            found = KINDS[claim.kind](claim, evidence.after(judged))
            # What ran in place of the software that is named decides nothing, however fast it is.
            if not any(map(evidence.substituted, found.places)):
                _require_speed(claim, evidence, found)
        except NotTestableError:
            if not worlds:
                raise
            return worlds
        world = world_of(found.places)
        if world in judged:
            return worlds
        judged.add(world)
        worlds.append(_Judged(found, *settle(found, claim.region, evidence)))


def _instead(found: Found, evidence: Evidence) -> str:
    """Which software the claim names, what ran in its place, and what was measured of that."""
    others = {p.label: p for p in found.places if evidence.substituted(p)}
    names = listed(dict.fromkeys(str(place.selector.software) for place in others.values()))
    ran = listed(f"{label} ran in {one.row['precision_ran']}" for label, one in others.items())
    # What fits has no effect, and is of its software too.
    value = f"{found.what} is {effect_text(found.effect)}" if found.effect else found.why
    return f"it is about {names}, and {ran}; measured instead: {value}"


def _require(claim: Claim, evidence: Evidence) -> None:
    """Raise NotTestableError where the study lacks what the test makes no sense without."""
    needs: Mapping[str, object] = claim.needs
    device = str(evidence.groups[0]["device"])
    hardware = _hardware(evidence)
    lacks = None
    if needs.get("device", device) != device:
        lacks = f"a {_DEVICES[str(needs['device'])]}"
    elif str(needs.get("hardware", "")) not in hardware:
        lacks = f"a {needs['hardware']}"
    elif needs.get("same_hardware") and claim.made_at.hardware not in hardware:
        lacks = f"a {claim.made_at.hardware}"
    elif needs.get("same_model") and not _same_model(claim, evidence):
        made, here = claim.made_at.parameters, evidence.fact("num_parameters")
        size = "the size that it was made with" if made is None else _millions(made)
        lacks = f"a model of {size}, and this one has {_millions(here)}"
    if lacks is not None:
        raise NotTestableError(f"needs {lacks}: {needs['because']}")


def _require_speed(claim: Claim, evidence: Evidence, found: Found) -> None:
    """Raise NotTestableError where a mixed precision that the claim times is not fast here.

    By the peaks of matrix products that the ranks measured, each in the format of its run.
    """
    metric = str(claim.test.get("metric"))
    timed = not metric.startswith((*_ANY_SPEED, "sent_bytes")) and found.effect is not None
    mixed = [p for p in found.places if p.selector.precision == "mixed"]
    if not timed or claim.kind == "memory_formula":
        return
    peaks = pick(evidence.table, "cell", "peak_flops_per_second")
    needs = f"needs a low-precision peak of at least {LOW_PRECISION_GAIN:g} times the fp32 peak"
    for place in mixed:
        # On a machine that the ranks share their number sets the peak of each.
        beside = peaks[peaks["nodes"] == place.nodes]
        low = beside.loc[beside["cell"] == place.cell, "value"].min() / 1e9
        full = beside.loc[beside["precision"] == "fp32", "value"].median() / 1e9
        if not math.isfinite(low / full):
            raise NotTestableError(f"{needs}, and {place.label} recorded none to compare")
        if low / full < LOW_PRECISION_GAIN:
            raise NotTestableError(
                f"{needs}, and here it is {significant(low / full)} times "
                f"({significant(low)} over {significant(full)} GFLOP/s)"
            )


def _hardware(evidence: Evidence) -> str:
    """The devices that the runs recorded, each name once."""
    if evidence.groups[0]["device"] == "cpu":
        return "a CPU"
    facts = pick(evidence.table, "run", "gpus")["text"]
    return listed(sorted({name for text in facts for name in str(text).split(", ")}))


def _millions(parameters: float) -> str:
    return f"{parameters / 1e6:.3g} M parameters"


def _same_model(claim: Claim, evidence: Evidence) -> bool:
    made, here = claim.made_at.parameters, evidence.fact("num_parameters")
    return made is not None and abs(here / made - 1) <= SAME_MODEL


def _here(claim: Claim, evidence: Evidence, places: Sequence[Place]) -> str:
    """Where the test ran, in the words of the claim's own scale."""
    made, hardware = claim.made_at, _hardware(evidence)
    largest = max(places, key=lambda p: (p.nodes, p.ranks))
    row, ranks = largest.row, largest.ranks
    if (
        made.world == (largest.nodes, ranks)
        and made.hardware in hardware
        and _same_model(claim, evidence)
    ):
        return "at that scale"
    nodes = f" on {largest.nodes} nodes" if largest.nodes > 1 else ""
    joined = {
        "loopback": " of one machine",
        "emulated": f"{nodes} over an emulated network",
        "real": nodes,
    }[str(row["network"])]
    model = _millions(evidence.fact("num_parameters"))
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
                notes.append(f"{place.label} ran in {place.row['precision_ran']}, not {published}")
            else:
                own = f"the default {key}" if here is None else f"{key} {here}"
                notes.append(f"{place.label} ran with {own}, not {published}")
    return notes
