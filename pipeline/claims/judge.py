"""From the outcome of a test to a verdict with its one line.

A verdict is that of the nearest admissible world; the claim is judged in all others too, and where
one of them says the contrary nothing is decided. `decide.py` says when an effect decides, and holds
all decisions of a study to one error rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from pipeline.claims.decide import Beside, Outcome, corrected, effect_text, settle
from pipeline.claims.kinds import KINDS
from pipeline.claims.quantities import facts, kind_of_runs
from pipeline.claims.types import (
    DECIDED,
    NOT_TESTABLE,
    UNDECIDED,
    Claim,
    NotTestableError,
    Selector,
    Verdict,
)
from pipeline.claims.worlds import SAME_MODEL, Evidence, Place, World, world_of
from pipeline.text import listed, parameters, plural, significant

# A claim on the speed of mixed precision needs devices to which it is fast at all: this many times
# the peak of fp32. A V100 has 8 (tensor cores), a processor without bf16 units less than 1.
LOW_PRECISION_GAIN = 2.0


def judge_all(claims: Iterable[Claim], evidence: Evidence) -> list[Verdict]:
    """The verdict on every claim, in their order; together they keep one error rate."""
    return corrected([judge(claim, evidence) for claim in claims])


def judge(claim: Claim, evidence: Evidence) -> Verdict:
    """The verdict on one claim by itself; a claim that cannot be tested says why."""
    made = f"made on {claim.made_at}"
    try:
        _require(claim, evidence)
        try:
            tests = _in_all_worlds(claim, evidence)
        except NotTestableError:
            # More runs or ranks would not help where other software ran.
            if other := _other_software(_named_places(claim, evidence), evidence):
                raise NotTestableError(other) from None
            raise
        named = [one for one in tests if not any(map(evidence.substituted, one.places))]
        if not named:
            # What fits has no effect, and is of its software too.
            first = tests[0]
            value = (
                f"{first.what} is {effect_text(first.effect, ())}" if first.effect else first.why
            )
            other = _other_software(first.places, evidence)
            raise NotTestableError(f"{other}; measured instead: {value}")
    except NotTestableError as reason:
        ran = f"{made}, this study ran on {_hardware(evidence)}"
        return Verdict(claim, NOT_TESTABLE, str(reason), ran)
    settled = [settle(one, claim.region, evidence) for one in named]
    nearest, (verdict, why, p_value, against, takes) = named[0], settled[0]
    words = [one.verdict for one in settled]
    if verdict in DECIDED and any(word in DECIDED and word != verdict for word in words):
        verdict, p_value = UNDECIDED, None
        against = "other worlds of this study say the contrary"
        takes = "a claim that says for which of them it holds"
        why = f"{against}, here {why}"
    if len(words) > 1:
        # `5 of 6 worlds agree`, the nearest counted, which the verdict is of.
        unlike = dict.fromkeys(word for word in words if word != words[0])
        apart = "".join(f", {words.count(word)} {word}" for word in unlike)
        why = f"{why} ({words.count(words[0])} of {len(words)} worlds agree{apart})"
    timed, profiled = (evidence.runs(nearest.places, level) for level in ("run", "profile"))
    kind = kind_of_runs(claim)
    runs = {"": timed, "profiled ": profiled}.get(kind, timed + profiled)
    ran = plural(len(runs), f"{kind}run")
    if kind == "timed and profiled ":
        ran = f"{len(timed)} timed and {plural(len(profiled), 'profiled run')}"
    names = []
    for one, word in zip(named, words, strict=True):
        nodes, ranks, link = world_of(one.places)
        over = f" over {link}" if link else ""
        names.append((f"{plural(nodes, 'node')} with {plural(ranks, 'rank')}{over}", word))
    notes = []
    # Over several links the one node of an arm is a cell of its own, of which the same holds.
    for place in reversed({p.row["arm"]: p for p in reversed(nearest.places)}.values()):
        for key, (published, here) in place.differences().items():
            had = f"with {key} {here}" if here is not None else f"with the default {key}"
            if key == "precision":
                had = f"in {place.row['precision_ran']}"
            notes.append(f"{place.label} ran {had}, not {published}")
    scale = f"{made}, tested {_here(claim, evidence, nearest.places)} in {ran}"
    return Verdict(
        claim, verdict, why, scale, nearest.effect, notes=tuple(notes), runs=runs, p_value=p_value,
        worlds=tuple(names), against=against, takes=takes,
    )  # fmt: skip


def _in_all_worlds(claim: Claim, evidence: Evidence) -> list[Outcome]:
    """The test in every admissible world, the nearest first; raises where there is none."""
    test, metric = KINDS[claim.kind], facts(claim.test.get("metric"))
    outcomes: list[Outcome] = []
    judged: set[World] = set()
    while True:
        here = replace(evidence, judged=frozenset(judged))
        try:
            outcome = test(claim, here)
            # What ran in place of the software that is named decides nothing, however fast it is.
            if not any(map(evidence.substituted, outcome.places)):
                _require_speed(claim, evidence, outcome)
        except NotTestableError:
            if not outcomes:
                raise
            return outcomes
        # A test that is of all worlds at once gives the same again.
        if (world := world_of(outcome.places)) in judged:
            return outcomes
        if metric.beside is not None:
            other, how, agreeing = metric.beside
            alone = replace(claim, test={**claim.test, "metric": other})
            with suppress(NotTestableError):  # of records of former versions
                if (effect := test(alone, here).effect) is not None:
                    outcome = replace(outcome, beside=Beside(effect, how, agreeing))
        outcome = replace(outcome, kind_of_runs=kind_of_runs(claim))
        judged.add(world)
        outcomes.append(outcome)


def _require(claim: Claim, evidence: Evidence) -> None:
    """Raise NotTestableError where the study lacks what the test makes no sense without."""
    needs, made, hardware = claim.needs, claim.made_at, _hardware(evidence)
    device = evidence.results.places[0]["device"]
    named = needs.get("hardware", ""), made.hardware if needs.get("same_hardware") else ""
    missing = [name for name in named if name not in hardware]
    if needs.get("device", device) != device:
        lacks = f"a {'CPU' if needs['device'] == 'cpu' else 'GPU'}"
    elif missing:
        # `an A100`, `a V100`: letters are said one by one.
        lacks = f"{'an' if missing[0][0] in 'AEFHILMNORSX' else 'a'} {missing[0]}"
    elif needs.get("same_model") and not _same_model(claim, evidence):
        size = parameters(made.parameters) if made.parameters else "the size that it was made with"
        here = parameters(evidence.results.least("num_parameters"))
        lacks = f"a model of {size}, and this one has {here}"
    else:
        return
    raise NotTestableError(f"needs {lacks}: {needs['because']}")


def _named_places(claim: Claim, evidence: Evidence) -> list[Place]:
    """Places of the cells of a claim that name software, unless one of them ran in it."""
    places: list[Place] = []
    for given in claim.test.values():
        for selector in given if isinstance(given, list) else [given]:
            if isinstance(selector, Selector) and selector.software is not None:
                places += evidence.places(selector)
    return places if all(map(evidence.substituted, places)) else []


def _other_software(places: Iterable[Place], evidence: Evidence) -> str:
    """The software that a claim names, and what ran in its place; nothing where none did."""
    others = {p.label: p for p in places if evidence.substituted(p)}
    software = listed(dict.fromkeys(str(p.selector.software) for p in others.values()))
    ran = listed(f"{label} ran in {p.row['precision_ran']}" for label, p in others.items())
    return f"it is about {software}, and {ran}" if others else ""


def _require_speed(claim: Claim, evidence: Evidence, outcome: Outcome) -> None:
    """Raise NotTestableError where a mixed precision that the claim times has no fast peak here."""
    any_speed = facts(claim.test.get("metric")).any_speed or claim.kind == "memory_formula"
    if any_speed or outcome.effect is None:
        return
    peaks = evidence.results.pick("cell", "peak_flops_per_second")
    needs = f"needs a low-precision peak of at least {LOW_PRECISION_GAIN:g} times the fp32 peak"
    for place in (p for p in outcome.places if p.selector.precision == "mixed"):
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
    if evidence.results.places[0]["device"] == "cpu":
        return "a CPU"
    facts = evidence.results.pick("run", "gpus")["text"]
    return listed(sorted({name for text in facts for name in str(text).split(", ")}))


def _same_model(claim: Claim, evidence: Evidence) -> bool:
    made, here = claim.made_at.parameters, evidence.results.least("num_parameters")
    return made is not None and abs(here / made - 1) <= SAME_MODEL


def _here(claim: Claim, evidence: Evidence, places: Sequence[Place]) -> str:
    """Scale of the test, in the words of the claim's own."""
    made, hardware = claim.made_at, _hardware(evidence)
    largest = max(places, key=lambda p: (p.nodes, p.ranks))
    at_scale = made.world == (largest.nodes, largest.ranks) and made.hardware in hardware
    if at_scale and _same_model(claim, evidence):
        return "at that scale"
    nodes = f" on {largest.nodes} nodes" if largest.nodes > 1 else ""
    joined = {
        "loopback": " of one machine",
        "emulated": f"{nodes} over an emulated network",
        "real": nodes,
    }[str(largest.row["network"])]
    model = parameters(evidence.results.least("num_parameters"))
    ranks = plural(largest.ranks, f"{hardware.removeprefix('a ')} rank")
    return f"on {ranks}{joined} with {model}"
