"""Types of the command line's options: a value that cannot be is refused before any work.

Each is a `type` of `argparse`; its ArgumentTypeError says what was given, what was expected and the
fix, and `pipeline.__main__` prints it in one line with the option's name. A file that is read is
only named here: `pipeline.documents` opens it, and says what is wrong with it.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import SamestepError

if TYPE_CHECKING:
    from pipeline.study.study import Study

STUDY = "study file, or the name of a shipped study"
"""Help of an option whose type is `study`."""


def check_written(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """The parser's error where what a stage would write is what it reads.

    That is the same file or folder, a file of a folder that is read, or anything in a folder that
    stands without an option: two of those are compared, and stay as they are.
    """

    def given(*types: Callable[[str], Path]) -> Iterator[tuple[argparse.Action, Path]]:
        for action in parser._actions:
            if action.type in types and (value := getattr(args, action.dest)) is not None:
                for one in value if isinstance(value, list) else [value]:
                    yield action, one

    reading = given(path, study, file, folder)
    for (writes, out), (reads, read) in product(given(new_file, new_folder), reading):
        place, source = out.resolve(), read.resolve()
        is_inside = reads.type is folder and place.is_relative_to(source)
        is_lost = out.exists() and (place == source or (is_inside and writes.type is new_file))
        if is_lost or (is_inside and not reads.option_strings):
            name = reads.option_strings[0] if reads.option_strings else reads.metavar
            parser.error(
                f"argument {writes.option_strings[0]}: {out} is read too, by {name}, and would "
                "be changed; give another name"
            )


def check_mode(args: argparse.Namespace, mode: str, taken: str) -> None:
    """Raise SamestepError for an option that would do nothing in this mode of a command.

    `taken` are the options that have an effect there, beside those that are always set.
    """
    given = {name for name, value in vars(args).items() if value not in (None, False)}
    names = [f"--{name.replace('_', '-')}" for name in sorted(given - {*taken.split()})]
    if names:
        known = ", ".join(f"--{name.replace('_', '-')}" for name in taken.split())
        raise SamestepError(
            f"{', '.join(names)} would do nothing with {mode}, which takes {known}; leave it out"
        )


def path(text: str) -> Path:
    """A path that can be one: not empty, no NUL, and no longer than the kernel takes."""
    if not text.strip():
        raise _refusal(text, "no path; name a file or a folder")
    content = text.encode(errors="surrogateescape")
    if b"\0" in content or len(content) > 4095 or max(map(len, content.split(b"/"))) > 255:
        raise _refusal(text, "no path; it has a NUL, over 4095 bytes or a name of over 255")
    try:
        Path(text).resolve()
    except (OSError, RuntimeError) as error:
        raise argparse.ArgumentTypeError(
            f"{text[:60]!r} leads nowhere ({' '.join(str(error).split())[:80]}); give another path"
        ) from None
    return Path(text)


def study(text: str) -> Path:
    """The file of a study, given by its path or by the name of a shipped study."""
    from pipeline.study.load import find_study

    return find_study(str(path(text)))


def loaded(study_file: Path) -> Study:
    """The study of such a file."""
    from pipeline.study.load import load_study

    return load_study(study_file)


def file(text: str) -> Path:
    """A regular file that is there, where a stage does not read it in every case."""
    target = path(text)
    if not target.is_file():
        raise argparse.ArgumentTypeError(f"{target} is no regular file; give one or leave it out")
    return target


def folder(text: str) -> Path:
    """A folder that is there, to read from."""
    target = path(text)
    if not target.is_dir():
        what = "is no folder" if target.exists() else "does not exist"
        raise argparse.ArgumentTypeError(f"{target} {what}; give the folder that is to be read")
    return target


def new_file(text: str) -> Path:
    """A file to write: absent, or a regular file that is replaced, in a folder that can be made."""
    return _new(path(text), Path.is_file, "regular file")


def new_folder(text: str) -> Path:
    """A folder to write to: there, or one that can be made."""
    return _new(path(text), Path.is_dir, "folder")


def _new(target: Path, is_kind: Callable[[Path], bool], kind: str) -> Path:
    if target.exists() and not is_kind(target):
        raise argparse.ArgumentTypeError(f"{target} is no {kind}; give another name")
    if kind != "folder" and target.name in ("", ".."):
        raise argparse.ArgumentTypeError(f"{target} names no file; give the file to write")
    parent = next((parent for parent in target.parents if parent.exists()), target)
    if parent != target and not parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"{target} cannot be made: {parent} is no folder; give another name"
        )
    return target


def count(least: int, most: int) -> Callable[[str], int]:
    """A type of whole numbers from `least` to `most`, written in digits."""

    def number(text: str) -> int:
        value = int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None
        if value is None or not least <= value <= most:
            raise _refusal(text, f"no whole number from {least} to {most}; give one")
        return value

    return number


def counts(least: int, most: int) -> Callable[[str], list[int]]:
    """A type of such numbers with commas between them, in their order."""
    one = count(least, most)
    return lambda text: sorted({one(part) for part in text.split(",")})


def tolerance(text: str) -> float:
    """A relative difference from 0 to 1; 0 for `bit`."""
    try:
        value = 0.0 if text == "bit" else float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise _refusal(text, "neither `bit` nor a relative difference from 0 to 1, as 1e-5")
    return value


def rate(text: str) -> float:
    """Gbit/s of a link such as `200gbit` or `500 Mbit/s`."""
    value = _amount(text.strip().removesuffix("/s"), {"gbit": 1.0, "mbit": 1e-3})
    if value <= 0:
        raise _refusal(text, "no rate; write one of a node, as 200gbit")
    return value


def memory(text: str) -> int:
    """Bytes of `16GiB`, `512 MiB` or `16GB`."""
    value = _amount(text, {"mb": 10**6, "gb": 10**9, "mib": 2**20, "gib": 2**30})
    if not 1 <= value <= 2**60:  # more than any machine has
        raise _refusal(text, "no size; write a number over 0 and a unit, as 16GiB")
    return round(value)


def _amount(text: str, units: Mapping[str, float]) -> float:
    """A number times its unit; 0 for what is none."""
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?) ?([a-z]+)", text.strip().lower(), re.ASCII)
    return float(match[1]) * units.get(match[2], 0.0) if match else 0.0


def _refusal(text: str, what: str) -> argparse.ArgumentTypeError:
    """The error on a value, which is short in it however long it was given."""
    return argparse.ArgumentTypeError(f"{text[:60]!r} is {what}")
