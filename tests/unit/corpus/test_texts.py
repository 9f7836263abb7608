"""Files of text: an array of strings in chunks, documents in pieces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from pipeline.corpus import texts
from pipeline.corpus.texts import read_strings, split_document
from pipeline.errors import CorpusError


@given(
    strings=st.lists(st.text(max_size=40), max_size=8),
    chunk=st.integers(min_value=1, max_value=9),
    indent=st.sampled_from([None, 2]),
    ascii_only=st.booleans(),
)
def test_reads_what_json_wrote_whatever_the_chunk(
    tmp_path_factory, strings, chunk, indent, ascii_only
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
        ('["a", 7, "b"]', ["document 1", ", 7"]),
        ('["a", null]', ["document 1", "null"]),
        ('["a", ["b"]]', ["document 1", '["b"]']),
        ('{"a": 1}', ["document 0", '{"a": 1}']),
        ("", ["document 0", "the end of the file"]),
        ('["a" "b"]', ["document 1", '"b"']),
        ('["a"["b"]', ["document 1", '["b"']),
        ('["a", "b"', ["document 2", "end of the file"]),
        ('["a", "b', ["document 1", '"b']),
        ('["a", "\\q and much more text after it"]', ["document 1", "escape"]),
        ('["a"] tail', ["document 1", "] tail"]),
        ('["a",]', ["document 1", ",]"]),
        ('[,"a"]', ["document 0", '[,"a"]']),
        ('["a"]["b"]', ["document 1", '["b"]']),
        ('["a\nb"]', ["document 0", "control character"]),
        ("[1e999]", ["document 0", "1e999"]),
        ("[" * 5000, ["document 0", "[["]),
        ('"a"\n"b"\n', ["document 0", '"a"']),
    ],
)
def test_says_which_document_is_wrong(tmp_path: Path, text: str, names: list[str]) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(CorpusError) as caught:
        list(read_strings(path))
    message = str(caught.value)
    assert "\n" not in message
    for name in [*names, "bad.json", "expected ["]:
        assert name in message


words_and_blanks = st.text(alphabet="ab \n\t漢.", max_size=200)
limits = st.integers(min_value=1, max_value=20)


@given(words_and_blanks, limits)
def test_pieces_join_to_the_document_and_respect_the_limit(text: str, limit: int) -> None:
    pieces = list(split_document([text], limit))
    if not text.strip():
        assert pieces == []
        return
    assert "".join(piece for piece, _ in pieces) == text
    assert all(1 <= len(piece) <= limit for piece, _ in pieces)
    assert [last for _, last in pieces] == [False] * (len(pieces) - 1) + [True]


@given(words_and_blanks, limits, st.lists(st.integers(min_value=1, max_value=7), min_size=1))
def test_pieces_do_not_depend_on_how_the_text_arrives(text, limit, sizes) -> None:
    chunks: list[str] = []
    at = 0
    while at < len(text):
        size = sizes[len(chunks) % len(sizes)]
        chunks.append(text[at : at + size])
        at += size
    assert list(split_document(chunks, limit)) == list(split_document([text], limit))


@given(st.lists(st.sampled_from(["word", "don't", "42", "漢字", "a."]), min_size=30))
def test_a_cut_never_falls_inside_a_word(words: list[str]) -> None:
    text = " ".join(words[:15]) + "\n" + " ".join(words[15:])
    split = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    whole = [word for word, _ in split(text)]
    in_pieces = [word for piece, _ in split_document([text], 24) for word, _ in split(piece)]
    assert in_pieces == whole


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("one two\n\nthree", "one"),  # a run of line ends is one token: not cut within or after
        ("one two  three", "one"),
        ("abcdefghijkl", "abcdefghi"),
    ],
)
def test_runs_of_white_space_stay_whole_where_they_can(text: str, first: str) -> None:
    assert next(split_document([text], 9)) == (first, False)


def test_white_space_alone_is_no_document() -> None:
    assert list(split_document([" \n", "\t "])) == []
    assert list(split_document([" \n" * 9, "\t "], 4)) == []
