"""The quick checks accept nothing that a schema refuses, and what runs write."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from pipeline.schemas import SCHEMA_FOLDER, quick, validator
from pipeline.study.expansion import expand
from pipeline.study.study import Study
from tests.fake_records import EMULATED, make_record, make_study

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


def test_other_values_of_any_schema_are_left_to_the_validator_too() -> None:
    for name in (path.name.partition(".")[0] for path in SCHEMA_FOLDER.glob("*.schema.json")):
        others: list[object] = [[], None, "x", {"unknown": 1}, {1: 2}, ({},)]
        for wrong in others:
            assert not quick(name)(wrong) or validator(name).is_valid(wrong)
    assert not quick("config#name")("a-name")


def records() -> list[dict[str, Any]]:
    """One by hand with all that a record may hold, and one of an emulated node."""
    spec = expand(Study.of(make_study(cluster=EMULATED)))[-1]
    example = json.loads(Path("tests/examples/records/valid/ok/run.json").read_text())
    return [example, json.loads(json.dumps(dict(make_record(spec).run)))]


RECORDS = records()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to each value within plain JSON types."""
    yield path
    pairs = value.items() if isinstance(value, dict) else ()
    for key, part in enumerate(value) if isinstance(value, list) else pairs:
        yield from places(part, (*path, key))


PLACES = [(number, place) for number, one in enumerate(RECORDS) for place in places(one) if place]
TEXTS = ("", "x", "ok", "failed", "0" * 64, "0" * 64 + "\n", "fp32", "\uff12", "gloo")
wrongs = some.one_of(
    some.sampled_from(TEXTS), values, some.floats(), some.integers(), some.just([{}]), some.none()
)


def test_finished_records_are_accepted_at_once() -> None:
    for run in RECORDS:
        assert quick("record")(run) and quick("spec")(run["spec"])


@given(some.sampled_from(PLACES), wrongs, some.sampled_from(("set", "drop", "add")))
def test_no_record_is_accepted_that_the_schema_refuses(
    where: tuple[int, tuple[Any, ...]], value: Any, change: str
) -> None:
    number, (*folders, key) = where
    run = inner = copy.deepcopy(RECORDS[number])
    for folder in folders:
        inner = inner[folder]
    if change == "set":
        inner[key] = value
    elif change == "drop" or not isinstance(inner, dict):
        del inner[key]
    else:
        inner["more"] = value
    assert not quick("record")(run) or validator("record").is_valid(run)
