"""The command `doctor`: all probes, and a sentence with what is missing for a study or here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from pipeline import strategies
from pipeline.doctor import studies
from pipeline.doctor.probes import BROKEN, NOTE, OK, PROBES, Finding, note, strategy
from pipeline.errors import StudyError
from pipeline.study.load import load_study, shipped_studies

ELSEWHERE = ("cuda", "nccl", "apex", "rdma", "container", "image", "builders", "slurm")
"""Probes of what a study on one machine without a GPU never needs."""

PREFIX = "study:"
"""Begins the name of a study's probe."""


def probes() -> Iterator[tuple[str, Callable[[], Finding]]]:
    """Every probe by name: the machine, strategies that need more than torch, shipped studies.

    A strategy whose file cannot be used has a probe too, which says so.
    """
    yield from PROBES.items()
    for name in strategies.names():
        try:
            chosen = strategies.load(name, {})
            needs_more = bool(chosen.requires or chosen.needs_of_torch)
        except StudyError:
            needs_more = True
        if needs_more:
            yield name, partial(strategy, name)
    for name, path in shipped_studies().items():
        yield PREFIX + name, partial(studies.study, path)


def examine(probe: Callable[[], Finding]) -> Finding:
    """Finding of a probe; one that fails is a line, so that the others are still seen."""
    try:
        return probe()
    except StudyError as error:
        what, _, fix = " ".join(str(error).split()).rpartition("; ")
        return Finding(BROKEN, what or fix, fix)
    except Exception as error:
        message = " ".join(str(error).split())[:200]
        text = f"could not be probed ({type(error).__name__}: {message})"
        return note(text, "what needs it may fail here")


def show(study: Path | None, *, everything: bool) -> None:
    """Run the probes and print what they found."""
    wanted = dict(probes())
    if study is not None:
        asked = load_study(study)
        needed = studies.needs(asked)
        wanted = {name: probe for name, probe in wanted.items() if name in needed}
        wanted["corpus"] = partial(studies.corpus, asked)
        wanted[PREFIX + asked.name] = partial(studies.study, study)
    findings = {name: examine(probe) for name, probe in wanted.items()}
    print(sentence(findings))
    shown = findings if everything else lacking(findings, of_study=study is not None)
    print("\n".join(lines(shown)), end="\n" * bool(shown))
    if not (everything or study):
        print("`--study NAME` says what a study lacks here; `--all` prints every probe.")


def sentence(findings: Mapping[str, Finding]) -> str:
    """A sentence on the probed studies that this machine can run, whole or in part."""
    status = {
        name.removeprefix(PREFIX): finding.status
        for name, finding in findings.items()
        if name.startswith(PREFIX)
    }
    parts = [
        ", ".join(names) + words
        for words, wanted in (("", OK), (" in part", NOTE))
        if (names := [name for name, one in status.items() if one == wanted])
    ]
    return f"This machine runs {'; '.join(parts) or 'no cell of ' + ', '.join(status)}."


def lacking(findings: Mapping[str, Finding], *, of_study: bool) -> dict[str, Finding]:
    """Probes to mend: for a study, or for those of one machine without GPU."""
    shown = {}
    for name, finding in findings.items():
        asked = of_study or not (name in ELSEWHERE or name.startswith(PREFIX))
        if finding.status == BROKEN or (asked and finding.status != OK and finding.fix):
            shown[name] = finding
    return shown


def lines(findings: Mapping[str, Finding]) -> Iterator[str]:
    """Aligned lines; the way to get a thing stands below it."""
    width = max(map(len, findings), default=0)
    for name, finding in findings.items():
        yield f"{finding.status:7}  {name:{width}}  {finding.text}"
        if finding.fix:
            yield f"{'':7}  {'':{width}}  -> {finding.fix}"
