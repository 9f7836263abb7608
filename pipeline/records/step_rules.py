"""Rules of contradiction about steps.jsonl: its lines against the spec, run.json and one another.

Each is a `Rule` of this package. Fields that older records lack are not missed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from pipeline.study.profiling import COMMUNICATION, IN_STEP

if TYPE_CHECKING:
    from pipeline.records import RunRecord, Step

PHASES_TOLERANCE = 1e-2
"""Relative: on a GPU the parts are timed by its own clock, the step by that of the host."""

CPU_TOLERANCE, CPU_TICK_SECONDS = 2e-2, 3e-4
"""The CPU seconds of a step or phase are read just beside its ends, not at them."""

RANKS_TOLERANCE = 1e-5
"""Relative: loss and norm are global, and an all-reduce gives every rank the same bits."""

RATE_TOLERANCE = 1e-9
"""Relative: the learning rate is arithmetic on the spec."""

CLOCK_SECONDS = 2.0
"""Start and end are whole seconds, and a machine's clock may be set by some tenths of one."""


def steps_hash(record: RunRecord) -> Iterator[str]:
    """run.json names the steps.jsonl that it was written with; older records do not."""
    expected = record.run.get("steps_sha256")
    if expected not in (None, record.steps_sha256):
        yield (
            f"steps.jsonl does not hash to the steps_sha256 {expected[:12]}... of run.json; one of "
            "the two was edited"
        )


def steps_of_the_spec(record: RunRecord) -> Iterator[str]:
    """Every step line has the tokens and the learning rate of its step, and a rank of the world.

    What warms up is never timed. The steps of a rank stand in their order, each once.
    """
    asked, last = record.spec, dict[int, int]()
    work, size = asked.workload, asked.world.size
    for step in record.steps:
        rate, tokens = asked.rate(step.step), asked.at(step.step)[1].global_batch_tokens
        if step.step >= work.steps or step.rank >= size:
            yield f"{_of(step)}: the spec has {work.steps} steps on {size} ranks"
        before = last.get(step.rank, -1)
        if step.step == before:
            yield f"{_of(step)} stands twice: lines are not {work.steps} steps x {size} ranks"
        if step.step < before:
            yield f"{_of(step)} comes after step {before}; steps of a rank stand in their order"
        if step.tokens != tokens:
            yield f"{_of(step)}: {step.tokens} tokens, the spec says {tokens}"
        if not math.isclose(step.learning_rate, rate, rel_tol=RATE_TOLERANCE):
            yield f"{_of(step)}: learning rate {step.learning_rate}, the spec says {rate}"
        if step.timed and step.step < work.first_timed():
            yield f"{_of(step)} is timed, the spec leaves {work.first_timed()} steps untimed"
        last[step.rank] = step.step


def grid(record: RunRecord) -> Iterator[str]:
    """Every step of every rank has its line."""
    count, work = len(record.run["ranks"]), record.spec.workload
    seen = {(step.step, step.rank) for step in record.steps}
    if seen != {(step, rank) for step in range(work.steps) for rank in range(count)}:
        yield f"steps.jsonl: {len(record.steps)} lines are not {work.steps} steps x {count} ranks"


def timed(record: RunRecord) -> Iterator[str]:
    """Steps are timed from the end of the warm-up on, which a run that resumed makes anew."""
    work, done = record.spec.workload, record.run["execution"].get("resumed_from_step", 0)
    if done >= work.steps:
        yield f"run.json at $.execution.resumed_from_step: {done} of {work.steps} steps"
    first = work.first_timed(done)
    for step in record.steps:
        # When the steps before were timed, the attempts knew that are gone.
        if step.step >= done and step.timed != (step.step >= first):
            kind = "timed" if step.timed else "not timed"
            yield f"{_of(step)} is {kind}; steps are timed from step {first} on"


def same_on_all_ranks(record: RunRecord) -> Iterator[str]:
    """Loss and gradient norm are of the global batch, so every rank has those of rank 0."""
    root = {step.step: step for step in record.steps if step.rank == 0}
    for step in record.steps:
        for name in ("loss", "grad_norm"):
            own, first = getattr(step, name), getattr(root[step.step], name)
            one_is_lost = (own is None) != (first is None)
            both = own is not None and first is not None
            if one_is_lost or (both and not math.isclose(own, first, rel_tol=RANKS_TOLERANCE)):
                yield f"{_of(step)}: {name} {own}, that of rank 0 is {first}"


def wall_time(record: RunRecord) -> Iterator[str]:
    """No rank's steps took longer than the run; those before a resume were made earlier."""
    execution = record.run["execution"]
    done, spent = execution.get("resumed_from_step", 0), dict[int, float]()
    dilation = execution.get("emulation", {}).get("dilation", 1)
    for step in record.steps:
        if step.step >= done:
            spent[step.rank] = spent.get(step.rank, 0.0) + step.seconds * dilation
    ends = (datetime.fromisoformat(record.run[name]) for name in ("ended_at", "started_at"))
    wall = (next(ends) - next(ends)).total_seconds()
    longest = max(spent.values(), default=0.0)
    if longest > wall + CLOCK_SECONDS:
        took = f"the run took {wall:g} s, the steps of a rank {longest:.4g} s"
        yield f"run.json at $.ended_at: {took}"


def phases(record: RunRecord) -> Iterator[str]:
    """Every step of a profiled run has phases that add up to it, and none of a timed run."""
    profile = record.spec.profile
    for step in record.steps:
        if (step.phases is not None) != profile:
            has = "no phases, but the run is a profiled one"
            yield f"{_of(step)} has {has if profile else 'phases, but the run is none to profile'}"
        total = sum(step.phases[name] for name in IN_STEP) if step.phases else step.seconds
        if not math.isclose(total, step.seconds, rel_tol=PHASES_TOLERANCE):
            yield f"{_of(step)}: its phases are {total} s together, the step is {step.seconds} s"
        passes = sum(seconds for *_, seconds in step.passes or ())
        if passes > sum((step.phases or {}).values()) * (1 + PHASES_TOLERANCE):
            yield (
                f"{_of(step)}: its passes are {passes} s together, more than its phases, or it has "
                "passes without phases"
            )


def communication(record: RunRecord) -> Iterator[str]:
    """A profiled run whose ranks sent bytes in its timed steps shows communication in them.

    Exactly none is no finding: the strategy's collectives ran where no phase was marked.
    """
    counted = [each for rank in record.run["ranks"] if "sent" in rank
               for each in rank["sent"]["collectives"]]  # fmt: skip
    sent = sum(each["wire_bytes"] or 0 for each in counted)
    seen = sum(step.phases[COMMUNICATION] for step in record.steps if step.timed and step.phases)
    if sent and not seen:
        yield (
            f"steps.jsonl: 0 s of communication in the timed steps, in each of which the ranks of "
            f"strategy {record.spec.strategy} sent {sent:,.0f} bytes; run its collectives inside "
            "phases.during(COMMUNICATION)"
        )


def cpu_seconds(record: RunRecord) -> Iterator[str]:
    """No step or phase is shorter than the CPU seconds of one thread that it took.

    On emulated nodes that is what the dilation is held to; elsewhere a machine may count badly.
    """
    is_emulated = "emulation" in record.run["execution"]
    factor, least = (1 + CPU_TOLERANCE, CPU_TICK_SECONDS) if is_emulated else (2.0, 0.1)
    for step in record.steps:
        spent = {"step": (step.seconds, step.cpu_seconds)}
        if step.phases and step.cpu_phases:
            spent |= {name: (step.phases[name], cpu) for name, cpu in step.cpu_phases.items()}
        for name, (seconds, cpu) in spent.items():
            if cpu is not None and cpu > seconds * factor + least:
                clock = "an emulated node" if is_emulated else "the clock"
                took = f"took {cpu} CPU seconds of one thread in {seconds} s of {clock}"
                yield f"{_of(step)}: the {name} {took}"


def _of(step: Step) -> str:
    return f"steps.jsonl: step {step.step} of rank {step.rank}"
