"""The corpus as Arrow files on disk, written by `datasets` in parallel and read as a stream.

A row is a piece of a document. The files are read, not memory-mapped: resident memory then stays
that of one record batch whatever the size of the corpus.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.corpus.sources import Source
from pipeline.errors import CorpusError

ROWS_PER_BATCH = 256


class Kind(IntEnum):
    """Content of a row. A fault's text is the message of the error that ended its unit."""

    PIECE = 0
    LAST_PIECE = 1
    FAULT = 2


@dataclass(frozen=True)
class Survey:
    """Counts over the corpus; the hash covers every document's text and where it ends."""

    num_documents: int
    num_characters: int
    text_sha256: str


@dataclass(frozen=True)
class TextStore:
    """Arrow files of rows `{text, kind}` in the order of the corpus."""

    files: tuple[Path, ...]

    def pieces(self) -> Iterator[tuple[str, int]]:
        """Text and `Kind` of each row; a record batch is in memory at a time."""
        for file in self.files:
            for batch in read_batches(file):
                columns = (batch.column(name).to_pylist() for name in ("text", "kind"))
                yield from zip(*columns, strict=True)

    def texts(self, every: int = 1) -> Iterator[str]:
        """The text of each piece whose number is a multiple of `every`."""
        return (text for text, _ in itertools.islice(self.pieces(), 0, None, every))

    def survey(self) -> Survey:
        """Count and hash everything; raises CorpusError on a fault row and on an empty corpus."""
        num_documents = num_characters = 0
        digest = hashlib.sha256()
        for text, kind in self.pieces():
            if kind == Kind.FAULT:
                raise CorpusError(text)
            num_characters += len(text)
            digest.update(text.encode())
            if kind == Kind.LAST_PIECE:
                num_documents += 1
                digest.update(b"\xff")  # a byte that UTF-8 never uses
        if num_documents == 0:
            raise CorpusError(
                "the corpus holds 0 documents; expected at least one with a visible character, "
                "correct the corpus section of the study"
            )
        return Survey(num_documents, num_characters, digest.hexdigest())


def read_batches(file: Path) -> Iterator[pa.RecordBatch]:
    """The record batches of an Arrow stream file, through ordinary reads."""
    with pa.OSFile(str(file)) as raw, pa.ipc.open_stream(raw) as stream:
        yield from stream


def store_text(source: Source, folder: Path, num_proc: int) -> TextStore:
    """Read `source` with `num_proc` processes into Arrow files below `folder`."""
    import datasets

    units = source.units()
    features = datasets.Features({"text": datasets.Value("string"), "kind": datasets.Value("int8")})
    try:
        rows = datasets.Dataset.from_generator(
            _rows,
            features=features,
            cache_dir=str(folder),
            gen_kwargs={"units": units, "source": source},
            num_proc=min(num_proc, len(units)) if num_proc > 1 else None,
            fingerprint="text",
            writer_batch_size=ROWS_PER_BATCH,
        )
    except datasets.exceptions.DatasetsError as error:
        cause = error.__cause__ or error
        raise CorpusError(
            f"reading the corpus failed ({type(cause).__name__}: "
            f"{' '.join(str(cause).split())[:200]}); expected readable text and free disk space"
        ) from error
    return TextStore(tuple(Path(file["filename"]) for file in rows.cache_files))


def _rows(units: list[str], source: Source) -> Iterator[dict[str, Any]]:
    """Rows of some units. A fault travels as a row: workers hand on exceptions without a cause."""
    for unit in units:
        is_empty = True
        try:
            for text, ends in source.read(unit):
                text.encode()
                is_empty = False
                yield {"text": text, "kind": int(Kind.LAST_PIECE if ends else Kind.PIECE)}
        except CorpusError as error:
            yield {"text": str(error), "kind": int(Kind.FAULT)}
        except UnicodeEncodeError as error:
            reason = (
                f"{unit}: a document holds the lone surrogate {error.object[error.start]!a}; "
                + ("expected characters that UTF-8 can encode, remove it")
            )
            yield {"text": reason, "kind": int(Kind.FAULT)}
        else:
            if is_empty:  # `datasets` refuses to open a split without rows
                yield {"text": "", "kind": int(Kind.PIECE)}
