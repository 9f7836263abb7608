"""What a document may hold: plain values as JSON has them, neither too deep nor too large."""

from __future__ import annotations

import math
from typing import Any

from pipeline.text import unprintable

MAX_DEPTH = 20
# An integer in any other program that reads our JSON.
MAX_BITS = 63


class Refused(ValueError):
    """A document that could be read, but holds what none of ours does."""


def duplicate(key: str, line: int | None = None) -> str:
    """What is said of a key that a mapping holds twice, the second time in `line`."""
    place = "" if line is None else f", again in line {line}"
    return f"the key {key[:80]!r} stands twice{place}; keep one"


def too_deep(where: str) -> str:
    """What is said of a value that is nested over `MAX_DEPTH` deep."""
    return f"at {where[:80]} it is nested over {MAX_DEPTH} deep; expected a study's few levels"


def is_plain(value: Any, depth: int) -> bool:
    """Whether `check_plain` finds nothing, for a document of many values: no place is made."""
    kind = type(value)
    if kind is dict or kind is list:
        if depth >= MAX_DEPTH:
            return not value
        if kind is list:
            return all(is_plain(child, depth + 1) for child in value)
        return all(
            type(key) is str and key.isascii() and key.isprintable() and is_plain(child, depth + 1)
            for key, child in value.items()
        )
    if kind is str:
        return bool(value.isascii() and value.isprintable())
    if kind is int:
        return bool(value.bit_length() <= MAX_BITS)
    return math.isfinite(value) if kind is float else value is None or kind is bool


def check_plain(value: Any, where: str, depth: int, printable: bool) -> None:
    """Raise Refused, naming the place, unless `value` is what JSON can hold and we can write."""
    if depth > MAX_DEPTH:
        raise Refused(too_deep(where))
    match value:
        case dict():
            for key, child in value.items():
                if not isinstance(key, str):
                    raise Refused(f"at {where[:80]}: the key {str(key)[:80]} is no text; quote it")
                check_plain(key, where, depth, printable)
                check_plain(child, f"{where}.{key}", depth + 1, printable)
        case list():
            for place, child in enumerate(value):
                check_plain(child, f"{where}[{place}]", depth + 1, printable)
        case str():
            if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
                raise Refused(f"at {where[:80]}: half a character ({value[:80]!a}); write it whole")
            if printable and (wrong := unprintable(value)):
                raise Refused(
                    f"at {where[:80]}: {value[:80]!a} holds {wrong!a}, which cannot be printed; "
                    "leave it out"
                )
        case bool() | None:
            pass
        case int():
            if value.bit_length() > MAX_BITS:
                raise Refused(
                    f"at {where[:80]}: an integer of {value.bit_length()} bits; "
                    f"the most is {MAX_BITS}"
                )
        case float():
            if not math.isfinite(value):
                raise Refused(f"at {where[:80]}: {value} is no finite number; write one")
        case _:
            raise Refused(
                f"at {where[:80]}: a {type(value).__name__} is nothing that JSON has; "
                "put it in quotes"
            )
