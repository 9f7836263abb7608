"""JSON Schemas (draft 2020-12) of everything that is written to disk, and one `validate`.

`validate(instance, "record", where)` raises RecordError with file, JSON path, value and rule.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import ValidationError, best_match
from referencing import Registry, Resource

from pipeline.errors import RecordError

SCHEMA_FOLDER = Path(__file__).parent


@cache
def validator(name: str) -> Draft202012Validator:
    """The validator of `<name>.schema.json`, with references between our files resolved."""
    schemas = {p.name: json.loads(p.read_text()) for p in SCHEMA_FOLDER.glob("*.schema.json")}
    registry: Registry[Any] = Registry().with_resources(
        (file, Resource.from_contents(schema)) for file, schema in schemas.items()
    )
    return Draft202012Validator(
        schemas[f"{name}.schema.json"], registry=registry, format_checker=FormatChecker()
    )


def describe(error: ValidationError) -> str:
    """One line: JSON path, the value (shortened) and the rule that it breaks."""
    value = json.dumps(error.instance, ensure_ascii=False, default=str)
    if len(value) > 80:
        value = value[:77] + "..."
    rule = f"{error.validator}: {json.dumps(error.validator_value, ensure_ascii=False)}"
    if len(rule) > 120:
        rule = rule[:117] + "..."
    return f"at {error.json_path}: {value} breaks {rule} ({error.message[:160]})"


def first_error(instance: object, name: str) -> ValidationError | None:
    """What tells most of where `instance` breaks the schema `name`; None where it fits."""
    error: ValidationError | None = best_match(validator(name).iter_errors(instance))
    return error


def validate(instance: object, name: str, where: str | Path) -> None:
    """Raise RecordError unless `instance` fits the schema `name`; `where` names the file."""
    error = first_error(instance, name)
    if error is not None:
        raise RecordError(f"{where} {describe(error)}")


def read(path: Path, name: str, made_by: str) -> dict[str, Any]:
    """The JSON file that fits the schema `name`; an error names the command that makes it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} cannot be read ({error}); run `{made_by}` first") from None
    validate(content, name, path)
    return dict(content)


def validate_lines(lines: Iterable[tuple[int, object]], name: str, where: str | Path) -> None:
    """Validate numbered JSON lines; the error names the line.

    A study has hundreds of thousands, so most are accepted by a few comparisons, and the validator,
    which takes over ten times as long, is asked about the others.
    """
    check, surely_fits = validator(name), quick(name)
    for number, line in lines:
        if not surely_fits(line) and not check.is_valid(line):
            validate(line, name, f"{where}:{number}")


@cache
def quick(name: str) -> Callable[[object], bool]:
    """Whether an object surely fits the schema `name`; False says nothing.

    For objects of numbers, booleans and nulls with bounds, and of such objects. A keyword that is
    not known here makes it False for every object that has the property.
    """
    return _quick_object(validator(name).schema)


def _quick_object(schema: Any) -> Callable[[object], bool]:
    checks = {key: _quick_value(rule) for key, rule in schema["properties"].items()}
    required = set(schema["required"])

    def fits(value: object) -> bool:
        if type(value) is not dict or not required <= value.keys():
            return False
        return all(key in checks and checks[key](one) for key, one in value.items())

    return fits if schema["additionalProperties"] is False else lambda _: False


def _quick_value(rule: Any) -> Callable[[Any], bool]:
    if rule.get("type") == "object":
        return _quick_object(rule)
    if set(rule) - {"type", "minimum", "exclusiveMinimum", "description"} or "type" not in rule:
        return lambda _: False
    names = [rule["type"]] if isinstance(rule["type"], str) else rule["type"]
    types = {python for name in names for python in _QUICK_TYPES.get(name, ())}
    least, over = rule.get("minimum", -math.inf), rule.get("exclusiveMinimum", -math.inf)

    def fits(value: Any) -> bool:
        if type(value) not in types:
            return False
        return value is None or (least <= value < math.inf and value > over)

    return fits


_QUICK_TYPES = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
