from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.corpus.sources import Source, source_of
from pipeline.corpus.texts import PIECE_CHARACTERS
from pipeline.errors import CorpusError

REVISION = "0123456789abcdef0123456789abcdef01234567"


def documents(source: Source) -> list[str]:
    """The documents of a source, put together from their pieces."""
    found, parts = [], []
    for unit in source.units():
        for piece, last in source.read(unit):
            parts.append(piece)
            if last:
                found.append("".join(parts))
                parts = []
    assert parts == []
    return found


def text_source(path: Path, document: str) -> Source:
    return source_of({"source": "text", "paths": [str(path)], "document": document})


def test_blocks_are_separated_by_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\n\none\r\ntwo\r\n\r\n \t\r\nthree\n\n\n\nfour")
    assert documents(text_source(path, "block")) == ["one\ntwo", "three", "four"]


def test_a_file_is_a_document(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n\ntwo\n")
    assert documents(text_source(path, "file")) == ["one\n\ntwo\n"]


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


@pytest.mark.parametrize("source", ["text", "json"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fifo", "a FIFO, not a regular file"),
        ("folder", "a folder, not a regular file"),
        ("/dev/zero", "a device, not a regular file"),
        ("latin", "byte 0xf6 is not UTF-8"),
        ("binary", "a NUL byte"),
        ("none", "No such file"),
        ("nul\0", "NUL"),
    ],
)
def test_what_is_no_text_file_is_one_line(
    tmp_path: Path, source: str, name: str, words: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin").write_bytes("Größe".encode("latin-1"))
    (tmp_path / "binary").write_bytes(b'["a\0"]')
    paths = [str(tmp_path / name)]
    with pytest.raises(CorpusError) as caught:
        documents(source_of({"source": source, "paths": paths, "document": "block"}))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_python_docs_names_the_version() -> None:
    source = source_of({"source": "python-docs"})
    assert source.is_local
    assert set(source.describe()) == {"source", "python"}


@pytest.fixture
def hub_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    (folder / "data").mkdir(parents=True)
    rows: dict[str, list[Any]] = {"body": ["one", "two", "three"], "number": [1, 2, 3]}
    pq.write_table(pa.table(rows), folder / "data" / "train-00000.parquet")
    return folder


def hub(folder: Path, **changes: Any) -> Source:
    section = {
        "source": "hub",
        "name": str(folder),
        "split": "train",
        "revision": REVISION,
        "column": "body",
    }
    return source_of(section | changes)


def test_hub_streams_a_folder(hub_folder: Path) -> None:
    assert documents(hub(hub_folder)) == ["one", "two", "three"]
    assert documents(hub(hub_folder, max_documents=2)) == ["one", "two"]


def test_hub_describes_the_revision_and_no_path(hub_folder: Path) -> None:
    described = hub(hub_folder).describe()
    assert described["revision"] == REVISION
    assert described["name"] == "set"


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
        ({"split": "dev"}, ["dev", REVISION, "corpus.name"]),
    ],
)
def test_hub_errors_name_the_value(
    hub_folder: Path, changes: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(CorpusError) as caught:
        documents(hub(hub_folder, **changes))
    for word in words:
        assert word in str(caught.value)
