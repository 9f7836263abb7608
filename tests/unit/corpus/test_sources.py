"""Sources of documents (text, JSON, the hub, this Python's own prose) and documents in pieces.

No size of a buffer decides what a document or a token is.
"""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from pipeline.corpus import encode, python_docs, sources
from pipeline.corpus.encode import token_ids, whole_documents
from pipeline.corpus.sources import (
    PIECE_CHARACTERS,
    Source,
    read_strings,
    source_of,
    split_document,
)
from pipeline.errors import CorpusError

REVISION = "0123456789abcdef0123456789abcdef01234567"


def documents(source: Source) -> list[str]:
    """The documents of a source, put together from their pieces."""
    texts, parts = [], []
    for unit in source.units():
        for piece, last in source.read(unit):
            parts.append(piece)
            if last:
                texts.append("".join(parts))
                parts = []
    assert parts == []
    return texts


def text_source(path: Path, document: str) -> Source:
    return source_of({"source": "text", "paths": [str(path)], "document": document})


@pytest.mark.parametrize(
    ("document", "content", "expected"),
    [
        ("block", b"\n\none\r\ntwo\r\n\r\n \t\r\nthree\n\n\n\nfour", ["one\ntwo", "three", "four"]),
        ("file", b"one\n\ntwo\n", ["one\n\ntwo\n"]),
    ],
)
def test_a_document_is_a_block_or_a_file(tmp_path: Path, document, content, expected) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    assert documents(text_source(path, document)) == expected


@pytest.mark.parametrize("document", ["block", "file"])
def test_a_long_document_arrives_in_bounded_pieces(tmp_path: Path, document: str) -> None:
    path = tmp_path / "a.txt"
    text = "many words on one line and no line end " * 3000
    path.write_text(text.strip())
    source = text_source(path, document)
    pieces = list(source.read(str(path)))
    assert len(pieces) > 5
    assert max(len(piece) for piece, _ in pieces) <= PIECE_CHARACTERS
    assert documents(source) == [text.strip()]


def test_json_files_in_their_order(tmp_path: Path) -> None:
    for name, strings in {"b.json": ["one", "two"], "a.json": ["", "three"]}.items():
        (tmp_path / name).write_text(json.dumps(strings))
    paths = [str(tmp_path / "b.json"), str(tmp_path / "a.json")]
    source = source_of({"source": "json", "paths": paths})
    assert documents(source) == ["one", "two", "three"]
    assert source.describe() == {"source": "json", "files": ["b.json", "a.json"]}


@pytest.fixture
def hub_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    (folder / "data").mkdir(parents=True)
    rows: dict[str, list[Any]] = {"body": ["one", "two", "three"], "number": [1, 2, 3]}
    pq.write_table(pa.table(rows), folder / "data" / "train-00000.parquet")
    return folder


def hub(folder: Path, **changes: Any) -> Source:
    section = {"source": "hub", "name": str(folder), "split": "train", "revision": REVISION,
               "column": "body"}  # fmt: skip
    return source_of(section | changes)


def test_hub_streams_a_folder_and_describes_no_path(hub_folder: Path) -> None:
    assert documents(hub(hub_folder)) == ["one", "two", "three"]
    assert documents(hub(hub_folder, max_documents=2)) == ["one", "two"]
    described = hub(hub_folder).describe()
    assert (described["revision"], described["name"]) == (REVISION, "set")


def test_hub_passes_the_pinned_revision_and_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def load(name: str, config: str | None, **options: Any) -> list[dict[str, str]]:
        asked.append((name, config, options))
        return [{"body": "one"}]

    monkeypatch.setattr("datasets.load_dataset", load)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid")
    source = hub(Path("some/set"), config="en")
    assert documents(source) == ["one"]
    options = {"split": "train", "revision": REVISION, "streaming": True}
    assert asked == [("some/set", "en", options)]
    assert not source.is_local


def test_a_hub_that_cannot_be_reached_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its library would look the name up six times within half a minute."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: pytest.fail("was asked"))
    with pytest.raises(CorpusError, match=r"the hub hub\.invalid cannot be reached .*HTTPS_PROXY"):
        documents(hub(Path("some/set")))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"column": "text"}, ["no column 'text'", "body, number"]),
        ({"column": "number"}, ["document 0", "is 1", "expected a string"]),
    ],
)
def test_hub_errors_name_the_value(hub_folder, changes, words) -> None:
    with pytest.raises(CorpusError) as caught:
        documents(hub(hub_folder, **changes))
    for word in words:
        assert word in str(caught.value)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    files = {
        "pydoc_data/topics.py": "topics = {'zeta': 'Last topic.', 'alpha': 'First topic.'}\n",
        "json/__init__.py": (
            '"""Module."""\n'
            'class A:\n    """Class."""\n    def f(self):\n        """Method."""\n'
            'async def g():\n    """Coroutine."""\n'
            "raise SystemExit('imported')\n"
        ),
        "abc.py": '"""Before json."""\n',
        "json/tests/test_a.py": '"""Test."""\n',
        "sitecustomize.py": '"""Local file."""\n',
        "site-packages/os.py": '"""Somebody else."""\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_topics_come_by_key_then_docstrings_by_module_without_importing(library: Path) -> None:
    """Without tests, packages of others and local files."""
    units = python_docs.units(library)
    assert units == ["pydoc_data/topics.py", "abc.py", "json/__init__.py"]
    topics, _, of_json = (list(python_docs.documents(library, unit)) for unit in units)
    assert topics == ["First topic.", "Last topic."]
    assert of_json == ["Module.\n\nClass.\n\nMethod.\n\nCoroutine."]


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


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('["a", 7, "b"]', ["document 1", ", 7"]),
        ('["a", ["b"]]', ["document 1", '["b"]']),
        ("", ["document 0", "the end of the file"]),
        ('["a" "b"]', ["document 1", '"b"']),
        ('["a", "b', ["document 1", '"b']),
        ('["a", "\\q and much more text after it"]', ["document 1", "escape"]),
        ('["a"] tail', ["document 1", "] tail"]),
        ('["a",]', ["document 1", ",]"]),
        ('["a\nb"]', ["document 0", "control character"]),
        ("[" * 5000, ["document 0", "[["]),
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


@given(words_and_blanks, limits, st.lists(st.integers(min_value=1, max_value=7), min_size=1))
def test_pieces_join_to_the_document_however_it_arrives(text, limit, sizes) -> None:
    """Each within the limit, the last one marked."""
    chunks: list[str] = []
    at = 0
    while at < len(text):
        size = sizes[len(chunks) % len(sizes)]
        chunks.append(text[at : at + size])
        at += size
    pieces = list(split_document([text], limit))
    assert list(split_document(chunks, limit)) == pieces
    if not text.strip():
        assert pieces == []
        return
    assert "".join(piece for piece, _ in pieces) == text
    assert all(1 <= len(piece) <= limit for piece, _ in pieces)
    assert [last for _, last in pieces] == [False] * (len(pieces) - 1) + [True]


@given(st.lists(st.sampled_from(["word", "don't", "42", "漢字", "a."]), min_size=30))
def test_a_cut_never_falls_inside_a_word(words: list[str]) -> None:
    text = " ".join(words[:15]) + "\n" + " ".join(words[15:])
    split = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    whole = [word for word, _ in split(text)]
    in_pieces = [word for piece, _ in split_document([text], 24) for word, _ in split(piece)]
    assert in_pieces == whole


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
