"""Encode the text store into shards, block by block, each block mapped by several processes.

A document is encoded whole, because a tokeniser may treat the start of a text in its own way
(GPT-2's `add_prefix_space`, Llama's first blank). Only one over `DOCUMENT_CHARACTERS` is cut, and
each part is then encoded behind the end of the part before, whose tokens are dropped.

A block is a file of bounded size, so memory and scratch space are bounded whatever the size of the
corpus; the parent never holds a block, because its memory counts again in every process it forks.
Rows keep their order, so the tokens do not depend on the number of processes.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tokenizers import Tokenizer

from pipeline.corpus.text_store import Kind, TextStore, read_batches
from pipeline.corpus.tokenisers import Tokeniser, is_panic
from pipeline.errors import CorpusError

BLOCK_BYTES = 8 * 2**20
DOCUMENTS_PER_CALL = 64
DOCUMENT_CHARACTERS = 2**20
# Far longer than a word or a merge, so tokens next to a cut are those of the whole document.
CONTEXT_CHARACTERS = 2**10
REPORT_SECONDS = 10


def encode(
    store: TextStore, tokeniser: Tokeniser, dtype: str, work: Path, num_proc: int
) -> Iterator[npt.NDArray[np.unsignedinteger]]:
    """The tokens of every document, with a separator after each, in arrays of any length."""
    done_bytes, reported = 0, time.monotonic()
    block = work / "block.arrow"
    documents = whole_documents(store.pieces())
    # The work is spread over processes already; `environment.settings` puts the variable back.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    while num_bytes := _write_block(documents, block):
        yield from _encode_block(block, tokeniser, dtype, work, num_proc)
        done_bytes += num_bytes
        if time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            print(f"tokens: {done_bytes / 1e6:.0f} MB of text encoded", file=sys.stderr)


def whole_documents(pieces: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int, bool]]:
    """Text, number of its characters that only give context, and whether its document ends.

    A text is a document, or a part of one that is longer than DOCUMENT_CHARACTERS.
    """
    text, skip = "", 0
    for piece, kind in pieces:
        if len(text) > skip and len(text) - skip + len(piece) > DOCUMENT_CHARACTERS:
            yield text, skip, False
            text = text[-CONTEXT_CHARACTERS:]
            skip = len(text)
        text += piece
        if kind == Kind.LAST_PIECE:
            yield text, skip, True
            text, skip = "", 0


def _write_block(documents: Iterator[tuple[str, int, bool]], block: Path) -> int:
    """Move documents into the file `block` until it holds BLOCK_BYTES; returns its bytes."""
    schema = pa.schema([("text", pa.string()), ("skip", pa.int32()), ("ends", pa.bool_())])

    def next_rows() -> Iterator[tuple[str, int, bool]]:
        """The next few short documents, or one long one."""
        num_characters = 0
        for row in itertools.islice(documents, DOCUMENTS_PER_CALL):
            yield row
            num_characters += len(row[0])
            if num_characters >= DOCUMENT_CHARACTERS:
                return

    num_bytes = 0
    with pa.OSFile(str(block), "wb") as raw, pa.ipc.new_stream(raw, schema) as stream:
        while num_bytes < BLOCK_BYTES and (rows := list(next_rows())):
            columns = zip(zip(*rows, strict=True), schema, strict=True)
            arrays = [pa.array(values, field.type) for values, field in columns]
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
            stream.write_batch(batch)
            num_bytes += batch.nbytes
    return num_bytes


def _encode_block(
    block: Path, tokeniser: Tokeniser, dtype: str, work: Path, num_proc: int
) -> Iterator[npt.NDArray[np.unsignedinteger]]:
    import datasets

    rows = datasets.Dataset.from_file(str(block))
    encoded = rows.map(
        _encode_documents,
        batched=True,
        batch_size=DOCUMENTS_PER_CALL,
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
        writer_batch_size=DOCUMENTS_PER_CALL,
    )
    files = [Path(file["filename"]) for file in encoded.cache_files]
    del rows, encoded
    for file in files:
        for batch in read_batches(file):
            yield batch.column("ids").flatten().to_numpy()
        file.unlink()


def _encode_documents(
    rows: dict[str, list[Any]], tokenizer: Tokenizer, separator_id: int, dtype: str
) -> dict[str, list[npt.NDArray[np.unsignedinteger]]]:
    # A document that spells the separator out must not end there.
    tokenizer.encode_special_tokens = True
    try:
        ids = [
            token_ids(tokenizer, text, skip)
            for text, skip in zip(rows["text"], rows["skip"], strict=True)
        ]
    except BaseException as error:  # `tokenizers` raises the bare class for what it cannot encode
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        raise CorpusError(
            f"the tokeniser cannot encode the corpus ({' '.join(str(error).split())[:200]}); "
            "use another tokeniser or one with an unknown token"
        ) from None
    return {
        "ids": [
            np.array(tokens + [separator_id] * ends, dtype=np.dtype(dtype))
            for tokens, ends in zip(ids, rows["ends"], strict=True)
        ]
    }


def token_ids(tokenizer: Tokenizer, text: str, skip: int) -> list[int]:
    """The tokens of `text` from character `skip` on; what stands before only gives context."""
    if not skip:
        return list(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)
    encoding = tokenizer.encode(text, add_special_tokens=False)
    if any(start < skip < stop for start, stop in encoding.offsets):
        # The cut fell inside of a token, in a text without a place to cut: no context helps.
        return token_ids(tokenizer, text[skip:], 0)
    spans = zip(encoding.ids, encoding.offsets, strict=True)
    return [token for token, (start, _) in spans if start >= skip]
