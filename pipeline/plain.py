"""Content that a document may hold: plain values as JSON has them, not too deep nor too large.

YAML is read by PyYAML's safe loader, which here refuses what that lets pass.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from pipeline.text import unprintable

MAX_DEPTH = 20
# An integer in any other program that reads our JSON.
MAX_BITS = 63
MAX_VALUES = 20_000
"""Of a YAML file, each alias counted as all that it stands for."""


class Unfit(ValueError):
    """A document that could be read, but holds what none of ours does."""


def duplicate(key: str, line: int | None = None) -> str:
    """Message on a key that a mapping holds twice, the second time in `line`."""
    place = "" if line is None else f", again in line {line}"
    return f"the key {key[:80]!r} stands twice{place}; keep one"


def too_deep(where: str) -> str:
    """Message on a value that is nested over `MAX_DEPTH` deep."""
    return f"at {where[:80]} it is nested over {MAX_DEPTH} deep; expected a study's few levels"


class _FaultError(Exception):
    """A fault of a value, and the place of the value within that which is checked."""

    def __init__(self, message: str) -> None:
        self.message, self.place = message, ""


def check_plain(value: Any, *, printable: bool) -> None:
    """Raise Unfit, naming the place, unless `value` is what JSON can hold and we can write."""
    try:
        _check(value, 0, printable)
    except _FaultError as fault:
        where = f"${fault.place}"
        raise Unfit(
            f"at {where[:80]}: {fault.message}" if fault.message else too_deep(where)
        ) from None


def _check(value: Any, depth: int, printable: bool) -> None:
    """Raise _FaultError, with no message where it is too deep; places are put together on the way.

    So a document of many values, of which none is wrong, costs no text.
    """
    kind = type(value)
    if depth > MAX_DEPTH:
        raise _FaultError("")
    if kind is dict or kind is list:
        for key, child in value.items() if kind is dict else enumerate(value):
            if kind is dict:
                if type(key) is not str:
                    raise _FaultError(f"the key {str(key)[:80]} is no text; quote it")
                _check(key, depth, printable)
            try:
                _check(child, depth + 1, printable)
            except _FaultError as fault:
                fault.place = (f".{key}" if kind is dict else f"[{key}]") + fault.place
                raise
    elif kind is str:
        if value.isascii() and value.isprintable():
            return
        if any("\ud800" <= c <= "\udfff" for c in value):
            raise _FaultError(f"half a character ({value[:80]!a}); write it whole")
        if printable and (wrong := unprintable(value)):
            raise _FaultError(
                f"{value[:80]!a} holds {wrong!a}, which cannot be printed; leave it out"
            )
    elif kind is int:
        if value.bit_length() > MAX_BITS:
            bits = value.bit_length()
            raise _FaultError(f"an integer of {bits} bits; the most is {MAX_BITS}")
    elif kind is float:
        if not math.isfinite(value):
            raise _FaultError(f"{value} is no finite number; write one")
    elif value is not None and kind is not bool:
        raise _FaultError(f"a {kind.__name__} is nothing that JSON has; put it in quotes")


class Loader(yaml.SafeLoader):
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
            raise Unfit(too_deep("$"))
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if is_alias and node not in self._sizes:
            raise Unfit(f"a value holds itself by an alias, in line {_line(node)}; write it out")
        if is_alias:
            self._num_values += self._sizes[node]
        else:
            self._sizes[node] = self._num_values - before
        if self._num_values > MAX_VALUES:
            raise Unfit(f"with its aliases it has over {MAX_VALUES} values; have fewer aliases")
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node; of a wrong text PyYAML makes an error of any kind by its tag."""
        try:
            return super().construct_object(node, deep=deep)
        except (LookupError, AttributeError, TypeError, ArithmeticError):
            refusal = f"{str(node.value)[:80]!r} is no {node.tag.rpartition(':')[2]}"
            raise Unfit(f"{refusal}, in line {_line(node)}; correct it or quote it") from None

    def number(self, node: yaml.ScalarNode) -> int | float:
        """A number in one of the forms that JSON, or a programmer, reads as YAML does.

        YAML 1.1 also reads `1:30` as 90 and `010` as 8, which nobody means.
        """
        text = node.value.replace("_", "")
        is_whole = node.tag.endswith(":int")
        value = self.construct_yaml_int(node) if is_whole else self.construct_yaml_float(node)
        if ":" in text or re.match(r"[-+]?0[0-9]", text):
            raise Unfit(
                f"{text[:80]} is {value} in YAML, in line {_line(node)}; write it without "
                "colon and leading zero, or quote it"
            )
        return value

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A mapping; of two equal keys YAML's own readers keep the last in silence."""
        node = super().compose_mapping_node(anchor)
        keys = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in keys:
                raise Unfit(duplicate(key.value, _line(key)))
            keys.add(key.value)
        return node


for _tag in ("int", "float"):
    Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", Loader.number)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
