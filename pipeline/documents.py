"""Read the YAML, JSON, JSON lines and text that anyone may have written: the one door for files.

What comes through is plain and small: mappings with string keys, lists, strings, finite numbers,
booleans and null, as JSON has them. Everything else is one line that names the file, the place, the
value and the fix: what is no regular file, too large, not UTF-8, has a key twice, is nested too
deep, or grows by aliases beyond measure. YAML is read by PyYAML's safe loader, which here refuses
what that lets pass.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer

from pipeline.errors import SamestepError
from pipeline.files import open_regular
from pipeline.text import unprintable

# The largest shipped study has 3 KiB, 250 values and a depth of 4.
MAX_BYTES = 128 * 1024
"""Largest size of a YAML file, which a person writes."""

MAX_MADE_BYTES = 64 * 2**20
"""Largest size of a JSON document, or of a line of one, which a stage wrote: the record of some
100,000 ranks, or the passes of as many micro-batches in a profiled step."""


def read_document(
    path: Path, what: str, error: type[SamestepError], fix: str = "", *, printable: bool = True
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
    name = f"{what} {path}".lstrip()
    content = parse(text, name, error, form, fix, printable=printable) if text.strip() else None
    if content is None:
        raise error(f"{name} is empty; {fix or 'write into it what it is for'}")
    return content


def read_made(path: Path, what: str, error: type[SamestepError], made_by: str) -> Any:
    """The content of a JSON file that the command `made_by` wrote; otherwise as `read_document`."""
    return read_document(path, what, error, f"run `{made_by}` first")


def read_text(
    path: Path, what: str, error: type[SamestepError], fix: str = "", max_bytes: int = MAX_BYTES
) -> str:
    """The text of a regular file in UTF-8, a byte order mark dropped; raises `error`."""
    name = f"{what} {path}".lstrip()
    with _named(name, error, "UTF-8 text", fix):
        with open_regular(path) as stream:
            content = stream.read(max_bytes + 1)
        if len(content) > max_bytes:
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
                node = loader.get_single_node()
                if node is not None:
                    loader.check(node, {})
                content = None if node is None else loader.construct_document(node)
            except yaml.MarkedYAMLError as fault:
                reason, mend = _no_yaml(fault, text)
                raise error(f"{name} is not YAML: {reason}; {fix or mend}") from None
            finally:
                loader.dispose()
        check_plain(content, printable=printable)
    return content


def read_lines(path: Path, error: type[SamestepError], fix: str = "") -> Iterator[tuple[int, Any]]:
    """Number, from 1, and content of each line of a file of JSON lines; raises `error`.

    One line is in memory at a time. A blank line is no JSON.
    """
    with _named(str(path), error, "JSON lines", fix), open_regular(path) as stream:
        lines = iter(lambda: stream.readline(MAX_MADE_BYTES + 1), b"")
        for number, line in enumerate(lines, 1):
            at = f"{path}:{number}"
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
        reason = str(fault) if isinstance(fault, Unfit) else f"at $: {TOO_DEEP}"
        if fix:  # in place of the last part
            reason = f"{reason.rpartition('; ')[0] or reason}; {fix}"
        raise error(f"{name}: {reason}") from None
    except MemoryError:
        raise error(f"{name} does not fit into memory; give the command more") from None
    except (yaml.YAMLError, ValueError) as fault:
        # ValueError: also dates that do not exist, and numbers too long for Python to read.
        reason = " ".join(str(fault).split())[:300]
        raise error(f"{name} is not {form}: {reason}; {fix or 'correct the file'}") from None


def _no_yaml(fault: yaml.MarkedYAMLError, text: str) -> tuple[str, str]:
    """PyYAML's message on a text, without its name for that, and the most frequent fix."""
    reason, mark = str(fault).replace('"<unicode string>", ', ""), fault.problem_mark
    at = "" if mark is None else "".join(text.split("\n")[mark.line : mark.line + 1])
    if mark is not None and at[mark.column :].startswith("\t"):
        return f"a tab in line {mark.line + 1}, column {mark.column + 1}", "indent with blanks"
    has_colon = "mapping values are not allowed" in reason
    fix = "quote a text that holds a colon" if has_colon else "correct the file"
    return " ".join(reason.split())[:300], fix


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise Unfit(f"the key {key[:80]!r} stands twice; keep one")
        mapping[key] = value
    return mapping


MAX_DEPTH = 20
TOO_DEEP = f"nested over {MAX_DEPTH} deep; expected a study's few levels"
# An integer in any other program that reads our JSON.
MAX_BITS = 63
MAX_VALUES = 20_000
"""Of a YAML file, each alias counted as all that it stands for."""


class Unfit(ValueError):
    """A document that could be read, but holds what none of ours does; `place` is where in it."""

    place = ""


def check_plain(value: Any, *, printable: bool) -> None:
    """Raise Unfit, naming the place, unless `value` is what JSON can hold and we can write."""
    try:
        _check(value, 0, printable)
    except Unfit as fault:
        raise Unfit(f"at {f'${fault.place}'[:80]}: {fault}") from None


def _check(value: Any, depth: int, printable: bool) -> None:
    """Raise Unfit, whose place is put together on the way out: a sound document costs no text."""
    kind = type(value)
    if depth > MAX_DEPTH:
        raise Unfit(TOO_DEEP)
    if kind is dict or kind is list:
        for key, child in value.items() if kind is dict else enumerate(value):
            if kind is dict:
                if type(key) is not str:
                    raise Unfit(f"the key {str(key)[:80]} is no text; quote it")
                _check(key, depth, printable)
            try:
                _check(child, depth + 1, printable)
            except Unfit as fault:
                fault.place = (f".{key}" if kind is dict else f"[{key}]") + fault.place
                raise
    elif kind is str:
        if value.isascii() and value.isprintable():
            return
        if any("\ud800" <= c <= "\udfff" for c in value):
            raise Unfit(f"half a character ({value[:80]!a}); write it whole")
        if printable and (wrong := unprintable(value)):
            raise Unfit(f"{value[:80]!a} holds {wrong!a}, which cannot be printed; leave it out")
    elif kind is int:
        if (bits := value.bit_length()) > MAX_BITS:
            raise Unfit(f"an integer of {bits} bits; the most is {MAX_BITS}")
    elif kind is float:
        if not math.isfinite(value):
            raise Unfit(f"{value} is no finite number; write one")
    elif value is not None and kind is not bool:
        raise Unfit(f"a {kind.__name__} is nothing that JSON has; put it in quotes")


class Loader(Composer, yaml.CSafeLoader):
    """PyYAML's safe loader, which can also check a document before it makes anything of it.

    The parser in C is eight times as fast. What it finds is put together by the composer in Python:
    that in C has no limit of depth, and 65,000 brackets would end the process.
    """

    def __init__(self, text: str) -> None:
        yaml.CSafeLoader.__init__(self, text)
        Composer.__init__(self)

    def check(self, node: yaml.Node, sizes: dict[yaml.Node, int]) -> int:
        """Number of values in a node, of which `sizes` has those that were checked, 0 within them.

        An alias counts as all that it stands for, so ten lines cannot become 10^9. Raises Unfit.
        """
        line, size, keys = int(node.start_mark.line) + 1, 1, set()
        if node in sizes:
            if not sizes[node]:
                raise Unfit(f"a value holds itself by an alias, in line {line}; write it out")
            return sizes[node] + 1
        sizes[node] = 0
        for part in () if isinstance(node, yaml.ScalarNode) else node.value:
            # A mapping has pairs. Of two equal keys YAML's own readers keep the last in silence.
            for child in part if isinstance(part, tuple) else [part]:
                size += self.check(child, sizes)
                if size > MAX_VALUES:
                    fix = "have fewer aliases"
                    raise Unfit(f"with its aliases it has over {MAX_VALUES} values; {fix}")
            if isinstance(part, tuple) and isinstance(part[0], yaml.ScalarNode):
                if (key := part[0].value) in keys:
                    again = int(part[0].start_mark.line) + 1
                    raise Unfit(
                        f"the key {key[:80]!r} stands twice, again in line {again}; keep one"
                    )
                keys.add(key)
        # YAML 1.1 also reads `1:30` as 90 and `010` as 8, which nobody means.
        if isinstance(node, yaml.ScalarNode) and node.tag.endswith((":int", ":float")):
            text = node.value.replace("_", "")
            if ":" in text or re.match(r"[-+]?0[0-9]", text):
                raise Unfit(
                    f"{text[:80]} is {self.construct_object(node)} in YAML, in line {line}; write "
                    "it without colon and leading zero, or quote it"
                )
        sizes[node] = size
        return size

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node; of a wrong text PyYAML makes an error of any kind by its tag."""
        try:
            return super().construct_object(node, deep=deep)
        except (LookupError, AttributeError, TypeError, ArithmeticError):
            refusal = f"{str(node.value)[:80]!r} is no {node.tag.rpartition(':')[2]}"
            line = int(node.start_mark.line) + 1
            raise Unfit(f"{refusal}, in line {line}; correct it or quote it") from None
