"""Wrong documents, made by class from right ones: every key x every kind of wrong value.

Some of these values are right in some place (a weight decay may be 0). A mutant that can be right
nowhere is one that `must_fail`; all others have to be taken or refused in one line.
"""

import copy
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HUGE = 10**30
HALF = "half a character: \ud800"
TEXTS = {"unicode": "Größe 分散 🙂", "newline": "name\n", "path": "../../etc/passwd"}
UNPRINTABLE = {"NUL": "a\0b", "escape": "\x1b[31mred", "noncharacter": "a\ufdd0b\U0001fffe"}
WRONG_TYPE: dict[type, tuple[Any, ...]] = {
    bool: (7, "yes", []),
    int: ("7", [], {}, True),
    float: ("0.5", [], {}, True),
    str: (7, [], {}, True),
    list: (7, "text"),
    dict: (7, "text", []),
}
"""Values that are wrong in the place of one of this type; a mapping is no list, but may be one of
several forms of a key that is a list's (`repeats`)."""


@dataclass(frozen=True)
class Mutant:
    """`content` is the document with the value at `place` replaced, or left out."""

    place: str
    kind: str
    content: Any
    must_fail: bool

    @property
    def name(self) -> str:
        """What a failing test calls it."""
        return f"{self.place}: {self.kind}"


def sample(found: Iterator[Mutant], most: int) -> list[Mutant]:
    """At most so many, chosen by their names: always the same, and of every class."""
    return sorted(found, key=lambda one: hashlib.sha256(one.name.encode()).digest())[:most]


def number_keys(*schemas: Path) -> set[str]:
    """Keys that are anywhere a number that need not be whole."""
    found: set[str] = set()

    def walk(schema: Any) -> None:
        if isinstance(schema, dict):
            for key, value in schema.get("properties", {}).items():
                if isinstance(value, dict) and not _is_whole(value):
                    found.add(key)
            for value in schema.values():
                walk(value)
        elif isinstance(schema, list):
            for value in schema:
                walk(value)

    for path in schemas:
        text = path.read_text(encoding="utf-8")
        walk(json.loads(text) if path.suffix == ".json" else yaml.safe_load(text))
    return found


def _is_whole(schema: dict[str, Any]) -> bool:
    """Whether a value by this schema is an integer; one that refers to another may be none."""
    kinds = schema.get("type", [])
    return "integer" in kinds or str(schema.get("$ref", "")).endswith(
        ("count", "count_or_none", "batch", "ranks", "cores", "nodes")
    )


def mutants(document: Any, numbers: set[str], *, depth: int = 9) -> Iterator[Mutant]:
    """Every mutant of a document; `numbers` are keys whose whole numbers may be floats."""
    for path in places(document, depth):
        value, key = _at(document, path), next(p for p in (*path[::-1], "") if isinstance(p, str))
        name = "$" + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path)
        if path:
            yield Mutant(name, "missing", _replaced(document, path, None, drop=True), False)
        yield Mutant(name, "null", _replaced(document, path, None), False)
        for wrong in WRONG_TYPE.get(type(value), ()):
            kind = f"{type(wrong).__name__} for {type(value).__name__}"
            # What a mapping of free keys holds may be of any type.
            yield Mutant(name, kind, _replaced(document, path, wrong), not _is_free(path))
        for kind, wrong, fails in _of_type(value, key in numbers):
            fails = fails and not _is_free(path)
            yield Mutant(name, kind, _replaced(document, path, wrong), fails)


def _of_type(value: Any, may_be_float: bool) -> Iterator[tuple[str, Any, bool]]:
    yield "half a character", HALF, True
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield from (("NaN", math.nan, True), ("infinity", math.inf, True), ("huge", HUGE, True))
        yield "enormous", 1e300, True
        yield from (("negative", -1, False), ("zero", 0, False), ("large", 2**62, False))
        yield "whole float", float(value), isinstance(value, int) and not may_be_float
    elif isinstance(value, str):
        yield "empty", "", False
        for kind, text in TEXTS.items():
            yield kind, text, False
        for kind, text in UNPRINTABLE.items():
            yield kind, text, True
        yield "long", "a" * 5000, False
    elif isinstance(value, list | dict):
        yield "empty", type(value)(), False
        if isinstance(value, dict):
            yield "unknown key", {**value, "no such key": 1}, False
        else:
            yield "twice", [*value, *value], False


def _is_free(path: tuple[str | int, ...]) -> bool:
    """Whether a place lies in a mapping that a schema leaves open."""
    return bool({"options", "layout", "settings", "versions", "tcp", "as_published"} & {*path[:-1]})


def places(value: Any, depth: int) -> Iterator[tuple[str | int, ...]]:
    """Paths of all values of a document, itself included; of a list the first two."""
    yield ()
    if depth == 0:
        return
    children: Any = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value[:2])
    for key, child in children:
        for path in places(child, depth - 1):
            yield (key, *path)


def _at(document: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        document = document[part]
    return document


def _replaced(document: Any, path: tuple[str | int, ...], value: Any, *, drop: bool = False) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(document)
    parent = _at(changed, path[:-1])
    if drop:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return changed


BAD_BYTES: dict[str, bytes] = {
    "empty": b"",
    "blank": b" \n",
    "latin-1": "Größe: 1".encode("latin-1"),
    "UTF-16": "{}".encode("utf-16"),
    "NUL": b"\0" * 100,
    "binary": bytes(range(256)) * 4,
    "cut": b'{"study": ',
    "deep": b"[" * 100_000,
    "deep mapping": b'{"a":' * 50_000,
    "list": b"[1, 2]",
    "text": b'"text"',
    "number": b"7",
    "null": b"null",
    "twice": b'{"study": 1, "study": 2}',
    "long number": b'{"a": ' + b"9" * 5000 + b"}",
    "two documents": b"{}\n---\n{}",
    "NaN": b"NaN",
    "no code point": b'{"a": "\\UFFFFFFFF"}',
    "large": b"",
}
"""Content that is wrong for every kind of document; the large one gets `LARGE` bytes of nothing."""
LARGE = 64 * 2**20 + 1

NO_FILES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "a FIFO": os.mkfifo,
    "a folder": Path.mkdir,
    "a symlink to itself": lambda path: path.symlink_to(path.name),
    "a symlink to a device": lambda path: path.symlink_to("/dev/zero"),
}
"""What is no regular file, and how it is made in place of one."""
