"""Token shards, and `manifest.json`: what their folder holds, and checks that it still does."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.documents import MAX_MADE_BYTES, parse, read_document, read_made, read_text
from pipeline.errors import CorpusError, SamestepError, refuse
from pipeline.files import sha256_of_file, write_text
from pipeline.schemas import AGAIN, validate

MANIFEST_FILE, TOKENIZER_FILE = "manifest.json", "tokenizer.json"
VERIFIED_FILE = ".verified.json"
"""Files that were read and are right: a folder of tokens is hashed once, not before every run."""

SCHEMA_VERSION = 1
SHARD_TOKENS = 2**24
_AGAIN = AGAIN["manifest"]


@dataclass(frozen=True)
class Shard:
    """One file of tokens, named relative to the manifest."""

    file: str
    num_tokens: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Counts, hashes and versions; equal corpora and tokenisers give equal bytes.

    `dtype` is `uint16` or `uint32`, little-endian on disk. `source` and `tokenizer` say where text
    and tokeniser came from, revisions included. `text_sha256` covers the documents' text.
    """

    schema_version: int
    source: Mapping[str, Any]
    tokenizer: Mapping[str, Any]
    num_documents: int
    num_characters: int
    num_tokens: int
    vocab_size: int
    separator_id: int
    dtype: str
    text_sha256: str
    shards: tuple[Shard, ...]
    versions: Mapping[str, str]

    @property
    def sha256(self) -> str:
        """Hash of the bytes of manifest.json, which hold the hash of everything else."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def file_dtype(self) -> np.dtype[Any]:
        """The type of the tokens as they lie on disk."""
        return np.dtype(self.dtype).newbyteorder("<")

    def to_json(self) -> str:
        """Canonical text of manifest.json."""
        return json.dumps(asdict(self), sort_keys=True, indent=1) + "\n"

    def write(self, folder: Path) -> None:
        """Validate and write manifest.json below `folder`, atomically; raises CorpusError."""
        validate(json.loads(self.to_json()), "manifest", folder / MANIFEST_FILE, CorpusError)
        write_text(folder / MANIFEST_FILE, self.to_json())

    @classmethod
    def load(cls, folder: Path, *, verify: bool = False) -> Manifest:
        """Read and check the manifest in `folder` against the files beside it.

        Sizes are always checked; `verify` also compares the SHA-256 of every file that has changed
        since it was last compared (`VERIFIED_FILE`), so that a study reads its tokens once. Raises
        CorpusError naming the file that is missing, truncated or changed.
        """
        path = folder / MANIFEST_FILE
        what = "manifest of token shards"
        text = read_text(path, what, CorpusError, _AGAIN, MAX_MADE_BYTES)
        data = parse(text, f"{what} {path}", CorpusError, "JSON", _AGAIN)
        validate(data, "manifest", path, CorpusError)
        manifest = cls(**{**data, "shards": tuple(Shard(**shard) for shard in data["shards"])})
        total = sum(shard.num_tokens for shard in manifest.shards)
        refuse(CorpusError, f"{path} ", [
            (manifest.to_json() != text, f"was edited: its text is not canonical; {_AGAIN}"),
            (total != manifest.num_tokens,
             f"at $.num_tokens: {manifest.num_tokens} is not the sum {total} of its shards; "
             f"{_AGAIN}"),
        ])  # fmt: skip
        for shard in manifest.shards:
            file, expected = folder / shard.file, shard.num_tokens * manifest.file_dtype.itemsize
            size = file.stat().st_size if file.is_file() else None
            refuse(CorpusError, f"{file} ", [
                (size is None, f"does not exist; expected {expected} bytes, {_AGAIN}"),
                (size != expected,
                 f"has {size} bytes; expected {expected} ({shard.num_tokens} tokens of "
                 f"{manifest.dtype}), {_AGAIN}"),
            ])  # fmt: skip
        if verify:
            manifest._check_hashes(folder)
        return manifest

    def _check_hashes(self, folder: Path) -> None:
        """Raise CorpusError for a file with another hash; one that was read before is not again."""
        expected = {shard.file: shard.sha256 for shard in self.shards}
        expected[TOKENIZER_FILE] = self.tokenizer["sha256"]
        # Size, time and hash of what was read. Copies keep `mtime`, but nobody sets `ctime`.
        read_before, files = {}, dict[str, Any]({MANIFEST_FILE: self.sha256})
        with contextlib.suppress(CorpusError):
            read_before = read_made(folder / VERIFIED_FILE, "", CorpusError, "train")
        for name, sha256 in expected.items():
            path = folder / name
            if not path.is_file():
                raise CorpusError(f"{path} does not exist; {_AGAIN}")
            state = path.stat()
            files[name] = [state.st_size, state.st_ctime_ns, sha256]
            if isinstance(read_before, dict) and read_before.get(name) == files[name]:
                continue
            if (actual := sha256_of_file(path)) != sha256:
                raise CorpusError(
                    f"{path} has SHA-256 {actual[:12]}...; expected {sha256[:12]}..., {_AGAIN}"
                )
        if files != read_before:
            self._check_counts(folder)
            # A folder that cannot be written is read again by the next run.
            with contextlib.suppress(OSError, SamestepError):
                write_text(folder / VERIFIED_FILE, json.dumps(files, indent=1) + "\n")

    def _check_counts(self, folder: Path) -> None:
        """Raise CorpusError where a number is not that of the tokens and the tokeniser."""
        path = folder / TOKENIZER_FILE
        content = read_document(path, "", CorpusError, _AGAIN, printable=False)
        try:
            vocab = content["model"]["vocab"]
            # A list holds its tokens with their scores, and a token's id is its place.
            ids = vocab if isinstance(vocab, dict) else {v[0]: i for i, v in enumerate(vocab)}
            ids = ids | {token["content"]: token["id"] for token in content["added_tokens"]}
            num_ids = max(ids.values()) + 1
        except (KeyError, TypeError, ValueError) as error:
            raise CorpusError(f"{path} is no file of a tokeniser ({error}); {_AGAIN}") from None
        documents = largest = 0
        for shard in self.shards:
            tokens = np.memmap(folder / shard.file, dtype=self.file_dtype, mode="r")
            documents += int(np.count_nonzero(tokens == self.separator_id))
            largest = max(largest, int(tokens.max()))
        # A tokeniser of others may make the separator of a text that spells it out.
        own = self.tokenizer["kind"] != "pretrained"
        counts = {
            "vocab_size": max(num_ids, largest + 1),
            "separator_id": ids.get(self.tokenizer["separator"]),
            "num_documents": documents if own else max(documents, self.num_documents),
        }
        for name, count in counts.items():
            if getattr(self, name) != count:
                raise CorpusError(
                    f"{folder / MANIFEST_FILE} at $.{name}: {getattr(self, name)} is not the "
                    f"{count} of the tokens beside it, so it was edited; {_AGAIN}"
                )


def smallest_dtype(vocab_size: int) -> str:
    """`uint16` where every id fits, else `uint32`; files are little-endian."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def write_shards(
    folder: Path,
    dtype: str,
    arrays: Iterable[npt.NDArray[np.unsignedinteger]],
    shard_tokens: int = SHARD_TOKENS,
) -> list[Shard]:
    """Write arrays of tokens, shape (n,), one after another to `shard-00000.bin` and so on.

    Every shard but the last holds `shard_tokens` tokens of the type `dtype`, a name.
    """
    shards: list[Shard] = []
    stored, filled = np.dtype(dtype).newbyteorder("<"), (one for one in arrays if len(one))
    tokens = next(filled, None)
    while tokens is not None:
        name, digest, room = f"shard-{len(shards):05d}.bin", hashlib.sha256(), shard_tokens
        with (folder / name).open("wb") as stream:
            while room and tokens is not None:
                data = tokens[:room].astype(stored, copy=False).tobytes()
                stream.write(data)
                digest.update(data)
                rest, room = tokens[room:], max(0, room - len(tokens))
                tokens = rest if len(rest) else next(filled, None)
        shards.append(Shard(name, shard_tokens - room, digest.hexdigest()))
    return shards
