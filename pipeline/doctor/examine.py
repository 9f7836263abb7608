"""All probes, and what each finds; none that fails takes the others down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from pipeline import strategies
from pipeline.doctor.probes import PROBES, strategy
from pipeline.doctor.studies import study
from pipeline.doctor.types import Finding, broken, note
from pipeline.errors import StudyError
from pipeline.study.load import shipped_studies


def probes() -> Iterator[tuple[str, Callable[[], Finding]]]:
    """Every probe by name: the machine, strategies that need more than torch, shipped studies.

    A strategy whose file cannot be used has a probe too, which says so.
    """
    yield from PROBES.items()
    for name in strategies.names():
        if not _needs_torch_alone(name):
            yield name, partial(strategy, name)
    for name, path in shipped_studies().items():
        yield f"study:{name}", partial(study, path)


def _needs_torch_alone(name: str) -> bool:
    try:
        return not strategies.load(name, {}).requires
    except StudyError:
        return False


def examine(probe: Callable[[], Finding]) -> Finding:
    """What a probe finds; one that fails is a line, so that the others are still seen."""
    try:
        return probe()
    except StudyError as error:
        what, _, fix = " ".join(str(error).split()).rpartition("; ")
        return broken(what or fix, fix)
    except Exception as error:
        message = " ".join(str(error).split())[:200]
        text = f"could not be probed ({type(error).__name__}: {message})"
        return note(text, "what needs it may fail here")
