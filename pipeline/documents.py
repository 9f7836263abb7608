"""Read the YAML, JSON, JSON lines and text that anyone may have written: the one door for files.

What comes through is plain and small: mappings with string keys, lists, strings, finite numbers,
booleans and null, as JSON has them. Everything else is one line that names the file, the place, the
value and the fix: what is no regular file, too large, not UTF-8, has a key twice, is nested too
deep, or grows by aliases beyond measure.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import SamestepError
from pipeline.files import open_regular
from pipeline.text import unprintable

# The largest shipped study has 3 KiB, 250 values and a depth of 4.
MAX_BYTES = 128 * 1024
"""Of a file that a person writes."""

MAX_MADE_BYTES = 64 * 2**20
"""Of a JSON document that a stage wrote: the record of some 100,000 ranks."""

MAX_LINE_BYTES = 64 * 1024
"""Of one line of JSON lines; a step has some hundred."""

MAX_VALUES = 20_000
MAX_DEPTH = 20
# An integer in any other program that reads our JSON.
MAX_BITS = 63


class _Refused(ValueError):
    """A document that could be read, but holds what none of ours does."""


def read_document(
    path: Path,
    what: str,
    error: type[SamestepError],
    fix: str = "",
    max_bytes: int = MAX_BYTES,
    *,
    printable: bool = True,
) -> Any:
    """The content of `path`, JSON where its suffix says so and YAML elsewhere.

    `what` names the kind of file in the message of `error`, which is raised for all that is wrong;
    `fix` says what to do about a file that is missing or damaged. A text may hold a control
    character only where `printable` is False.
    """
    text = read_text(path, what, error, fix, max_bytes)
    form = "JSON" if path.suffix == ".json" else "YAML"
    return parse(text, f"{what} {path}".lstrip(), error, form, fix, printable=printable)


def read_made(path: Path, what: str, error: type[SamestepError], made_by: str) -> Any:
    """The content of a JSON file that the command `made_by` wrote; otherwise as `read_document`."""
    return read_document(path, what, error, f"run `{made_by}` first", MAX_MADE_BYTES)


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
            raise _Refused(f"the file is over {_size(max_bytes)}; is it the right one?")
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
        content = _parse_json(text) if form == "JSON" else _parse_yaml(text)
        if not _is_plain(content, 0):
            _check_plain(content, "$", 0, printable)
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
        while line := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            at = f"{name}:{number}"
            if len(line) > MAX_LINE_BYTES:
                raise error(f"{at}: the line is over {_size(MAX_LINE_BYTES)}; is it a step?")
            with _named(at, error, "JSON", fix):
                text = line.decode("utf-8")
            yield number, parse(text, at, error, "JSON", fix)


@contextmanager
def _named(name: str, error: type[SamestepError], form: str, fix: str) -> Iterator[None]:
    """Turn whatever is wrong with a file into one line of `error`."""
    try:
        yield
    except FileNotFoundError:
        raise error(f"{name} does not exist; {fix or 'give the path of a file'}") from None
    except OSError as fault:
        is_refused = isinstance(fault, PermissionError)
        mend = "fix its permissions" if is_refused else f"give a file of {form}"
        raise error(f"{name} cannot be read: {fault.strerror or fault}; {mend}") from None
    except UnicodeDecodeError as fault:
        byte = fault.object[fault.start]
        raise error(f"{name}: byte 0x{byte:02x} is not UTF-8; convert the file to UTF-8") from None
    except _Refused as fault:
        raise error(f"{name}: {fault}") from None
    except RecursionError:
        raise error(f"{name}: {_too_deep('$')}") from None
    except MemoryError:
        raise error(f"{name} does not fit into memory; is it the right one?") from None
    except (yaml.YAMLError, ValueError) as fault:
        # ValueError: also dates that do not exist, and numbers too long for Python to read.
        said = " ".join(str(fault).split())[:300]
        raise error(f"{name} is not {form}: {said}; {fix or 'correct the file'}") from None


def _size(num_bytes: int) -> str:
    kib = num_bytes // 1024
    return f"{kib} KiB" if kib < 1024 else f"{kib // 1024} MiB"


def _parse_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_without_duplicates)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Refused(_duplicate(key))
        found[key] = value
    return found


def _parse_yaml(text: str) -> Any:
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which also counts what aliases stand for and refuses duplicate keys."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._num_values = self._depth = 0
        self._sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """A node; an alias counts as all that it stands for, so ten lines cannot become 10^9."""
        is_alias = self.check_event(yaml.AliasEvent)
        before = self._num_values
        self._num_values += 1
        # A text, or an empty list, may stand below the last level.
        if self._depth > MAX_DEPTH:
            raise _Refused(_too_deep("$"))
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if is_alias and node not in self._sizes:
            raise _Refused(f"a value holds itself by an alias, in line {_line(node)}; write it out")
        if is_alias:
            self._num_values += self._sizes[node]
        else:
            self._sizes[node] = self._num_values - before
        if self._num_values > MAX_VALUES:
            raise _Refused(f"with its aliases it has over {MAX_VALUES} values; have fewer aliases")
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node; of a wrong text PyYAML makes an error of any kind by its tag."""
        try:
            return super().construct_object(node, deep=deep)
        except (LookupError, AttributeError, TypeError, ArithmeticError):
            said = f"{str(node.value)[:80]!r} is no {node.tag.rpartition(':')[2]}"
            raise _Refused(f"{said}, in line {_line(node)}; correct it or quote it") from None

    def _number(self, node: yaml.ScalarNode) -> int | float:
        """A number in one of the forms that JSON, or a programmer, reads as YAML does.

        YAML 1.1 also reads `1:30` as 90 and `010` as 8, which nobody means.
        """
        text = node.value.replace("_", "")
        is_whole = node.tag.endswith(":int")
        value = self.construct_yaml_int(node) if is_whole else self.construct_yaml_float(node)
        if ":" in text or re.match(r"[-+]?0[0-9]", text):
            raise _Refused(
                f"{text[:80]} is {value} in YAML, in line {_line(node)}; write it without "
                "colon and leading zero, or quote it"
            )
        return value

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A mapping; of two equal keys YAML's own readers keep the last in silence."""
        node = super().compose_mapping_node(anchor)
        found = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in found:
                raise _Refused(_duplicate(key.value, _line(key)))
            found.add(key.value)
        return node


for _tag in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _Loader._number)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _duplicate(key: str, line: int | None = None) -> str:
    place = "" if line is None else f", again in line {line}"
    return f"the key {key[:80]!r} stands twice{place}; keep one"


def _too_deep(where: str) -> str:
    return f"at {where[:80]} it is nested over {MAX_DEPTH} deep; expected a study's few levels"


def _is_plain(value: Any, depth: int) -> bool:
    """Whether `_check_plain` finds nothing, for a document of many values: no place is made."""
    kind = type(value)
    if kind is dict or kind is list:
        if depth >= MAX_DEPTH:
            return not value
        if kind is list:
            return all(_is_plain(child, depth + 1) for child in value)
        return all(
            type(key) is str and key.isascii() and key.isprintable() and _is_plain(child, depth + 1)
            for key, child in value.items()
        )
    if kind is str:
        return bool(value.isascii() and value.isprintable())
    if kind is int:
        return bool(value.bit_length() <= MAX_BITS)
    return math.isfinite(value) if kind is float else value is None or kind is bool


def _check_plain(value: Any, where: str, depth: int, printable: bool) -> None:
    """Raise _Refused, naming the place, unless `value` is what JSON can hold and we can write."""
    if depth > MAX_DEPTH:
        raise _Refused(_too_deep(where))
    match value:
        case dict():
            for key, child in value.items():
                if not isinstance(key, str):
                    raise _Refused(f"at {where[:80]}: the key {str(key)[:80]} is no text; quote it")
                _check_plain(key, where, depth, printable)
                _check_plain(child, f"{where}.{key}", depth + 1, printable)
        case list():
            for place, child in enumerate(value):
                _check_plain(child, f"{where}[{place}]", depth + 1, printable)
        case str():
            if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
                raise _Refused(
                    f"at {where[:80]}: half a character ({value[:80]!a}); write it whole"
                )
            if printable and (wrong := unprintable(value)):
                raise _Refused(
                    f"at {where[:80]}: {value[:80]!a} holds {wrong!a}, which cannot be printed; "
                    "leave it out"
                )
        case bool() | None:
            pass
        case int():
            if value.bit_length() > MAX_BITS:
                raise _Refused(
                    f"at {where[:80]}: an integer of {value.bit_length()} bits; "
                    f"the most is {MAX_BITS}"
                )
        case float():
            if not math.isfinite(value):
                raise _Refused(f"at {where[:80]}: {value} is no finite number; write one")
        case _:
            raise _Refused(
                f"at {where[:80]}: a {type(value).__name__} is nothing that JSON has; "
                "put it in quotes"
            )
