"""Sources of text: `source_of(section)` for the `corpus` section of a study.

A source lists units (files, mostly), and reads one unit as pieces of documents in a fixed order.
Memory does not grow with a file or a document, and pieces do not depend on the chunks in which
these are read.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, TextIO

from pipeline.corpus import python_docs
from pipeline.errors import CorpusError, refuse
from pipeline.files import open_regular
from pipeline.study.model_files import hub_fault
from pipeline.text import few

PIECE_CHARACTERS = 2**14
CHUNK_CHARACTERS = 2**18

Piece = tuple[str, bool]

_HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")


@dataclass(frozen=True)
class Source:
    """Text by a study's `corpus` section, which its schema has checked.

    `python-docs` are the help topics and docstrings of the running CPython. A file of `json` holds
    an array of strings, each a document; in one of `text` a document is the file, or a block
    between blank lines. `hub` is a data set of the Hugging Face hub, or a folder in its layout.
    """

    section: Mapping[str, Any]

    @property
    def is_local(self) -> bool:
        """True where every byte comes from this machine."""
        return self.section["source"] != "hub" or Path(self.section["name"]).is_dir()

    def units(self) -> list[str]:
        """Names of what is read one after the other, in the order of the corpus."""
        match self.section["source"]:
            case "python-docs":
                return python_docs.units(python_docs.standard_library())
            case "hub":  # a stream has one order, and the network is the limit
                return [self.section["name"]]
        return list(self.section["paths"])

    def read(self, unit: str) -> Iterator[Piece]:
        """`(piece, ends_document)` in order; raises CorpusError on anything that is not text."""
        match self.section["source"]:
            case "python-docs":
                texts = python_docs.documents(python_docs.standard_library(), unit)
            case "json":
                texts = read_strings(Path(unit))
            case "hub":
                texts = self._rows()
            case _:  # of text, which is never in memory as a whole
                with open_text(Path(unit)) as stream:
                    if self.section["document"] == "file":
                        yield from split_document(iter(lambda: stream.read(PIECE_CHARACTERS), ""))
                        return
                    for is_blank, parts in itertools.groupby(_line_parts(stream), itemgetter(0)):
                        if not is_blank:
                            yield from split_document(text for _, text in parts)
                return
        for text in texts:
            yield from split_document([text])

    def describe(self) -> dict[str, Any]:
        """Everything that pins the text, for the manifest: no absolute path, no time, no host."""
        match self.section["source"]:
            case "python-docs":
                return {"source": "python-docs", "python": platform.python_version()}
            case "hub":
                name = Path(self.section["name"]).name if self.is_local else self.section["name"]
                return {"config": None, "max_documents": None, **self.section, "name": name}
        files = [Path(path).name for path in self.section["paths"]]
        return {k: v for k, v in self.section.items() if k != "paths"} | {"files": files}

    def _rows(self) -> Iterator[str]:
        """Texts of the `column` of a data set's rows, at most `max_documents` of them, streamed."""
        import datasets

        datasets.disable_progress_bars()
        datasets.logging.set_verbosity_error()
        asked = self.section
        name, column = asked["name"], asked["column"]
        if not self.is_local:
            check_hub()
        try:
            rows: Iterable[Mapping[str, Any]] = datasets.load_dataset(
                name, asked.get("config"), split=asked["split"], revision=asked["revision"],
                streaming=True,
            )  # fmt: skip
            for number, row in enumerate(itertools.islice(rows, asked.get("max_documents"))):
                if column not in row:
                    raise CorpusError(
                        f"hub data set {name!r} has no column {column!r}; set corpus.column to one "
                        f"of {', '.join(sorted(row))}"
                    )
                if not isinstance(row[column], str):
                    raise CorpusError(
                        f"hub data set {name!r}: document {number} in column {column!r} is "
                        f"{repr(row[column])[:60]}; expected a string, set corpus.column to a text "
                        "column"
                    )
                yield row[column]
        except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise CorpusError(
                f"hub data set {name!r} at revision {asked['revision']}: {reason}; expected a data "
                "set that can be read, check corpus.name, config, split and the network"
            ) from None


def source_of(corpus: Mapping[str, Any]) -> Source:
    """The source of a section; raises CorpusError where two paths lead to one file.

    Its text would count twice. Names of one file are `a.txt`, `./a.txt` and a symlink to it.
    """
    known: dict[str, str] = {}
    for path in corpus.get("paths", []):
        # No file has a NUL in its name; reading says so.
        place = path if "\0" in path else os.path.realpath(path)
        if place in known:
            raise CorpusError(
                f"corpus.paths: {path} stands twice, also as {known[place]}; leave one out"
            )
        known[place] = path
    return Source(corpus)


def check_files(spec: Mapping[str, Any]) -> None:
    """Begin to read every file that corpus and tokeniser name, and check names of the hub.

    `spec` is that of `pipeline.study.expansion.tokens_spec`.
    """
    corpus, tokenizer = spec["corpus"], spec["tokenizer"]
    source = source_of(corpus)
    if corpus["source"] == "hub":
        _check_name(corpus["name"], "corpus.name", "data set")
    if tokenizer["kind"] == "pretrained":
        name, is_folder = tokenizer["name"], Path(tokenizer["name"]).is_dir()
        if tokenizer["revision"] is not None and not is_folder:
            _check_name(name, "tokenizer.name", "tokeniser")
        elif not Path(name, "tokenizer.json").is_file():
            where = "has no tokenizer.json" if is_folder else "is no folder here"
            raise CorpusError(
                f"tokenizer.name {name!r} {where}; give a folder that holds tokenizer.json, "
                "relative to the study file, or a name of the hub with its tokenizer.revision"
            )
    paths = corpus.get("paths", [])
    for path in paths:
        next(source.read(path), None)
    size = sum(Path(path).stat().st_size for path in paths)
    # A token has a byte or more, but for the separator at the end of a file; what a tokeniser that
    # exists makes of a character is its own.
    most = math.inf if tokenizer["kind"] == "pretrained" else size + len(paths)
    refuse(CorpusError, "", [
        (paths and not size, f"{few(paths)} is empty; give text in corpus.paths"),
        (paths and most < spec["min_tokens"],
         f"{few(paths)}: {size} bytes of text are fewer than the {spec['min_tokens']} tokens of "
         f"one batch of sequences of {spec['context']} and one more; lower workload.global_batch "
         "or model.context, or give more text in corpus.paths"),
    ])  # fmt: skip


def check_hub() -> None:
    """Raise CorpusError where the name of the hub leads nowhere."""
    if (fault := hub_fault()) is not None:
        raise CorpusError(
            f"{fault}; make the tokens where there is a network, set HTTPS_PROXY if the site has a "
            "proxy, or name a folder of this machine in corpus.name or tokenizer.name"
        )


def _check_name(name: str, key: str, what: str) -> None:
    """Raise CorpusError unless a name is that of a folder here or can be one of the hub."""
    if not (Path(name).is_dir() or _HUB_NAME.fullmatch(name)):
        raise CorpusError(
            f"{key} {name!r} is no name of a {what}; give a folder that is here, or `owner/name` "
            "of the hub"
        )


def _line_parts(stream: TextIO) -> Iterator[tuple[bool, str]]:
    """A flag for a blank line, and the text, of each part of a line of at most a piece.

    White space at the start of a line is held back until a visible character or the line's end.
    A line end stands before the next line, so that the last one of a block belongs to no document.
    """
    held, is_visible = "", False
    while part := stream.readline(PIECE_CHARACTERS):
        is_visible = is_visible or not part.isspace()
        is_end = part.endswith("\n")
        held += part.removesuffix("\n")
        if is_visible or is_end:
            yield not is_visible, held
            held = "\n" if is_visible and is_end else ""
        is_visible = is_visible and not is_end


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


def split_document(chunks: Iterable[str], limit: int = PIECE_CHARACTERS) -> Iterator[Piece]:
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
