"""Read a JSON array of strings without loading the file: memory is one chunk plus one string."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from pipeline.corpus.text_file import open_text
from pipeline.errors import CorpusError

CHUNK_CHARACTERS = 2**18
# A value cut off by the end of a chunk fails within its last escape (`\uXXXX`); an error further
# from the end than this is in the file itself.
_LONGEST_ESCAPE = 12
_SPACE = " \t\n\r"


def read_strings(path: Path) -> Iterator[str]:
    """Yield the strings of the array in `path`, in order.

    Raises CorpusError, naming the file and the document, where it is not one array of strings.
    """
    with open_text(path) as stream:
        yield from _Reader(path, stream).strings()


class _Reader:
    """A window over the file's text: what is consumed is dropped, what is missing is read."""

    def __init__(self, path: Path, stream: TextIO) -> None:
        self._path, self._stream = path, stream
        self._text, self._at, self._ended = "", 0, False
        self._num_strings = 0
        self._decoder = json.JSONDecoder()

    def strings(self) -> Iterator[str]:
        """The strings up to the closing bracket, which only white space may follow."""
        if self._next() != "[":
            raise self._fault("it does not begin with '['")
        self._at += 1
        if self._next() == "]":
            self._at += 1
        else:
            while True:
                yield self._string()
                self._num_strings += 1
                mark = self._next()
                self._at += 1
                if mark == "]":
                    break
                if mark != ",":
                    raise self._fault(f"{mark or 'the end of the file'!r} follows a string")
        if self._next():
            raise self._fault("text follows the closing ']'")

    def _next(self) -> str:
        """The next character that is not white space, without consuming it; '' at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
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
        self._ended = not chunk
        return bool(chunk)

    def _string(self) -> str:
        if self._next() != '"':
            raise self._not_a_string()
        while True:
            try:
                value, self._at = self._decoder.raw_decode(self._text, self._at)
                return str(value)
            except json.JSONDecodeError as error:
                cut_off = error.msg.startswith("Unterminated") or (
                    error.pos > len(self._text) - _LONGEST_ESCAPE
                )
                if not cut_off or not self._read():
                    raise self._fault(error.msg) from None

    def _not_a_string(self) -> CorpusError:
        while len(self._text) - self._at < 60 and self._read():
            pass
        value = self._text[self._at : self._at + 60].split("\n")[0]
        return CorpusError(
            f"{self._path}: document {self._num_strings} is {value!r}; expected a string "
            '(the file is one JSON array of strings), put it between "quotes" or remove it'
        )

    def _fault(self, what: str) -> CorpusError:
        return CorpusError(
            f"{self._path}: not a JSON array of strings at document {self._num_strings}: {what}; "
            'expected ["first document", "second document", ...], correct the file'
        )
