"""No size of a buffer decides what a document or a token is."""

from __future__ import annotations

import re
import tempfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from pipeline.corpus import encode, sources
from pipeline.corpus.build import TokensSpec, build
from pipeline.corpus.encode import token_ids, whole_documents
from pipeline.corpus.sources import Source
from pipeline.corpus.text_store import Kind
from pipeline.corpus.texts import split_document

texts = st.text(alphabet="ab \n\t漢.", max_size=120)
sizes = st.integers(min_value=1, max_value=12)


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


@given(texts, sizes)
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
@given(documents=st.lists(texts, max_size=4), size=sizes)
def test_tokens_are_those_of_whole_documents_whatever_the_size_of_a_piece(
    kind: str, documents: list[str], size: int
) -> None:
    tokenizer = _tokeniser(kind)
    documents = [text for text in documents if text.strip()]
    pieces = [
        (piece, Kind.LAST_PIECE if last else Kind.PIECE)
        for text in documents
        for piece, last in split_document([text], size)
    ]
    rows = list(whole_documents(pieces))
    assert [text for text, _, _ in rows] == documents
    assert [token_ids(tokenizer, text, skip) for text, skip, _ in rows] == [
        tokenizer.encode(text).ids for text in documents
    ]


@pytest.mark.parametrize("kind", ["plain", "metaspace", "prepend", "bytes"])
@pytest.mark.parametrize("size", range(1, 30))
def test_a_document_over_the_limit_has_the_tokens_of_the_whole_one(kind, size, monkeypatch) -> None:
    tokenizer = _tokeniser(kind)
    text = "ab 漢b a.b\nab  bab\n\nab 漢漢 b." * 3
    monkeypatch.setattr(encode, "DOCUMENT_CHARACTERS", 16)
    pieces = [
        (piece, Kind.LAST_PIECE if last else Kind.PIECE)
        for piece, last in split_document([text], size)
    ]
    rows = list(whole_documents(pieces))
    assert len(rows) > 1 and [last for _, _, last in rows] == [False] * (len(rows) - 1) + [True]
    ids = [token for row, skip, _ in rows for token in token_ids(tokenizer, row, skip)]
    assert ids == tokenizer.encode(text).ids


def test_sockets_of_the_processes_do_not_lie_below_a_long_tmpdir(tmp_path, monkeypatch) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("some words\n\nother words\n", encoding="utf-8")
    paths = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    data = {"corpus": {"source": "text", "paths": paths, "document": "block"},
            "tokenizer": {"kind": "bpe", "vocab_size": 300}, "context": 2,
            "model_vocab_size": 300, "min_tokens": 3}  # fmt: skip
    manifest = build(TokensSpec.from_dict(data), tmp_path / "out", 2)
    assert manifest.num_documents == 4
    assert tempfile.tempdir == str(long)
