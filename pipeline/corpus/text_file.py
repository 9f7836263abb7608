"""Open text files of a corpus; one that is missing, not regular or not UTF-8 is a CorpusError."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pipeline.errors import CorpusError
from pipeline.files import open_regular


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """The file as UTF-8 with every line end read as a line feed and a byte order mark dropped."""
    try:
        with open_regular(path) as content:
            # UTF-8 allows NUL, text does not have it: the sign by which git knows a binary file.
            if b"\0" in content.peek():
                raise CorpusError(
                    f"{path}: a NUL byte near its start means binary; expected UTF-8 text, "
                    "convert the file"
                )
            with io.TextIOWrapper(content, encoding="utf-8-sig") as stream:
                yield stream
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise CorpusError(
            f"{path}: byte 0x{byte:02x} is not UTF-8 ({error.reason}); "
            "expected UTF-8 text, convert the file"
        ) from None
    except OSError as error:
        raise CorpusError(
            f"{path}: {error.strerror or error}; expected a readable file, correct corpus.paths, "
            "which are relative to the study file"
        ) from None
