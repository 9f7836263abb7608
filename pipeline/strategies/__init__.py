"""Strategies, one file each; adding one is adding one file (see `base.Strategy`).

`names()` lists them without importing any; `load(name, options)` makes one.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.errors import StudyError
from pipeline.strategies.base import Strategy
from pipeline.study.spec import RunSpec

MAX_KNOB = 1_000_000
"""Of a strategy's numbers: MiB, milliseconds and counts."""


def names() -> list[str]:
    """Names of all strategies: the stems of this folder's files but `base` and `_private` ones."""
    stems = (path.stem for path in Path(__file__).parent.glob("*.py"))
    return sorted(stem for stem in stems if stem != "base" and not stem.startswith("_"))


def table() -> str:
    """A Markdown table of all strategies: what each is, its knobs with defaults, its packages."""
    rows = ["| strategy | what it is | knobs and defaults | needs |", "|---|---|---|---|"]
    for name in names():
        strategy = load(name, {})
        about = " ".join((_module(name).__doc__ or "").split("\n\n")[0].split())
        knobs = ", ".join(f"`{f.name}` {getattr(strategy, f.name)}" for f in fields(strategy))
        needs = ", ".join(strategy.requires)
        rows.append(f"| `{name}` | {about} | {knobs or 'none'} | {needs or 'torch alone'} |")
    return "\n".join(rows)


def check(runs: Iterable[RunSpec]) -> None:
    """Raise StudyError for a run whose strategy, options or world do not go together."""
    for run in runs:
        load(run.strategy, run.options).check_spec(run)


def load(name: str, options: Mapping[str, Any]) -> Strategy:
    """The strategy of that name with its knobs set.

    Raises StudyError for an unknown one, and for one whose file cannot be imported or makes none.
    """
    if name not in names():
        raise StudyError(
            f"strategy {name[:80]!r} has no file of its own in pipeline/strategies; use one of "
            + ", ".join(names())
        )
    module = _module(name)
    kinds = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, Strategy)
        and kind.__module__ == module.__name__
    ]
    if len(kinds) != 1:
        raise StudyError(f"{module.__file__} defines {len(kinds)} strategies; expected exactly one")
    knobs = {field.name for field in fields(kinds[0])}
    for option in options:
        if option not in knobs:
            raise StudyError(
                f"strategy {name} has no option {option!r}; "
                f"use one of {', '.join(sorted(knobs)) or 'none'}"
            )
    try:
        strategy = kinds[0](**options)
    except TypeError as error:
        raise _broken(name, "makes no strategy", error) from error
    for option, value in options.items():
        wanted = type(getattr(kinds[0], option))
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            raise StudyError(
                f"strategy {name} option {option} = {value!r} is no {wanted.__name__}; "
                "fix the cell's options"
            )
        if wanted in (int, float) and not 0 <= value <= MAX_KNOB:
            raise StudyError(
                f"strategy {name} option {option} = {value!r} is not from 0 to "
                f"{MAX_KNOB}; fix the cell's options"
            )
    return strategy


def _module(name: str) -> ModuleType:
    """The module of a strategy; raises StudyError where its file cannot be imported."""
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except Exception as error:  # whatever a file does wrong, it is named
        raise _broken(name, "cannot be imported", error) from error


def _broken(name: str, what: str, error: Exception) -> StudyError:
    said = " ".join(str(error).split())[:200]
    return StudyError(
        f"pipeline/strategies/{name}.py {what} ({type(error).__name__}: {said}); "
        "mend that file, or move it out of the folder"
    )
