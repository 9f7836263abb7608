"""Open text files of a corpus; a file that is missing or not UTF-8 is a CorpusError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pipeline.errors import CorpusError


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """The file as UTF-8 with every line end read as a line feed and a byte order mark dropped."""
    try:
        with path.open(encoding="utf-8-sig") as stream:
            yield stream
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise CorpusError(
            f"{path}: byte 0x{byte:02x} is not UTF-8 ({error.reason}); "
            "expected UTF-8 text, convert the file"
        ) from None
    except OSError as error:
        raise CorpusError(
            f"{path}: {error.strerror or error}; expected a readable file, correct corpus.paths"
        ) from None
