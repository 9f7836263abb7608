from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.corpus.manifest import Manifest
from pipeline.errors import CorpusError
from pipeline.files import sha256_of_file
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


def test_a_truncated_shard(make_shards: MakeShards) -> None:
    folder = make_shards(100, 40)
    (folder / "shard-00001.bin").write_bytes(b"\0" * 78)
    one_line(folder, "shard-00001.bin has 78 bytes", "expected 80", "40 tokens of uint16")


def test_a_missing_shard(make_shards: MakeShards) -> None:
    folder = make_shards(100, 40)
    (folder / "shard-00002.bin").unlink()
    one_line(folder, "shard-00002.bin does not exist", "40 bytes")


@pytest.mark.parametrize("name", ["shard-00000.bin", "tokenizer.json"])
def test_changed_bytes_are_found_by_verify(make_shards: MakeShards, name: str) -> None:
    folder = make_shards(100)
    path = folder / name
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    Manifest.load(folder)
    one_line(folder, name, "SHA-256", verify=True)


def test_counts_that_disagree(make_shards: MakeShards) -> None:
    folder = make_shards(100)
    edit(folder, num_tokens=99)
    one_line(folder, "$.num_tokens", "99", "sum 100")


def test_text_that_is_not_canonical(make_shards: MakeShards) -> None:
    folder = make_shards(100)
    path = folder / "manifest.json"
    path.write_text(path.read_text() + "\n")
    one_line(folder, "not canonical")


def test_what_was_verified_is_not_read_again(make_shards: MakeShards, monkeypatch) -> None:
    """A study has hundreds of runs, and a corpus may be terabytes."""
    folder = make_shards(100)
    manifest = Manifest.load(folder, verify=True)
    read: list[Path] = []
    hashed = sha256_of_file

    def noted(path: Path) -> str:
        read.append(path)
        return hashed(path)

    monkeypatch.setattr("pipeline.corpus.manifest.sha256_of_file", noted)
    assert Manifest.load(folder, verify=True) == manifest
    assert read == []
    shard = folder / manifest.shards[0].file
    content = shard.read_bytes()
    shard.write_bytes(content[::-1])
    os.utime(shard, ns=(0, 0))
    one_line(folder, shard.name, "SHA-256", verify=True)
    assert read == [shard]


@pytest.mark.parametrize(
    ("name", "value"), [("vocab_size", 301), ("separator_id", 1), ("num_documents", 7)]
)
def test_a_number_that_is_not_that_of_the_tokens(small_tokens, tmp_path, name, value) -> None:
    """Also where the tokens were found right before."""
    folder = Path(shutil.copytree(small_tokens, tmp_path / "tokens"))
    Manifest.load(folder, verify=True)
    edit(folder, **{name: value})
    one_line(folder, f"at $.{name}: {value} is not", verify=True)
