"""Sources of documents: files of text and JSON, the hub, and this Python's own prose."""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.corpus import python_docs
from pipeline.corpus.sources import PIECE_CHARACTERS, Source, source_of
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
        ({"split": "dev"}, ["dev", REVISION, "corpus.name"]),
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


def test_missing_topics_are_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"topics\.py does not exist"):
        python_docs.units(tmp_path)


def test_this_interpreter_has_real_prose() -> None:
    root = python_docs.standard_library()
    units = python_docs.units(root)
    known = {"argparse.py", "json/__init__.py", "pathlib.py"}
    assert known <= set(units) or sys.version_info >= (3, 13)
    topics = list(python_docs.documents(root, python_docs.TOPICS))
    assert sum(map(len, topics)) > 300_000
    assert any("context manager" in topic for topic in topics)
