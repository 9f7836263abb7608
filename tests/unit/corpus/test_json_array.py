from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.corpus import texts
from pipeline.corpus.texts import read_strings
from pipeline.errors import CorpusError


@given(
    strings=st.lists(st.text(max_size=40), max_size=8),
    chunk=st.integers(min_value=1, max_value=9),
    indent=st.sampled_from([None, 2]),
    ascii_only=st.booleans(),
)
def test_reads_what_json_wrote_whatever_the_chunk(
    tmp_path_factory: pytest.TempPathFactory,
    strings: list[str],
    chunk: int,
    indent: int | None,
    ascii_only: bool,
) -> None:
    path = tmp_path_factory.mktemp("json") / "a.json"
    path.write_text(json.dumps(strings, indent=indent, ensure_ascii=ascii_only), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "CHUNK_CHARACTERS", chunk)
        assert list(read_strings(path)) == strings


def test_does_not_read_ahead_of_what_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('["first", ' + " " * texts.CHUNK_CHARACTERS + "broken")
    strings = read_strings(path)
    assert next(strings) == "first"
    with pytest.raises(CorpusError):
        next(strings)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('["a", 7, "b"]', ["document 1", "'7", "expected a string"]),
        ('["a", null]', ["document 1", "null"]),
        ('["a", ["b"]]', ["document 1", '["b"]']),
        ('{"a": 1}', ["does not begin with '['"]),
        ("", ["does not begin with '['"]),
        ('["a" "b"]', ["document 1", "follows a string"]),
        ('["a", "b"', ["document 2", "end of the file"]),
        ('["a", "b', ["document 1", "Unterminated"]),
        ('["a", "\\q and much more text after it"]', ["document 1", "escape"]),
        ('["a"] tail', ["follows the closing"]),
        ('["a",]', ["document 1", "expected a string"]),
    ],
)
def test_says_which_document_is_wrong(tmp_path: Path, text: str, names: list[str]) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(CorpusError) as caught:
        list(read_strings(path))
    message = str(caught.value)
    assert "\n" not in message
    for name in [*names, "bad.json"]:
        assert name in message


def test_a_bad_escape_does_not_read_the_rest_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "CHUNK_CHARACTERS", 64)
    path = tmp_path / "bad.json"
    path.write_bytes(b'["\\q' + b"x" * 10_000 + b'\xff"]')  # the invalid byte is never reached
    with pytest.raises(CorpusError, match=r"Invalid \\escape"):
        list(read_strings(path))


def test_a_missing_file_and_bad_utf8_are_corpus_errors(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="No such file"):
        list(read_strings(tmp_path / "none.json"))
    (tmp_path / "latin.json").write_bytes(b'["caf\xe9"]')
    with pytest.raises(CorpusError, match=r"byte 0xe9 is not UTF-8"):
        list(read_strings(tmp_path / "latin.json"))
