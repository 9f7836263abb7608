"""What contradicts itself in a record, beyond what a schema can say: the list of all rules.

A rule takes a record that fits the schemas and returns one line on its first contradiction, which
begins with the name of the file, or None. `contradiction(record)` asks every rule that applies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.plain import MAX_BITS
from pipeline.records import run_rules, step_rules

if TYPE_CHECKING:
    from pipeline.records.record import RunRecord

Rule = Callable[["RunRecord"], str | None]

LONGEST = 400
"""Characters of what is said; a record may hold any text in place of a short one."""


def numbers(record: RunRecord) -> str | None:
    """Every number is finite, and every integer fits 64 bits."""
    for path, value in _numbers(record.run, "$"):
        if not _possible(value):
            return f"run.json at {path}: {str(value)[:40]} is no possible number"
    for step in record.steps:
        if _all_possible(vars(step)):
            continue
        for path, value in _numbers(vars(step), "$"):
            if not _possible(value):
                place = f"step {str(step.step)[:20]} of rank {str(step.rank)[:20]}"
                return f"steps.jsonl: {place} at {path}: {str(value)[:40]} is no possible number"
    return None


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
    run_rules.described,
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
    found = next((said for rule in rules if (said := rule(record)) is not None), None)
    return None if found is None else found[:LONGEST]


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    """Place and value of each number in plain JSON types."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _numbers(part, f"{path}.{key}")
    elif isinstance(value, list):
        for place, part in enumerate(value):
            yield from _numbers(part, f"{path}[{place}]")
    elif isinstance(value, int | float):
        yield path, value


def _all_possible(value: Any) -> bool:
    """Whether `_numbers` holds none that is not; a record has ten thousands of numbers."""
    if isinstance(value, int | float):
        return _possible(value)
    if isinstance(value, Mapping):
        return all(map(_all_possible, value.values()))
    return not isinstance(value, list) or all(map(_all_possible, value))


def _possible(value: float) -> bool:
    return value.bit_length() <= MAX_BITS if isinstance(value, int) else math.isfinite(value)
