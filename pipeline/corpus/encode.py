"""Encode the text store into shards, block by block, each block mapped by several processes.

A block is a file of bounded size, so memory and scratch space are bounded whatever the size of the
corpus; the parent never holds a block, because its memory counts again in every process it forks.
Rows keep their order, so the tokens do not depend on the number of processes.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tokenizers import Tokenizer

from pipeline.corpus.environment import single_threaded_tokenizers
from pipeline.corpus.shards import ShardWriter
from pipeline.corpus.text_store import Kind, TextStore, read_batches
from pipeline.corpus.tokenisers import Tokeniser, is_panic
from pipeline.errors import CorpusError

BLOCK_BYTES = 8 * 2**20
PIECES_PER_CALL = 64
REPORT_SECONDS = 10


def encode(
    store: TextStore,
    tokeniser: Tokeniser,
    dtype: str,
    writer: ShardWriter,
    work: Path,
    num_proc: int,
) -> None:
    """Append the tokens of every document and a separator after each to `writer`."""
    done_bytes, reported = 0, time.monotonic()
    block = work / "block.arrow"
    batches = store.batches()
    with single_threaded_tokenizers():
        while num_bytes := _write_block(batches, block):
            for tokens in _encode_block(block, tokeniser, dtype, work, num_proc):
                writer.append(tokens)
            done_bytes += num_bytes
            if time.monotonic() - reported > REPORT_SECONDS:
                reported = time.monotonic()
                print(f"tokens: {done_bytes / 1e6:.0f} MB of text encoded", file=sys.stderr)


def _write_block(batches: Iterator[pa.RecordBatch], block: Path) -> int:
    """Move batches into the file `block` until it holds BLOCK_BYTES; returns its bytes of text."""
    num_bytes = 0
    first = next(batches, None)
    if first is None:
        return 0
    with pa.OSFile(str(block), "wb") as raw, pa.ipc.new_stream(raw, first.schema) as stream:
        for batch in itertools.chain([first], batches):
            stream.write_batch(batch)
            num_bytes += batch.nbytes
            if num_bytes >= BLOCK_BYTES:
                break
    return num_bytes


def _encode_block(
    block: Path, tokeniser: Tokeniser, dtype: str, work: Path, num_proc: int
) -> Iterator[npt.NDArray[np.unsignedinteger]]:
    import datasets

    rows = datasets.Dataset.from_file(str(block))
    encoded = rows.map(
        _encode_pieces,
        batched=True,
        batch_size=PIECES_PER_CALL,
        remove_columns=rows.column_names,
        features=datasets.Features({"ids": datasets.List(datasets.Value(dtype))}),
        num_proc=min(num_proc, len(rows)) if num_proc > 1 else None,
        fn_kwargs={
            "tokenizer": tokeniser.tokenizer,
            "separator_id": tokeniser.separator_id,
            "dtype": dtype,
        },
        cache_file_name=str(work / "encoded.arrow"),
        load_from_cache_file=False,
        new_fingerprint="encoded",
        writer_batch_size=PIECES_PER_CALL,
    )
    files = [Path(file["filename"]) for file in encoded.cache_files]
    del rows, encoded
    for file in files:
        for batch in read_batches(file):
            yield batch.column("ids").flatten().to_numpy()
        file.unlink()


def _encode_pieces(
    rows: dict[str, list[Any]], tokenizer: Tokenizer, separator_id: int, dtype: str
) -> dict[str, list[npt.NDArray[np.unsignedinteger]]]:
    # A document that spells the separator out must not end there.
    tokenizer.encode_special_tokens = True
    try:
        encodings = tokenizer.encode_batch_fast(rows["text"], add_special_tokens=False)
    except BaseException as error:  # `tokenizers` raises the bare class for what it cannot encode
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        raise CorpusError(
            f"the tokeniser cannot encode the corpus ({' '.join(str(error).split())[:200]}); "
            "use another tokeniser or one with an unknown token"
        ) from None
    return {
        "ids": [
            np.array(
                encoding.ids + [separator_id] * (kind == Kind.LAST_PIECE), dtype=np.dtype(dtype)
            )
            for encoding, kind in zip(encodings, rows["kind"], strict=True)
        ]
    }
