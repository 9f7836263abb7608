"""The command `doctor`: what can run on this machine, and how to get what is missing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path

from pipeline import strategies
from pipeline.corpus.sources import check_files
from pipeline.doctor import probes as machine
from pipeline.doctor.probes import BROKEN, NOTE, OK, Finding, missing, note, ok
from pipeline.errors import CorpusError, StudyError, UnsupportedError
from pipeline.resolved import ResolvedRun, first_runs
from pipeline.study.load import load_study, shipped_studies
from pipeline.text import plural
from pipeline.training.devices import without_kernels

PREFIX = "study:"


def probes(study: Path | None = None) -> Iterator[tuple[str, Callable[[], Finding]]]:
    """Every probe by name: the machine, strategies that need more than torch, and studies.

    Those are the shipped ones, or `study` with its corpus. A strategy whose file cannot be used has
    a probe too, which says so.
    """
    named = shipped_studies() if study is None else {load_study(study).name: study}
    yield from machine.PROBES.items()
    for name in strategies.names():
        try:
            chosen = strategies.load(name, {})
            needs_more = bool(chosen.requires or chosen.needs_of_torch)
        except StudyError:
            needs_more = True
        if needs_more:
            yield name, partial(machine.strategy, name)
    if study is not None:
        yield "corpus", partial(corpus, study)
    for name, path in named.items():
        yield PREFIX + name, partial(cells, path)


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


def show(probes: Iterable[tuple[str, Callable[[], Finding]]]) -> None:
    """Print a sentence on the studies that can run, whole or in part, and a line for each probe.

    The way to get what is missing stands below it.
    """
    findings = {name: examine(probe) for name, probe in probes}
    studies = defaultdict[str, list[str]](list)
    for name in findings:
        if name.startswith(PREFIX):
            studies[findings[name].status].append(name.removeprefix(PREFIX))
    if studies:
        parts = [", ".join(studies[OK])] if studies[OK] else []
        parts += [f"{', '.join(studies[NOTE])} in part"] if studies[NOTE] else []
        none = f"no cell of {', '.join(chain(*studies.values()))}"
        print(f"This machine runs {'; '.join(parts) or none}.")
    width = max(map(len, findings))
    for name, finding in findings.items():
        print(f"{finding.status:7}  {name:{width}}  {finding.text}")
        if finding.fix:
            print(f"{'':7}  {'':{width}}  -> {finding.fix}")


def cells(path: Path) -> Finding:
    """Ok where all cells can run at every node count; else which cannot, and why."""
    runs = first_runs(load_study(path))
    reasons = defaultdict[str, list[str]](list)
    for run in runs:
        if (reason := why_not(run)) is not None:
            reasons[reason].append(f"{run.spec.cell}/n{run.spec.world.nodes}")
    blocked = sum(map(len, reasons.values()))
    text = f"{len(runs) - blocked} of {len(runs)} cells and node counts can run here"
    if not blocked:
        return ok(text)
    blockers = "; ".join(f"{', '.join(cells)}: {reason}" for reason, cells in reasons.items())
    fix = "see the lines above; a cell that cannot run is recorded as unsupported"
    return (missing if blocked == len(runs) else note)(f"{text}; {blockers}", fix)


def corpus(path: Path) -> Finding:
    """The files of a study's text and tokeniser."""
    study = load_study(path)
    try:
        check_files(study.corpus, study.tokenizer)
    except CorpusError as error:
        return missing(*str(error).split("; ", 1))
    return ok(f"source {study.corpus['source']}")


def why_not(run: ResolvedRun) -> str | None:
    """Reason why a run cannot be made here, or None."""
    import torch

    from pipeline.precision import make_precision

    spec = run.spec
    if spec.world.device == "cuda":
        own = run.gpus_per_machine
        have = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if have < own:
            return f"needs {plural(own, 'GPU')} on one machine, this one has {have}"
        capability, built_for = torch.cuda.get_device_capability(0), torch.cuda.get_arch_list()
        if (reason := without_kernels(capability, built_for)) is not None:
            return reason
    try:
        run.strategy.check()
        run.strategy.check_precision(spec.precision)
        make_precision(spec.precision, spec.world.device)
    except UnsupportedError as error:
        return str(error)
    if spec.world.num_machines > 1 and machine.slurm().status != OK:
        return f"needs {spec.world.num_machines} machines, and no SLURM answers here"
    return None
