from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from pipeline.corpus.texts import split_document

texts = st.text(alphabet="ab \n\t漢.", max_size=200)
limits = st.integers(min_value=1, max_value=20)


@given(texts, limits)
def test_pieces_join_to_the_document_and_respect_the_limit(text: str, limit: int) -> None:
    pieces = list(split_document([text], limit))
    if not text.strip():
        assert pieces == []
        return
    assert "".join(piece for piece, _ in pieces) == text
    assert all(1 <= len(piece) <= limit for piece, _ in pieces)
    assert [last for _, last in pieces] == [False] * (len(pieces) - 1) + [True]


@given(texts, limits, st.lists(st.integers(min_value=1, max_value=7), min_size=1))
def test_pieces_do_not_depend_on_how_the_text_arrives(
    text: str, limit: int, sizes: list[int]
) -> None:
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


def test_a_line_end_is_preferred_to_a_space() -> None:
    assert list(split_document(["one two\nthree four"], 12)) == [
        ("one two\n", False),
        ("three four", True),
    ]


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
