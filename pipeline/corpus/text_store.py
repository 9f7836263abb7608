"""The corpus as one Arrow file on disk, written once and read as a stream, pass after pass.

A row is a piece of a document. The file is read, not memory-mapped: resident memory then stays that
of one record batch whatever the size of the corpus.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pipeline.corpus.sources import Source
from pipeline.errors import CorpusError

ROWS_PER_BATCH = 256
SCHEMA = pa.schema([("text", pa.string()), ("ends", pa.bool_())])
"""A piece, and whether its document ends with it."""


@dataclass(frozen=True)
class TextStore:
    """A corpus in a file, in its order, with counts over all of it.

    The hash covers every document's text and where it ends.
    """

    file: Path
    num_documents: int
    num_characters: int
    text_sha256: str

    def pieces(self) -> Iterator[tuple[str, bool]]:
        """Text of each piece, and whether its document ends; a record batch is in memory."""
        with pa.OSFile(str(self.file)) as raw, pa.ipc.open_stream(raw) as stream:
            for batch in stream:
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def texts(self, every: int = 1) -> Iterator[str]:
        """The text of each piece whose number is a multiple of `every`."""
        return (text for text, _ in itertools.islice(self.pieces(), 0, None, every))


def store_text(source: Source, file: Path) -> TextStore:
    """Read `source` once into `file`; raises CorpusError for what is no text, or none at all."""
    num_documents = num_characters = 0
    digest = hashlib.sha256()

    def rows() -> Iterator[tuple[str, bool]]:
        nonlocal num_documents, num_characters
        for unit in source.units():
            is_empty = True
            try:
                for text, ends in source.read(unit):
                    # Of UTF-8, in which the byte after a document never stands.
                    digest.update(text.encode() + b"\xff" * ends)
                    num_characters += len(text)
                    num_documents += ends
                    is_empty = False
                    yield text, ends
            except UnicodeEncodeError as error:
                raise CorpusError(
                    f"{unit}: a document holds the lone surrogate {error.object[error.start]!a}; "
                    "expected characters that UTF-8 can encode, remove it"
                ) from None
            except (OSError, SyntaxError, ValueError) as error:  # of a damaged file of CPython
                raise CorpusError(
                    f"reading the corpus failed ({type(error).__name__}: "
                    f"{' '.join(str(error).split())[:200]}); expected readable text"
                ) from error
            # It counts as a piece: of a large corpus a tokeniser learns from every n-th one, and
            # has learnt so since earlier versions, whose readers needed a row of each unit.
            if is_empty:
                yield "", False

    pending = rows()
    with pa.OSFile(str(file), "wb") as raw, pa.ipc.new_stream(raw, SCHEMA) as stream:
        while some := list(itertools.islice(pending, ROWS_PER_BATCH)):
            columns = [*zip(*some, strict=True)]
            stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    if num_documents == 0:
        raise CorpusError(
            "the corpus holds 0 documents; expected at least one with a visible character, "
            "correct the corpus section of the study"
        )
    return TextStore(file, num_documents, num_characters, digest.hexdigest())
