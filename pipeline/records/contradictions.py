"""Contradictions within a record, beyond what a schema can say: the list of all rules.

A rule takes a record that fits the schemas and yields a line on each contradiction, which begins
with the name of the file. `contradiction(record)` asks every rule that applies for the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.plain import MAX_BITS
from pipeline.records import run_rules, step_rules

if TYPE_CHECKING:
    from pipeline.records.record import RunRecord

Rule = Callable[["RunRecord"], Iterator[str]]

LONGEST = 400
"""Characters of what is said; a record may hold any text in place of a short one."""


def numbers(record: RunRecord) -> Iterator[str]:
    """Every number is finite, and every integer fits 64 bits."""
    for path, value in run_rules.leaves(record.run):
        if not _possible(value):
            yield f"run.json at {path}: {str(value)[:40]} is no possible number"
    for step in record.steps:
        # Of the ten thousands of steps that a record may have, few are looked at closely.
        if all(map(_possible, vars(step).values())):
            continue
        for path, value in run_rules.leaves(vars(step)):
            if not _possible(value):
                place = f"step {str(step.step)[:20]} of rank {str(step.rank)[:20]}"
                yield f"steps.jsonl: {place} at {path}: {str(value)[:40]} is no possible number"


def _possible(value: Any) -> bool:
    """True where every number in plain JSON types is finite and fits 64 bits."""
    if isinstance(value, int):
        return value.bit_length() <= MAX_BITS
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(map(_possible, value.values()))
    return not isinstance(value, list) or all(map(_possible, value))


ALWAYS: tuple[Rule, ...] = (
    numbers,
    run_rules.texts,
    run_rules.spec,
    run_rules.dates,
    run_rules.world,
    step_rules.steps_hash,
    step_rules.steps_of_the_spec,
)
FINISHED: tuple[Rule, ...] = (
    run_rules.precision,
    run_rules.model,
    run_rules.network,
    run_rules.ranks,
    run_rules.utilisation,
    run_rules.memory,
    run_rules.environments,
    run_rules.sent,
    step_rules.grid,
    step_rules.timed,
    step_rules.same_on_all_ranks,
    step_rules.phases,
    step_rules.communication,
    step_rules.cpu_seconds,
    step_rules.wall_time,
)
"""Of a run that ended `ok`; of another one there is what it left."""


def contradiction(record: RunRecord) -> str | None:
    """One line on the first contradiction in a record, which begins with the file; None if none."""
    rules = (*ALWAYS, *(FINISHED if record.status == "ok" else ()))
    first = next((line for rule in rules for line in rule(record)), None)
    return None if first is None else first[:LONGEST]
