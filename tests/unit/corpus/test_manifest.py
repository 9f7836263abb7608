from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.corpus.manifest import Manifest
from pipeline.errors import CorpusError
from tests.unit.corpus.conftest import MakeShards


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "manifest.json"
    data = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(data, sort_keys=True, indent=1) + "\n")


def test_round_trip_and_hash_of_the_bytes(make_shards: MakeShards) -> None:
    folder = make_shards(100, 40)
    manifest = Manifest.load(folder, verify=True)
    assert [shard.num_tokens for shard in manifest.shards] == [40, 40, 20]
    text = (folder / "manifest.json").read_bytes()
    assert manifest.sha256 == hashlib.sha256(text).hexdigest()


def one_line(folder: Path, *words: str, verify: bool = False) -> None:
    with pytest.raises(CorpusError) as caught:
        Manifest.load(folder, verify=verify)
    message = str(caught.value)
    assert "\n" not in message
    for word in (*words, "python -m pipeline tokens"):
        assert word in message


def append(path: Path, more: str) -> None:
    path.write_text(path.read_text() + more)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "shard-00001.bin").write_bytes(b"\0" * 78),
         ("shard-00001.bin has 78 bytes", "expected 80", "40 tokens of uint16")),
        (lambda folder: (folder / "shard-00002.bin").unlink(),
         ("shard-00002.bin does not exist", "40 bytes")),
        (lambda folder: edit(folder, num_tokens=99), ("$.num_tokens", "99", "sum 100")),
        (lambda folder: append(folder / "manifest.json", "\n"), ("not canonical",)),
    ],
    ids=["cut", "missing", "another number", "not canonical"],
)  # fmt: skip
def test_what_is_seen_without_reading_the_tokens(make_shards: MakeShards, damage, words) -> None:
    folder = make_shards(100, 40)
    damage(folder)
    one_line(folder, *words)


@pytest.mark.parametrize("name", ["shard-00000.bin", "tokenizer.json"])
def test_changed_bytes_are_found_by_verify(make_shards: MakeShards, name: str) -> None:
    folder = make_shards(100)
    path = folder / name
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    Manifest.load(folder)
    one_line(folder, name, "SHA-256", verify=True)


def test_what_was_verified_is_not_read_again(make_shards: MakeShards, monkeypatch) -> None:
    """A study has hundreds of runs, and a corpus may be terabytes."""
    folder = make_shards(100)
    manifest = Manifest.load(folder, verify=True)
    hashed = "pipeline.corpus.manifest.sha256_of_file"
    monkeypatch.setattr(hashed, lambda path: pytest.fail(f"{path} was read again"))
    assert Manifest.load(folder, verify=True) == manifest
