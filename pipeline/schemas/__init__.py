"""JSON Schemas (draft 2020-12) of everything that is written to disk, and one `validate`.

`validate(instance, "record", where)` raises RecordError with file, JSON path, value and rule.

All schemas are read strictly, those that a person's files are held against too: a number is finite,
a whole number is an integer in type (6, not 6.0), and the `$` of a pattern is the end of the text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import extend
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from pipeline.documents import read_made
from pipeline.errors import RecordError, SamestepError
from pipeline.text import is_visible

SCHEMA_FOLDER = Path(__file__).parent
CONFIG_SCHEMAS = SCHEMA_FOLDER.parents[1] / "workflow" / "schemas"
"""Schemas of what a person writes: studies and claims."""


def _is_integer(_: Any, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(_: Any, value: object) -> bool:
    return _is_integer(_, value) or (isinstance(value, float) and math.isfinite(value))


def _pattern(_: Any, pattern: str, instance: object, __: Any) -> Iterator[ValidationError]:
    """Patterns as ECMA-262 has them: `$` is no place before a line end, and digits are ASCII."""
    if isinstance(instance, str) and not _compiled(pattern).search(instance):
        yield ValidationError(f"{instance[:80]!r} does not match {pattern!r}")


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"(?<!\\)\$", r"\\Z", pattern), re.ASCII)


_Validator = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    validators={"pattern": _pattern},
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer).redefine(
        "number", _is_number
    ),
)


AGAIN = {
    "archive": "fetch the archive again",
    "calibration": "run `python -m pipeline calibrate` again",
    "image": "run `make image` again",
    "manifest": "make the tokens again with `python -m pipeline tokens`",
    "metrics": "run `python -m pipeline metrics` again",
    "record": "run the training again",
    "spec": "run snakemake again",
    "step": "run the training again",
    "tokens": "run snakemake again, which writes it",
    "verdicts": "run `python -m pipeline claims` again",
    "yardstick": "run `python -m pipeline yardstick` again",
}
"""Fix for a file of the product's own, by its schema: it is made again, and never edited."""

FORMATS = FormatChecker()
"""Formats that schemas may name: those of jsonschema, and `visible`."""

FORMATS.checks("visible")(lambda value: not isinstance(value, str) or is_visible(value))


@cache
def validator(name: str) -> Draft202012Validator:
    """The validator of a schema, with references between our files resolved.

    `record` is `record.schema.json` beside this module, `config` and `claims` are those of
    `workflow/schemas`, and `config#name` is a part of one: its `$defs`.
    """
    file, _, part = name.partition("#")
    own = (CONFIG_SCHEMAS / f"{file}.schema.yaml").is_file()
    schema = _load(f"{file}.schema.{'yaml' if own else 'json'}")
    # A registry that retrieves what others refer to does so at each use.
    referred = ("spec.schema.json", "config.schema.yaml")
    resources = [(one, Resource.from_contents(_load(one), DRAFT202012)) for one in referred]
    checker: Draft202012Validator = _Validator(
        schema["$defs"][part] if part else schema,
        registry=Registry().with_resources(resources).crawl(),
        format_checker=FORMATS,
    )
    return checker


@cache
def _load(file: str) -> Any:
    """One of our schemas without the key `$schema`, for which jsonschema would take its own rules.

    It does so for every schema that another refers to.
    """
    is_json = file.endswith(".json")
    text = ((SCHEMA_FOLDER if is_json else CONFIG_SCHEMAS) / file).read_text(encoding="utf-8")
    # In Python alone YAML takes a tenth of a second of each command.
    schema = json.loads(text) if is_json else yaml.load(text, yaml.CSafeLoader)
    return {key: value for key, value in schema.items() if key != "$schema"}


def describe(error: ValidationError) -> str:
    """One line: JSON path, the value (shortened) and the rule that it breaks.

    Of a key that is missing or unknown it names the key and those that are there or expected.
    """
    place = f"at {error.json_path[:120]}"
    given: Any = error.instance
    if error.validator == "required":
        return f"{place}: {error.message[:160]}; it has {_some_of(given)}"
    schema: Any = error.schema if isinstance(error.schema, dict) else {}
    known = schema.get("properties")
    if error.validator == "additionalProperties" and known and error.validator_value is False:
        unknown = _some_of(set(given) - set(known))
        return f"{place}: unknown {unknown} (additionalProperties); expected {_some_of(known)}"
    value = json.dumps(given, ensure_ascii=False, default=str)
    if len(value) > 80:
        value = value[:77] + "..."
    rule = f"{error.validator}: {json.dumps(error.validator_value, ensure_ascii=False)}"
    if error.validator == "enum":  # its message is the same list
        return f"{place}: {value} breaks {rule}"
    if len(rule) > 120:
        rule = rule[:117] + "..."
    about = _yaml_hint(error) or error.message[:160]
    if error.validator == "pattern" and "description" in schema:
        about += f": {schema['description']}"
    return f"{place}: {value} breaks {rule} ({about})"


def _yaml_hint(error: ValidationError) -> str | None:
    """A hint on a plain word that YAML takes for another type, and how to write it."""
    given, wanted = error.instance, error.validator_value
    if error.validator != "type":
        return None
    if isinstance(given, str) and wanted in ("number", "integer"):
        parts = re.fullmatch(r"([-+]?\d+)(\.\d*)?[eE]([-+]?)(\d{1,9})", given.strip(), re.ASCII)
        if parts:
            whole, fraction, sign, exponent = parts.groups()
            written = f"{whole}{fraction or '.0'}e{sign or '+'}{exponent}"
            return f"YAML takes it for a text; write {written}"
    if wanted == "string" and isinstance(given, bool | int | float):
        kind = "truth value, as on, off, yes and no are" if isinstance(given, bool) else "number"
        return f"YAML takes it for a {kind}; quote it"
    return None


def _some_of(keys: Iterable[object]) -> str:
    """Up to 30 keys, each shortened."""
    names = sorted(str(key)[:80] for key in keys)
    more = ", ..." if len(names) > 30 else ""
    return f"keys {', '.join(map(repr, names[:30]))}{more}" if names else "no keys"


def first_error(instance: object, name: str) -> ValidationError | None:
    """The most telling error of `instance` by the schema `name`; None where it fits."""
    known = validator(name)
    # To ask for errors alone takes longer, and most have none.
    return None if known.is_valid(instance) else best_match(known.iter_errors(instance))


def validate(
    instance: object,
    name: str,
    where: str | Path,
    kind: type[SamestepError] = RecordError,
    fix: str | None = None,
) -> None:
    """Raise an error of this kind unless `instance` fits the schema `name`; `where` is the file.

    Without `fix` it is that of `AGAIN`: nobody is to edit what the product wrote.
    """
    if (error := first_error(instance, name)) is not None:
        raise kind(f"{where} {describe(error)}; {fix or AGAIN[name]}")


def read(path: Path, name: str, made_by: str) -> dict[str, Any]:
    """The JSON file that fits the schema `name`; an error names the command that makes it."""
    content = read_made(path, "", RecordError, made_by)
    validate(content, name, path)
    return dict(content)
