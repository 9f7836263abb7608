"""Errors of a schema with several forms say which form is meant."""

from typing import Any

import pytest

from pipeline.schemas import describe, first_error
from tests.fake_records import make_study


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
        (
            {"kind": "pretrained", "name": "a/b", "revision": "main"},
            "'main' does not match '^[0-9a-f]{40}$': full commit hash; null for a folder",
        ),
    ],
)
def test_of_several_forms_the_one_that_is_meant_is_held(tokenizer: Any, said: str) -> None:
    error = first_error(make_study() | {"tokenizer": tokenizer}, "config")
    assert error is not None and said in describe(error)
