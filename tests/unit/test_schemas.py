"""All schemas are read strictly, also one to which another refers."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.schemas import describe, first_error
from tests.fake_records import make_study

RECORD = json.loads(Path("tests/examples/records/valid/ok/run.json").read_text())


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("spec", "repeat"), 0.0),
        (("spec", "optimiser", "learning_rate"), float("nan")),
        (("spec", "optimiser", "name"), "sgd"),
        (("spec", "cell"), "single\n"),
        (("spec", "world", "nodes"), 10**9),
        (("hardware", "num_cores"), 2.0),
        (("model", "flops_per_token"), float("inf")),
        (("spec_sha256",), "0" * 64 + "\n"),
        (("started_at",), "\uff12026-01-01T00:00:00+00:00"),
    ],
)
def test_numbers_are_finite_whole_ones_integers_and_texts_end(
    place: tuple[str, ...], value: Any
) -> None:
    assert first_error(RECORD, "record") is None
    changed = copy.deepcopy(RECORD)
    *folders, key = place
    inner = changed
    for folder in folders:
        inner = inner[folder]
    inner[key] = value
    assert first_error(changed, "record") is not None


@pytest.mark.parametrize(
    ("tokenizer", "said"),
    [
        ({"kind": "bpe", "vocab_size": 256}, "$.tokenizer.vocab_size: 256 breaks minimum"),
        ({"kind": "x"}, '"x" breaks enum: ["bpe", "wordpiece", "char", "pretrained"]'),
        (
            {"kind": "char", "vocabulary": 9},
            "unknown keys 'vocabulary' (additionalProperties); expected keys 'kind'",
        ),
        ([], "at $.tokenizer: []"),
    ],
)
def test_of_several_forms_the_one_that_is_meant_is_held(tokenizer: Any, said: str) -> None:
    error = first_error(make_study() | {"tokenizer": tokenizer}, "config")
    assert error is not None and said in describe(error)
