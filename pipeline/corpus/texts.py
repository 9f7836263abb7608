"""Files of text: opened, read as a JSON array of strings, and cut into pieces of bounded size.

So memory does not grow with a file or a document. The pieces depend on the text alone, never on the
chunks in which it arrived.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pipeline.errors import CorpusError
from pipeline.files import open_regular

PIECE_CHARACTERS = 2**14
CHUNK_CHARACTERS = 2**18
# A value cut off by the end of a chunk fails within its last escape (`\uXXXX`); an error further
# from the end than this is in the file itself.
_LONGEST_ESCAPE = 12


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


def read_strings(path: Path) -> Iterator[str]:
    """The strings of the JSON array in `path`, in order; memory is one chunk plus one string.

    Raises CorpusError, naming the file and the document, where it is not one array of strings.
    """
    with open_text(path) as stream:
        yield from _Reader(path, stream).strings()


class _Reader:
    """A window over the file's text: what is consumed is dropped, what is missing is read."""

    def __init__(self, path: Path, stream: TextIO) -> None:
        self._path, self._stream = path, stream
        self._text, self._at, self._num_strings = "", 0, 0
        self._decode = json.JSONDecoder().raw_decode

    def strings(self) -> Iterator[str]:
        """The strings up to the closing bracket, which only white space may follow."""
        if self._next() != "[":
            raise self._fault("it does not begin with '['")
        self._at += 1
        mark = self._next() if self._next() == "]" else ","
        while mark == ",":
            yield self._string()
            self._num_strings += 1
            mark = self._next()
            self._at += mark == ","
        if mark != "]":
            raise self._fault(f"{mark or 'the end of the file'!r} follows a string")
        self._at += 1
        if self._next():
            raise self._fault("text follows the closing ']'")

    def _next(self) -> str:
        """The next character that is not white space, without consuming it; '' at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\n\r":
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read():
                return ""

    def _read(self) -> bool:
        """Add a chunk; at least as much as is pending, so that a long string costs linear time."""
        pending = self._text[self._at :]
        chunk = self._stream.read(max(CHUNK_CHARACTERS, len(pending)))
        self._text, self._at = pending + chunk, 0
        return bool(chunk)

    def _string(self) -> str:
        if self._next() != '"':
            while len(self._text) - self._at < 60 and self._read():
                pass
            value = self._text[self._at : self._at + 60].split("\n")[0]
            raise CorpusError(
                f"{self._path}: document {self._num_strings} is {value!r}; expected a string "
                '(the file is one JSON array of strings), put it between "quotes" or remove it'
            )
        while True:
            try:
                value, self._at = self._decode(self._text, self._at)
                return str(value)
            except json.JSONDecodeError as error:
                cut_off = error.msg.startswith("Unterminated") or (
                    error.pos > len(self._text) - _LONGEST_ESCAPE
                )
                if not cut_off or not self._read():
                    raise self._fault(error.msg) from None

    def _fault(self, what: str) -> CorpusError:
        return CorpusError(
            f"{self._path}: not a JSON array of strings at document {self._num_strings}: {what}; "
            'expected ["first document", "second document", ...], correct the file'
        )


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
