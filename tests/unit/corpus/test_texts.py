"""Strings in chunks, documents in pieces: no size of a buffer decides what a token is."""

import json
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from pipeline.corpus import encode, sources
from pipeline.corpus.encode import token_ids, whole_documents
from pipeline.corpus.sources import Source, read_strings, split_document
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
        patch.setattr(sources, "CHUNK_CHARACTERS", chunk)
        assert list(read_strings(path)) == strings


def test_does_not_read_ahead_of_what_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('["first", ' + " " * sources.CHUNK_CHARACTERS + "broken")
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


def _tokeniser(kind: str) -> Tokenizer:
    """One token a character, after the rule for the start of a text that `kind` names."""
    vocab = {c: i for i, c in enumerate("ab \n\t漢.▁?")}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="?"))
    if kind == "metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    if kind == "prepend":
        tokenizer.normalizer = normalizers.Prepend("▁")
    if kind == "bytes":
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


@given(words_and_blanks, limits)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_blocks_are_those_between_blank_lines_whatever_is_read_at_once(text, size) -> None:
    blocks = [
        block.removesuffix("\n")
        for block in re.split(r"^[^\S\n]*(?:\n|\Z)", text, flags=re.MULTILINE)
        if block.strip()
    ]
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sources, "PIECE_CHARACTERS", size)
            section = {"source": "text", "paths": [file.name], "document": "block"}
            pieces = list(Source(section).read(file.name))
    joined = "".join(piece + "\0" * last for piece, last in pieces)
    assert joined.split("\0")[:-1] == blocks


@pytest.mark.parametrize("kind", ["plain", "metaspace", "prepend", "bytes"])
@given(documents=st.lists(words_and_blanks, max_size=4), size=limits)
def test_tokens_are_those_of_whole_documents_whatever_the_size_of_a_piece(
    kind: str, documents: list[str], size: int
) -> None:
    tokenizer = _tokeniser(kind)
    documents = [text for text in documents if text.strip()]
    pieces = [piece for text in documents for piece in split_document([text], size)]
    rows = list(whole_documents(pieces))
    assert [text for text, _, _ in rows] == documents
    assert [*token_ids(tokenizer, [(text, skip) for text, skip, _ in rows])] == [
        tokenizer.encode(text).ids for text in documents
    ]


@pytest.mark.parametrize("kind", ["plain", "metaspace", "prepend", "bytes"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 15, 16, 17, 29])
def test_a_document_over_the_limit_has_the_tokens_of_the_whole_one(kind, size, monkeypatch) -> None:
    tokenizer = _tokeniser(kind)
    text = "ab 漢b a.b\nab  bab\n\nab 漢漢 b." * 3
    monkeypatch.setattr(encode, "DOCUMENT_CHARACTERS", 16)
    rows = list(whole_documents(split_document([text], size)))
    assert len(rows) > 1 and [last for _, _, last in rows] == [False] * (len(rows) - 1) + [True]
    parts = token_ids(tokenizer, [(row, skip) for row, skip, _ in rows])
    assert [token for part in parts for token in part] == tokenizer.encode(text).ids
