"""No size of a buffer decides what a document or a token is."""

from __future__ import annotations

import re
import tempfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from pipeline.corpus import encode, sources
from pipeline.corpus.encode import token_ids, whole_documents
from pipeline.corpus.sources import Source
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
    pieces = [piece for text in documents for piece in split_document([text], size)]
    rows = list(whole_documents(pieces))
    assert [text for text, _, _ in rows] == documents
    assert [*token_ids(tokenizer, [(text, skip) for text, skip, _ in rows])] == [
        tokenizer.encode(text).ids for text in documents
    ]


@pytest.mark.parametrize("kind", ["plain", "metaspace", "prepend", "bytes"])
@pytest.mark.parametrize("size", range(1, 30))
def test_a_document_over_the_limit_has_the_tokens_of_the_whole_one(kind, size, monkeypatch) -> None:
    tokenizer = _tokeniser(kind)
    text = "ab 漢b a.b\nab  bab\n\nab 漢漢 b." * 3
    monkeypatch.setattr(encode, "DOCUMENT_CHARACTERS", 16)
    rows = list(whole_documents(split_document([text], size)))
    assert len(rows) > 1 and [last for _, _, last in rows] == [False] * (len(rows) - 1) + [True]
    parts = token_ids(tokenizer, [(row, skip) for row, skip, _ in rows])
    assert [token for part in parts for token in part] == tokenizer.encode(text).ids
