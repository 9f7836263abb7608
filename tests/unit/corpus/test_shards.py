from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.corpus.shards import smallest_dtype, write_shards


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
