"""Read the YAML, JSON, JSON lines and text that anyone may have written: the one door for files.

What comes through is plain and small: mappings with string keys, lists, strings, finite numbers,
booleans and null, as JSON has them. Everything else is one line that names the file, the place, the
value and the fix: what is no regular file, too large, not UTF-8, has a key twice, is nested too
deep, or grows by aliases beyond measure. `python -m pipeline.documents FILE` says so of a study
file, before a program reads it that takes thousands of lines.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import SamestepError
from pipeline.files import open_regular
from pipeline.plain import Loader, Unfit, check_plain, duplicate, too_deep

# The largest shipped study has 3 KiB, 250 values and a depth of 4.
MAX_BYTES = 128 * 1024
"""Largest size of a YAML file, which a person writes."""

MAX_MADE_BYTES = 64 * 2**20
"""Largest size of a JSON document, or of a line of one, which a stage wrote: the record of some
100,000 ranks, or the passes of as many micro-batches in a profiled step."""


def read_document(
    path: Path,
    what: str,
    error: type[SamestepError],
    fix: str = "",
    *,
    printable: bool = True,
) -> Any:
    """The content of `path`, JSON where its suffix says so and YAML elsewhere.

    People write YAML, stages JSON: a study.json names every file of its corpus in ASCII, and may be
    several times as large as the YAML that it was made from.

    `what` names the kind of file in the message of `error`, which is raised for all that is wrong;
    `fix` says what to do about a file that is missing or damaged. A text may hold a control
    character only where `printable` is False.
    """
    form = "JSON" if path.suffix == ".json" else "YAML"
    text = read_text(path, what, error, fix, MAX_MADE_BYTES if form == "JSON" else MAX_BYTES)
    return parse(text, f"{what} {path}".lstrip(), error, form, fix, printable=printable)


def read_made(path: Path, what: str, error: type[SamestepError], made_by: str) -> Any:
    """The content of a JSON file that the command `made_by` wrote; otherwise as `read_document`."""
    return read_document(path, what, error, f"run `{made_by}` first")


def read_text(
    path: Path,
    what: str,
    error: type[SamestepError],
    fix: str = "",
    max_bytes: int = MAX_BYTES,
) -> str:
    """The text of a regular file in UTF-8, a byte order mark dropped; raises `error`."""
    name = f"{what} {path}".lstrip()
    with _named(name, error, "UTF-8 text", fix):
        with open_regular(path) as stream:
            is_large = os.fstat(stream.fileno()).st_size > max_bytes
            content = b"" if is_large else stream.read(max_bytes + 1)
        if is_large or len(content) > max_bytes:
            raise Unfit(f"the file is over {max_bytes // 1024} KiB; is it the right one?")
        return content.decode("utf-8-sig")


def parse(
    text: str,
    name: str,
    error: type[SamestepError],
    form: str = "JSON",
    fix: str = "",
    *,
    printable: bool = True,
) -> Any:
    """The content of a document's text; raises `error`, whose message begins with `name`."""
    with _named(name, error, form, fix):
        if form == "JSON":
            content = json.loads(text, object_pairs_hook=_without_duplicates)
        else:
            loader = Loader(text)
            try:
                content = loader.get_single_data()
            except ArithmeticError as fault:  # of a code point such as \UFFFFFFFF
                raise Unfit(f"a number in it cannot be ({fault}); correct it") from None
            finally:
                loader.dispose()
        check_plain(content, printable=printable)
    return content


def read_lines(
    path: Path, what: str, error: type[SamestepError], fix: str = ""
) -> Iterator[tuple[int, Any]]:
    """Number, from 1, and content of each line of a file of JSON lines; raises `error`.

    One line is in memory at a time. A blank line is no JSON.
    """
    name = f"{what} {path}".lstrip()
    with _named(name, error, "JSON lines", fix), open_regular(path) as stream:
        number = 0
        while line := stream.readline(MAX_MADE_BYTES + 1):
            number += 1
            at = f"{name}:{number}"
            if len(line) > MAX_MADE_BYTES:
                mend = fix or "is it a step?"
                raise error(f"{at}: the line is over {MAX_MADE_BYTES >> 20} MiB; {mend}")
            with _named(at, error, "JSON", fix):
                text = line.decode("utf-8")
            yield number, parse(text, at, error, "JSON", fix)


@contextmanager
def _named(name: str, error: type[SamestepError], form: str, fix: str) -> Iterator[None]:
    """Turn whatever is wrong with a file into one line of `error`.

    A `fix` is that of a file that a stage wrote, where nobody is to mend what is in it.
    """
    try:
        yield
    except FileNotFoundError:
        raise error(f"{name} does not exist; {fix or 'give the path of a file'}") from None
    except OSError as fault:
        is_refused = isinstance(fault, PermissionError)
        mend = "fix its permissions" if is_refused else fix or f"give a file of {form}"
        raise error(f"{name} cannot be read: {fault.strerror or fault}; {mend}") from None
    except UnicodeDecodeError as fault:
        byte = fault.object[fault.start]
        mend = fix or "convert the file to UTF-8"
        raise error(f"{name}: byte 0x{byte:02x} is not UTF-8; {mend}") from None
    except (Unfit, RecursionError) as fault:
        reason = str(fault) if isinstance(fault, Unfit) else too_deep("$")
        if fix:  # in place of the last part
            reason = f"{reason.rpartition('; ')[0] or reason}; {fix}"
        raise error(f"{name}: {reason}") from None
    except MemoryError:
        raise error(f"{name} does not fit into memory; give the command more") from None
    except (yaml.YAMLError, ValueError) as fault:
        # ValueError: also dates that do not exist, and numbers too long for Python to read.
        reason = " ".join(str(fault).split())[:300]
        raise error(f"{name} is not {form}: {reason}; {fix or 'correct the file'}") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise Unfit(duplicate(key))
        mapping[key] = value
    return mapping


if __name__ == "__main__":
    try:
        read_document(Path(sys.argv[1]), "study file", SamestepError)
    except SamestepError as error:
        sys.exit(f"error: {' '.join(str(error).split())}")
