"""Texts and tokenisers that are none, and folders that a corpus must not be lost in."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.entry import call, refusal
from tests.hostile.mutants import NO_FILES

TEXT = b"a b a b ab ab a a b b\n" * 3

TEXTS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "document"),
    "NUL": (b"a\0b" * 9, "NUL"),
    "an overlong form": (b"abc \xc0\xaf def", "UTF-8"),
    "a cut character": (b"abcdefgh \xe2\x82", "UTF-8"),
    "too little": (b"ab", "tokens"),
}

VOCABULARY = {"<|endoftext|>": 0, "a": 1, "b": 2, " ": 3}
GOOD: dict[str, Any] = {
    "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
    "pre_tokenizer": None, "post_processor": None, "decoder": None, "added_tokens": [],
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False,
              "continuing_subword_prefix": None, "end_of_word_suffix": None,
              "byte_fallback": False, "ignore_merges": False, "vocab": VOCABULARY, "merges": []},
}  # fmt: skip
"""A file `tokenizer.json`."""


def model(**changes: Any) -> Any:
    return GOOD | {"model": GOOD["model"] | changes}


def splits(pattern: str) -> Any:
    """The tokeniser with a regular expression that splits the text first."""
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    return GOOD | {"pre_tokenizer": split | {"invert": False}}


TOKENISERS: dict[str, Any] = {
    "empty": b"", "a list": [], "latin-1": b"\xff\xfe", "deep": b"[" * 100_000,
    "an unknown model": model(type="Nope"), "no words": model(vocab={}),
    "a negative id": model(vocab=VOCABULARY | {"a": -1}),
    "an enormous id": model(vocab=VOCABULARY | {"a": 2**31}),
    "an id over the model's": model(vocab=VOCABULARY | {"a": 300}),
    "an id that two words have": model(vocab=VOCABULARY | {"a": 2}),
    "merges of nothing": model(merges=[["x", "y"]]),
    "no separator": model(vocab={"a": 0, "b": 1, " ": 2}),
    "no expression": splits("((("), "an expression without end": splits("(a+)+$"),
    "dropout": model(dropout=0.5),
}  # fmt: skip

SETTINGS: dict[str, bytes] = {
    "a list": b"[]", "cut": b'{"eos', "twice": b'{"eos_token": "a", "eos_token": "b"}',
}  # fmt: skip
"""A file `tokenizer_config.json`."""


@pytest.fixture(autouse=True)
def good_files(here: Path) -> None:
    (here / "good.txt").write_bytes(TEXT)
    (here / "tok").mkdir()
    (here / "tok/tokenizer.json").write_text(json.dumps(GOOD))


def tokens(out: str = "out", corpus: Any = None, tokenizer: Any = None) -> tuple[str, ...]:
    """The command, with its spec written."""
    good = {"source": "text", "paths": ["good.txt"], "document": "file"}
    spec = {"corpus": corpus or good, "tokenizer": tokenizer or {"kind": "char"},
            "context": 4, "model_vocab_size": 300, "min_tokens": 5}  # fmt: skip
    Path("spec.json").write_text(json.dumps(spec))
    return ("tokens", "--spec", "spec.json", "--out", out, "--num-proc", "1")


def of_text(path: str = "bad") -> dict[str, Any]:
    return {"source": "text", "paths": [path], "document": "file"}


PRETRAINED = {"kind": "pretrained", "name": "tok", "revision": None}


def test_the_good_ones_are_taken(here: Path) -> None:
    assert call(here, *tokens(tokenizer=PRETRAINED))[0] == 0


@pytest.mark.parametrize("name", TEXTS)
def test_a_text(here: Path, name: str) -> None:
    content, words = TEXTS[name]
    (here / "bad").write_bytes(content)
    assert words in refusal(here, *tokens(corpus=of_text()))


def test_half_a_character_of_an_array(here: Path) -> None:
    (here / "bad.json").write_text(json.dumps(["ok", "\ud800"]))
    array = {"source": "json", "paths": ["bad.json"]}
    assert "a document holds the lone surrogate" in refusal(here, *tokens(corpus=array))


@pytest.mark.parametrize("name", TOKENISERS)
def test_a_tokeniser(here: Path, name: str) -> None:
    content = copy.deepcopy(TOKENISERS[name])
    (here / "good.txt").write_bytes(b"a" * 40 + b"b")
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    (here / "tok/tokenizer.json").write_bytes(text)
    assert "toke" in refusal(here, *tokens(tokenizer=PRETRAINED))


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_a_tokeniser(here: Path, name: str) -> None:
    (here / "tok/tokenizer_config.json").write_bytes(SETTINGS[name])
    assert "tokenizer_config.json" in refusal(here, *tokens(tokenizer=PRETRAINED))


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file(here: Path, kind: str) -> None:
    NO_FILES[kind](here / "bad")
    refusal(here, *tokens(corpus=of_text()))
    if kind != "missing":
        NO_FILES[kind](here / "tok/tokenizer_config.json")
        refusal(here, *tokens(tokenizer=PRETRAINED))
    (here / "tok/tokenizer.json").unlink()
    NO_FILES[kind](here / "tok/tokenizer.json")
    refusal(here, *tokens(tokenizer=PRETRAINED))


LOST = ("the tokeniser", "a text", "an array")


@pytest.mark.parametrize("name", LOST)
def test_what_is_read_is_not_removed_first(here: Path, name: str) -> None:
    """The stage begins with the removal of what an earlier one left in its folder."""
    (here / "tok/shard-a.bin").write_bytes(TEXT if name == "a text" else b'["aaaa bbbb cccc"]')
    given: dict[str, dict[str, Any]] = {
        "the tokeniser": {"tokenizer": PRETRAINED},
        "a text": {"corpus": of_text("./tok/shard-a.bin")},
        "an array": {"corpus": {"source": "json", "paths": [str(here / "tok/shard-a.bin")]}},
    }
    assert "would be removed" in refusal(here, *tokens("tok", **given[name]))
    assert (here / "tok/tokenizer.json").is_file() and (here / "tok/shard-a.bin").is_file()
