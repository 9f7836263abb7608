"""Encode the text store, block by block, each block by all threads of the tokeniser's library.

A document is encoded whole, because a tokeniser may treat the start of a text in its own way
(GPT-2's `add_prefix_space`, Llama's first blank). Only one over `DOCUMENT_CHARACTERS` is cut, and
each part is encoded behind the end of the part before, whose tokens are dropped. So tokens depend
on neither blocks nor threads, and memory is bounded.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from pipeline.corpus.text_store import TextStore
from pipeline.corpus.tokenisers import Tokeniser, reason_of
from pipeline.errors import CorpusError

BLOCK_CHARACTERS = 2**20
"""Of a block for each thread: the library keeps about 120 bytes for a token until it is read."""
DOCUMENT_CHARACTERS = 2**20
CONTEXT_CHARACTERS = 2**10
"""Far longer than a word or a merge, so tokens next to a cut are those of the whole document."""
REPORT_SECONDS = 10


def encode(
    store: TextStore, tokeniser: Tokeniser, dtype: str, num_threads: int
) -> Iterator[npt.NDArray[np.unsignedinteger]]:
    """The tokens of every document, with a separator after each, in arrays of any length."""
    done, reported, separator = 0, time.monotonic(), tokeniser.separator_id
    # A document that spells the separator out must not end there.
    tokeniser.tokenizer.encode_special_tokens = True
    for block in blocks(whole_documents(store.pieces()), num_threads * BLOCK_CHARACTERS):
        try:
            ids = [*token_ids(tokeniser.tokenizer, [(text, skip) for text, skip, _ in block])]
        except BaseException as error:  # `tokenizers` raises the bare class for what it cannot do
            raise CorpusError(
                f"the tokeniser cannot encode the corpus ({reason_of(error)}); use another "
                "tokeniser or one with an unknown token"
            ) from None
        for tokens, (text, skip, ends) in zip(ids, block, strict=True):
            done += len(text) - skip
            yield np.array(tokens + [separator] * ends, dtype=np.dtype(dtype))
        if time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            print(f"tokens: {done / 1e6:.0f} million characters encoded", file=sys.stderr)


def whole_documents(pieces: Iterable[tuple[str, bool]]) -> Iterator[tuple[str, int, bool]]:
    """Text, number of its characters that only give context, and whether its document ends.

    A text is a document, or a part of one that is longer than DOCUMENT_CHARACTERS.
    """
    text, skip = "", 0
    for piece, ends in pieces:
        if len(text) > skip and len(text) - skip + len(piece) > DOCUMENT_CHARACTERS:
            yield text, skip, False
            text = text[-CONTEXT_CHARACTERS:]
            skip = len(text)
        text += piece
        if ends:
            yield text, skip, True
            text, skip = "", 0


def blocks(
    documents: Iterable[tuple[str, int, bool]], num_characters: int
) -> Iterator[list[tuple[str, int, bool]]]:
    """Consecutive documents of so many characters together, or one longer one."""
    block, size = list[tuple[str, int, bool]](), 0
    for row in documents:
        block.append(row)
        size += len(row[0])
        if size >= num_characters:
            yield block
            block, size = [], 0
    if block:
        yield block


def token_ids(tokenizer: Tokenizer, rows: Sequence[tuple[str, int]]) -> Iterator[list[int]]:
    """The tokens of each text from its character `skip` on; what stands before gives context."""
    whole = iter(
        tokenizer.encode_batch_fast([t for t, skip in rows if not skip], add_special_tokens=False)
    )
    parts = iter(tokenizer.encode_batch([t for t, skip in rows if skip], add_special_tokens=False))
    for text, skip in rows:
        encoding = next(parts if skip else whole)
        if not skip:
            yield encoding.ids
        elif any(start < skip < stop for start, stop in encoding.offsets):
            # The cut fell inside of a token, in a text without a place to cut: no context helps.
            yield from token_ids(tokenizer, [(text[skip:], 0)])
        else:
            spans = zip(encoding.ids, encoding.offsets, strict=True)
            yield [token for token, (start, _) in spans if start >= skip]
