from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.corpus.manifest import Manifest, smallest_dtype, write_shards
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


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(3, "uint16"), (65536, "uint16"), (65537, "uint32")]
)
def test_smallest_type_that_fits(vocab_size: int, dtype: str) -> None:
    assert smallest_dtype(vocab_size) == dtype
    assert np.iinfo(dtype).max >= vocab_size - 1


@given(
    parts=st.lists(st.lists(st.integers(0, 65535), max_size=12), max_size=10),
    shard_tokens=st.integers(min_value=1, max_value=9),
    dtype=st.sampled_from(["uint16", "uint32"]),
)
def test_shards_hold_the_stream_in_order(tmp_path_factory, parts, shard_tokens, dtype) -> None:
    folder = tmp_path_factory.mktemp("shards")
    arrays = (np.array(part, dtype=dtype) for part in parts)
    shards = write_shards(folder, dtype, arrays, shard_tokens)
    data = b"".join((folder / shard.file).read_bytes() for shard in shards)
    flat = [token for part in parts for token in part]
    assert np.frombuffer(data, dtype=np.dtype(dtype).newbyteorder("<")).tolist() == flat
    assert all(shard.num_tokens == shard_tokens for shard in shards[:-1])
    assert len(shards) == -(-len(flat) // shard_tokens)
    for shard in shards:
        assert hashlib.sha256((folder / shard.file).read_bytes()).hexdigest() == shard.sha256


def test_files_are_little_endian(tmp_path: Path) -> None:
    write_shards(tmp_path, "uint16", [np.array([258], dtype=">u2")])
    assert (tmp_path / "shard-00000.bin").read_bytes() == b"\x02\x01"
