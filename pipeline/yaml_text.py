"""YAML as `pipeline.documents` reads it: PyYAML's safe loader, and what it lets pass."""

from __future__ import annotations

import re
from typing import Any

import yaml

from pipeline.plain import MAX_DEPTH, Refused, duplicate, too_deep

MAX_VALUES = 20_000


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
            raise Refused(too_deep("$"))
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if is_alias and node not in self._sizes:
            raise Refused(f"a value holds itself by an alias, in line {_line(node)}; write it out")
        if is_alias:
            self._num_values += self._sizes[node]
        else:
            self._sizes[node] = self._num_values - before
        if self._num_values > MAX_VALUES:
            raise Refused(f"with its aliases it has over {MAX_VALUES} values; have fewer aliases")
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node; of a wrong text PyYAML makes an error of any kind by its tag."""
        try:
            return super().construct_object(node, deep=deep)
        except (LookupError, AttributeError, TypeError, ArithmeticError):
            said = f"{str(node.value)[:80]!r} is no {node.tag.rpartition(':')[2]}"
            raise Refused(f"{said}, in line {_line(node)}; correct it or quote it") from None

    def number(self, node: yaml.ScalarNode) -> int | float:
        """A number in one of the forms that JSON, or a programmer, reads as YAML does.

        YAML 1.1 also reads `1:30` as 90 and `010` as 8, which nobody means.
        """
        text = node.value.replace("_", "")
        is_whole = node.tag.endswith(":int")
        value = self.construct_yaml_int(node) if is_whole else self.construct_yaml_float(node)
        if ":" in text or re.match(r"[-+]?0[0-9]", text):
            raise Refused(
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
                raise Refused(duplicate(key.value, _line(key)))
            found.add(key.value)
        return node


for _tag in ("int", "float"):
    Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", Loader.number)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
