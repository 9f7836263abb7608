"""Small folders of shards and small specs for the tests of the corpus package."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.corpus.manifest import TOKENIZER_FILE, Manifest, write_shards
from pipeline.files import sha256_of_file

MakeShards = Callable[..., Path]


@pytest.fixture
def make_shards(tmp_path: Path) -> MakeShards:
    """Write tokens 0, 1, 2, ... so that a token is its own position in the corpus."""

    def make(num_tokens: int, shard_tokens: int = 2**24, dtype: str = "uint16") -> Path:
        folder = tmp_path / f"tokens-{num_tokens}-{shard_tokens}-{dtype}"
        folder.mkdir()
        vocab = {"<|endoftext|>": 0, "last": num_tokens - 1}
        (folder / TOKENIZER_FILE).write_text(
            json.dumps({"model": {"vocab": vocab}, "added_tokens": []})
        )
        shards = write_shards(folder, dtype, [np.arange(num_tokens, dtype=dtype)], shard_tokens)
        tokenizer = {
            "kind": "bpe",
            "separator": "<|endoftext|>",
            "sha256": sha256_of_file(folder / TOKENIZER_FILE),
            "trained_on_every_nth_piece": 1,
        }
        Manifest(
            schema_version=1,
            source={"source": "text", "files": ["a.txt"], "document": "file"},
            tokenizer=tokenizer,
            num_documents=1,
            num_characters=num_tokens,
            num_tokens=num_tokens,
            vocab_size=num_tokens,
            separator_id=0,
            dtype=dtype,
            text_sha256="0" * 64,
            shards=tuple(shards),
            versions={"python": "3", "datasets": "1", "tokenizers": "1"},
        ).write(folder)
        return folder

    return make


@pytest.fixture
def text_spec(tmp_path: Path) -> dict[str, Any]:
    """A tokens spec over two text files of 60 blocks each."""
    paths = []
    for name in ("one.txt", "two.txt"):
        blocks = [f"{name} has block number {i}\nwith a second line" for i in range(60)]
        (tmp_path / name).write_text("\n\n".join(blocks) + "\n")
        paths.append(str(tmp_path / name))
    return {
        "corpus": {"source": "text", "paths": paths, "document": "block"},
        "tokenizer": {"kind": "bpe", "vocab_size": 300},
        "context": 8,
        "model_vocab_size": 300,
        "min_tokens": 17,
    }
