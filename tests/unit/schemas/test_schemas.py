"""The quick check of step lines accepts nothing that the schema refuses, and what runs write."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from pipeline.schemas import quick, validator

PHASES = ("forward", "backward", "communication", "optimiser", "rest")
LINE: dict[str, Any] = {
    "step": 3, "rank": 0, "seconds": 0.25, "tokens": 4096, "loss": 3.5, "grad_norm": None,
    "learning_rate": 0.0, "timed": True,
}  # fmt: skip
PROFILED = LINE | {
    "phases": dict.fromkeys((*PHASES, "data"), 0.05),
    "cpu_seconds": 0.2,
    "cpu_phases": dict.fromkeys(PHASES, 0.04),
}
numbers = some.one_of(some.integers(-2, 2), some.floats(), some.booleans(), some.none())
others = some.one_of(some.text(max_size=2), some.lists(numbers, max_size=1))
values = some.one_of(numbers, others, some.dictionaries(some.sampled_from(PHASES), numbers))
keys = some.sampled_from([*PROFILED, "more"])


def test_what_runs_write_is_accepted_at_once() -> None:
    for line in (LINE, PROFILED):
        assert quick("step")(line) and validator("step").is_valid(line)


@given(some.dictionaries(keys, values, max_size=3), some.sets(keys, max_size=1), values)
def test_what_it_accepts_fits_the_schema(
    changes: dict[str, Any], gone: set[str], phase: Any
) -> None:
    line = {key: value for key, value in (PROFILED | changes).items() if key not in gone}
    for one in (line, line | {"phases": PROFILED["phases"] | {"rest": phase}}):
        assert not quick("step")(one) or validator("step").is_valid(one)


def test_what_it_does_not_know_is_left_to_the_validator() -> None:
    wrong: list[object] = [None, [], {}, LINE | {"seconds": 0}, LINE | {"loss": float("nan")}]
    for line in wrong:
        assert not quick("step")(line)
