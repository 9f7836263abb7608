"""Files of text: opened, read as a JSON array of strings, and cut into pieces of bounded size.

So memory does not grow with a file or a document. Pieces do not depend on the chunks that are read.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pipeline.errors import CorpusError
from pipeline.files import open_regular

PIECE_CHARACTERS = 2**14
CHUNK_CHARACTERS = 2**18


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


_ITEM = re.compile(r'\s*([\[,])\s*("[^"\\]*+(?:\\.[^"\\]*+)*+")', re.DOTALL)
"""A string of an array with the mark before it."""

_WRONG = re.compile(r'\s*(?:[^\s\[,\]]|[\[,]\s*[^\s"\]])')
"""Text that begins neither such a string nor the end of the array: more of it changes nothing."""


def read_strings(path: Path) -> Iterator[str]:
    """The strings of the JSON array in `path`, in order; memory is one chunk plus one string.

    Raises CorpusError, naming the file and the document, where it is not one array of strings.
    """
    with open_text(path) as stream:
        text, at, number = "", 0, 0
        while True:
            item = _ITEM.match(text, at)
            if item is None and not _WRONG.match(text, at):
                # At least as much as is pending, so that a long string costs linear time.
                if more := stream.read(max(CHUNK_CHARACTERS, len(text) - at)):
                    text, at = text[at:] + more, 0
                    continue
                if "".join(text[at:].split()) == ("]" if number else "[]"):
                    return
            try:
                if item is None or item[1] != ("," if number else "["):
                    begins = text[at : at + 60].strip().split("\n")[0]
                    raise ValueError(repr(begins or "the end of the file"))
                value = str(json.loads(item[2]))
            except ValueError as error:
                raise CorpusError(
                    f"{path}: not a JSON array of strings at document {number}: {error}; expected "
                    '["first document", "second document", ...], correct the file'
                ) from None
            yield value
            at, number = item.end(), number + 1


def split_document(
    chunks: Iterable[str], limit: int = PIECE_CHARACTERS
) -> Iterator[tuple[str, bool]]:
    """Yield `(piece, is_last)` of one document that arrives as `chunks` of any size.

    Every piece but the last has 1 to `limit` characters. A document without a visible character
    yields nothing.
    """
    rest, is_visible = "", False
    for chunk in chunks:
        text, start = rest + chunk, 0
        # White space alone waits: however much there is, it may turn out to be no document.
        is_visible = is_visible or bool(chunk.strip())
        while is_visible and len(text) - start > limit:
            stop = _cut(text, start, limit)
            yield text[start:stop], False
            start = stop
        rest = text[start:]
    if is_visible:
        yield rest, True


def _cut(text: str, start: int, limit: int) -> int:
    """The best place to end the piece that begins at `start`; needs `limit` + 1 characters.

    It is where a GPT-2 style pre-tokeniser separates words anyway: after a line end, or before a
    space, that stands between two visible characters.
    """
    stop = start + limit
    for mark in "\n ":
        at = text.rfind(mark, start + 1, stop)
        while at >= 0:
            if not text[at - 1].isspace() and not text[at + 1].isspace():
                return at + (mark == "\n")
            at = text.rfind(mark, start + 1, at)
    return stop
