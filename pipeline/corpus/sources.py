"""Sources of text: one small class per `corpus.source` of a study.

A source lists units (files, mostly) that may be read in parallel, and reads one unit as pieces of
documents in a fixed order; see `pipeline.corpus.texts`. Sources are plain data, so they travel to
worker processes.
"""

from __future__ import annotations

import itertools
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Protocol, TextIO

from pipeline.corpus import python_docs
from pipeline.corpus.environment import check_hub
from pipeline.corpus.texts import PIECE_CHARACTERS, open_text, read_strings, split_document
from pipeline.errors import CorpusError

Piece = tuple[str, bool]


class Source(Protocol):
    """Text in units; `is_local` says that nothing is fetched over the network."""

    @property
    def is_local(self) -> bool:
        """True where every byte comes from this machine."""

    def units(self) -> list[str]:
        """Names of what can be read independently, in the order of the corpus."""

    def read(self, unit: str) -> Iterator[Piece]:
        """`(piece, ends_document)` in order; raises CorpusError on anything that is not text."""

    def describe(self) -> dict[str, Any]:
        """The source as the manifest has it: no absolute path, no time, no host."""


@dataclass(frozen=True)
class PythonDocs:
    """Help topics and docstrings of the running CPython."""

    is_local = True

    def units(self) -> list[str]:
        """The help topics and the modules of the standard library."""
        return python_docs.units(python_docs.standard_library())

    def read(self, unit: str) -> Iterator[Piece]:
        """A document per topic or module."""
        for text in python_docs.documents(python_docs.standard_library(), unit):
            yield from split_document([text])

    def describe(self) -> dict[str, Any]:
        """The version of CPython, on which the text depends."""
        return {"source": "python-docs", "python": platform.python_version()}


@dataclass(frozen=True)
class Files:
    """Files of this machine."""

    paths: tuple[str, ...]
    source: ClassVar[str]
    is_local = True

    def units(self) -> list[str]:
        """The files as listed."""
        return list(self.paths)

    def describe(self) -> dict[str, Any]:
        """The names of the files, without their folders."""
        return {"source": self.source, "files": [Path(path).name for path in self.paths]}


@dataclass(frozen=True)
class JsonFiles(Files):
    """Files that each hold one JSON array of strings; a string is a document."""

    source = "json"

    def read(self, unit: str) -> Iterator[Piece]:
        """The strings of one file."""
        for text in read_strings(Path(unit)):
            yield from split_document([text])


@dataclass(frozen=True)
class TextFiles(Files):
    """Text files; a document is a file, or a block between blank lines."""

    document: str
    source = "text"

    def read(self, unit: str) -> Iterator[Piece]:
        """The documents of one file, which is never in memory as a whole."""
        with open_text(Path(unit)) as stream:
            if self.document == "file":
                yield from split_document(iter(lambda: stream.read(PIECE_CHARACTERS), ""))
                return
            for is_blank, parts in itertools.groupby(_line_parts(stream), key=itemgetter(0)):
                if not is_blank:
                    block = (text for _, text in parts)
                    yield from split_document(_without_last_line_end(block))

    def describe(self) -> dict[str, Any]:
        """Those of all files, and what a document is."""
        return super().describe() | {"document": self.document}


@dataclass(frozen=True)
class Hub:
    """A data set of the Hugging Face hub (or a local folder in its layout), streamed."""

    name: str
    config: str | None
    split: str
    revision: str
    column: str
    max_documents: int | None

    @property
    def is_local(self) -> bool:
        """True for a folder on this machine."""
        return Path(self.name).is_dir()

    def units(self) -> list[str]:
        """One: a stream has one order, and the network is the limit."""
        return [self.name]

    def read(self, unit: str) -> Iterator[Piece]:
        """The rows' `column`, at most `max_documents` of them."""
        import datasets

        if not self.is_local:
            check_hub()
        try:
            rows: Iterable[Mapping[str, Any]] = datasets.load_dataset(
                unit, self.config, split=self.split, revision=self.revision, streaming=True
            )
            for number, row in enumerate(itertools.islice(rows, self.max_documents)):
                yield from split_document([self._text(row, number)])
        except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise CorpusError(
                f"hub data set {unit!r} at revision {self.revision}: {reason}; expected "
                "a data set that can be read, check corpus.name, config, split and the network"
            ) from None

    def _text(self, row: Mapping[str, Any], number: int) -> str:
        if self.column not in row:
            raise CorpusError(
                f"hub data set {self.name!r} has no column {self.column!r}; "
                f"set corpus.column to one of {', '.join(sorted(row))}"
            )
        text = row[self.column]
        if not isinstance(text, str):
            raise CorpusError(
                f"hub data set {self.name!r}: document {number} in column {self.column!r} is "
                f"{repr(text)[:60]}; expected a string, set corpus.column to a text column"
            )
        return text

    def describe(self) -> dict[str, Any]:
        """Everything that pins the rows; a local folder is named without its path."""
        name = Path(self.name).name if self.is_local else self.name
        return {"source": "hub", **vars(self), "name": name}


def source_of(corpus: Mapping[str, Any]) -> Source:
    """The source that a study's `corpus` section, which its schema has checked, names."""
    match corpus["source"]:
        case "python-docs":
            return PythonDocs()
        case "json":
            return JsonFiles(_each_once(corpus["paths"]))
        case "text":
            return TextFiles(_each_once(corpus["paths"]), corpus["document"])
    optional = {"config": None, "max_documents": None}
    return Hub(**optional | {key: value for key, value in corpus.items() if key != "source"})


def check_files(corpus: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> None:
    """Open every file that two sections of a study name; raises CorpusError, reads nothing."""
    source_of(corpus)
    if tokenizer["kind"] == "pretrained":
        name, is_folder = tokenizer["name"], Path(tokenizer["name"]).is_dir()
        of_the_hub = tokenizer["revision"] is not None and not is_folder
        if not of_the_hub and not Path(name, "tokenizer.json").is_file():
            where = "has no tokenizer.json" if is_folder else "is no folder here"
            raise CorpusError(
                f"tokenizer.name {name!r} {where}; give a folder that holds tokenizer.json, "
                "relative to the study file, or a name of the hub with its tokenizer.revision"
            )
    for path in corpus.get("paths", []):
        with open_text(Path(path)):
            pass


def _each_once(paths: Iterable[str]) -> tuple[str, ...]:
    """The paths; raises CorpusError where two lead to the same file, whose text would count twice.

    Two names of one file (`a.txt`, `./a.txt`, a symlink) are the same path.
    """
    known: dict[str, str] = {}
    for path in paths:
        # No file has a NUL in its name; reading says so.
        place = path if "\0" in path else os.path.realpath(path)
        if place in known:
            raise CorpusError(
                f"corpus.paths: {path} stands twice, also as {known[place]}; leave one out"
            )
        known[place] = path
    return tuple(known.values())


def _line_parts(stream: TextIO) -> Iterator[tuple[bool, str]]:
    """A flag for a blank line, and the text, of each part of a line of at most a piece.

    White space at the start of a line is held back until a visible character or the line's end.
    """
    held, is_visible = "", False
    while part := stream.readline(PIECE_CHARACTERS):
        held += part
        is_visible = is_visible or not part.isspace()
        is_end = part.endswith("\n")
        if is_visible or is_end:
            yield not is_visible, held
            held = ""
        is_visible = is_visible and not is_end


def _without_last_line_end(lines: Iterable[str]) -> Iterator[str]:
    """The parts of a block; the line end before the blank line belongs to neither document."""
    held = ""
    for line in lines:
        if held:
            yield held
        held = line
    yield held.removesuffix("\n")
