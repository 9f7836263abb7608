"""A schema as a few comparisons that say whether a value surely fits it; False says nothing.

A study has thousands of records and hundreds of thousands of steps, and nearly all of them fit.
These comparisons take a tenth of the time of jsonschema's walk, which decides about all others.
So they may be too strict, and they never accept what the validator refuses: a keyword that is not
known here, or a value that Python has in another type than JSON's, makes them say False.
"""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

Check = Callable[[Any], bool]
"""Whether a value surely fits."""

_UNCHECKED = {"$id", "title", "description", "$defs", "then", "else"}
"""Keywords without a rule of their own; `if` sees to `then` and `else`."""

_OF_NUMBERS = {"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "description"}
_NUMBERS, _SCALARS = (int, float), (str, int, float, bool, type(None))

_BOUNDS: Mapping[str, tuple[tuple[type, ...], Callable[[Any, Any], bool]]] = {
    "minLength": ((str,), lambda value, rule: len(value) >= rule),
    "maxLength": ((str,), lambda value, rule: len(value) <= rule),
    "minItems": ((list,), lambda value, rule: len(value) >= rule),
    "maxItems": ((list,), lambda value, rule: len(value) <= rule),
    "minimum": (_NUMBERS, operator.ge),
    "maximum": (_NUMBERS, operator.le),
    "exclusiveMinimum": (_NUMBERS, operator.gt),
    "exclusiveMaximum": (_NUMBERS, operator.lt),
}
"""Keyword -> the types that it bounds, and whether a value is within the bound."""

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


class Quick:
    """The checks of one file's schemas.

    `load` gives the content of another file that it refers to, `compiled` the expression of a
    pattern as the validator reads it.
    """

    def __init__(
        self, root: Any, load: Callable[[str], Any], compiled: Callable[[str], re.Pattern[str]]
    ) -> None:
        self.root, self._load, self._compiled = root, load, compiled

    def check(self, schema: Any) -> Check:
        """The check of a schema within this file."""
        if isinstance(schema, bool):
            return lambda _: schema
        if schema.keys() <= _OF_NUMBERS and "type" in schema:
            return _number(schema)
        checks: list[Check] = []
        for keyword, rule in schema.items():
            if keyword in _UNCHECKED:
                continue
            if keyword in _BOUNDS:
                checks.append(_bound(keyword, rule))
            elif keyword in _MAKERS:
                checks.append(_MAKERS[keyword](self, rule, schema))
            else:
                return lambda _: False
        return _all(checks)

    def _ref(self, rule: str, _: Any) -> Check:
        file, _, pointer = rule.partition("#")
        home = Quick(self._load(file), self._load, self._compiled) if file else self

        # Made when it is first asked, as a schema may refer to itself.
        @cache
        def referred() -> Check:
            found = home.root
            for key in pointer.split("/")[1:]:
                found = found[key]
            return home.check(found)

        return lambda value: referred()(value)

    def _type(self, rule: str | Sequence[str], _: Any) -> Check:
        types = {kind for name in ([rule] if isinstance(rule, str) else rule)
                 for kind in _TYPES[name]}  # fmt: skip
        largest = sys.float_info.max  # a number is finite

        def fits(value: Any) -> bool:
            kind = type(value)
            return kind in types and (kind is not float or -largest <= value <= largest)

        return fits

    def _const(self, rule: Any, _: Any) -> Check:
        return self._enum([rule], _)

    def _enum(self, rule: Sequence[Any], _: Any) -> Check:
        known = {(type(one), one) for one in rule if type(one) in _SCALARS}
        return lambda value: type(value) in _SCALARS and (type(value), value) in known

    def _pattern(self, rule: str, _: Any) -> Check:
        found = self._compiled(rule).search
        return lambda value: type(value) is not str or found(value) is not None

    def _required(self, rule: Sequence[str], _: Any) -> Check:
        names = frozenset(rule)
        return lambda value: type(value) is not dict or names <= value.keys()

    def _properties(self, rule: Mapping[str, Any], _: Any) -> Check:
        checks = {name: self.check(schema) for name, schema in rule.items()}

        def fits(value: Any) -> bool:
            if type(value) is dict:
                for key, one in value.items():
                    if key in checks and not checks[key](one):
                        return False
            return True

        return fits

    def _additional_properties(self, rule: Any, schema: Any) -> Check:
        if "patternProperties" in schema:
            return lambda _: False
        known, check = frozenset(schema.get("properties", ())), self.check(rule)

        def fits(value: Any) -> bool:
            if type(value) is not dict or value.keys() <= known:
                return True
            return all(check(one) for key, one in value.items() if key not in known)

        return fits

    def _items(self, rule: Any, schema: Any) -> Check:
        if "prefixItems" in schema:
            return lambda _: False
        check = self.check(rule)
        return lambda value: type(value) is not list or all(map(check, value))

    def _all_of(self, rule: Sequence[Any], _: Any) -> Check:
        return _all([self.check(schema) for schema in rule])

    def _if(self, rule: Any, schema: Any) -> Check:
        # That a value fits the condition is sure; that it does not, only the validator can say.
        condition, then = self.check(rule), self.check(schema.get("then", True))
        return lambda value: condition(value) and then(value)


def _all(checks: Sequence[Check]) -> Check:
    """Whether all of them say so; steps are so many that a loop over two would be seen."""
    if len(checks) == 1:
        return checks[0]
    if len(checks) == 2:
        one, other = checks
        return lambda value: one(value) and other(value)
    return lambda value: all(fits(value) for fits in checks)


def _number(schema: Mapping[str, Any]) -> Check:
    """Of a number with bounds, or null, in two comparisons; most values of a record are numbers."""
    named = schema["type"]
    types = {kind for name in ([named] if isinstance(named, str) else named)
             for kind in _TYPES[name]}  # fmt: skip
    least, most = schema.get("minimum", -math.inf), schema.get("maximum", sys.float_info.max)
    over, under = (
        schema.get("exclusiveMinimum", -math.inf),
        schema.get("exclusiveMaximum", math.inf),
    )

    def fits(value: Any) -> bool:
        if type(value) not in types:
            return False
        return type(value) not in _NUMBERS or (least <= value <= most and over < value < under)

    return fits


def _bound(keyword: str, rule: Any) -> Check:
    types, holds = _BOUNDS[keyword]
    return lambda value: type(value) not in types or holds(value, rule)


_MAKERS: Mapping[str, Callable[[Quick, Any, Any], Check]] = {
    "$ref": Quick._ref,
    "type": Quick._type,
    "const": Quick._const,
    "enum": Quick._enum,
    "pattern": Quick._pattern,
    "required": Quick._required,
    "properties": Quick._properties,
    "additionalProperties": Quick._additional_properties,
    "items": Quick._items,
    "allOf": Quick._all_of,
    "if": Quick._if,
}
"""Keyword -> what makes its check of the keyword's value and of the schema around it."""
