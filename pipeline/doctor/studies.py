"""Cells of the shipped studies that can run on this machine."""

from __future__ import annotations

from pathlib import Path

from pipeline.corpus.sources import check_files
from pipeline.doctor import probes
from pipeline.doctor.probes import OK, Finding, missing, note, ok
from pipeline.errors import CorpusError, UnsupportedError
from pipeline.metrics.select import plural
from pipeline.resolved import resolve
from pipeline.study.expansion import expand
from pipeline.study.load import load_study
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study
from pipeline.training.devices import without_kernels


def study(path: Path) -> Finding:
    """Ok where all cells can run at every node count; else which cannot, and why."""
    runs = [spec for spec in expand(load_study(path)) if spec.repeat == 0]
    reasons: dict[str, list[str]] = {}
    blocked = 0
    for spec in runs:
        if (reason := why_not(spec)) is not None:
            blocked += 1
            reasons.setdefault(reason, []).append(f"{spec.cell}/n{spec.world.nodes}")
    text = f"{len(runs) - blocked} of {len(runs)} cells and node counts can run here"
    if not blocked:
        return ok(text)
    blockers = "; ".join(f"{', '.join(cells)}: {reason}" for reason, cells in reasons.items())
    fix = "see the lines above; a cell that cannot run is recorded as unsupported"
    return (missing if blocked == len(runs) else note)(f"{text}; {blockers}", fix)


def needs(study: Study) -> set[str]:
    """Names of the probes that say whether a study can run, those of its strategies among them."""
    runs = expand(study)
    names = {"python", "torch", "cores", "memory", "disk", study.cluster.backend}
    names |= {spec.strategy for spec in runs}
    asked = {
        "cuda": study.cluster.device == "cuda",
        "apex": any(spec.precision.startswith("apex") for spec in runs),
        "emulated-network": study.cluster.network == "emulated",
        "slurm": any(spec.world.num_machines > 1 for spec in runs),
        "container": study.image_digest is not None,
        "image": study.image_digest is not None,
    }
    return names | {name for name, is_needed in asked.items() if is_needed}


def corpus(study: Study) -> Finding:
    """The files of a study's text and tokeniser."""
    try:
        check_files(study.corpus, study.tokenizer)
    except CorpusError as error:
        return missing(*str(error).split("; ", 1))
    return ok(f"source {study.corpus['source']}")


def why_not(spec: RunSpec) -> str | None:
    """Reason why a run cannot be made here, or None."""
    import torch

    from pipeline.precision import make_precision

    run = resolve(spec)
    if spec.world.device == "cuda":
        own = run.gpus_per_machine
        have = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if have < own:
            return f"needs {plural(own, 'GPU')} on one machine, this one has {have}"
        reason = without_kernels(torch.cuda.get_device_capability(0), torch.cuda.get_arch_list())
        if reason is not None:
            return reason
    try:
        run.strategy.check()
        run.strategy.check_precision(spec.precision)
        make_precision(spec.precision, spec.world.device)
    except UnsupportedError as error:
        return str(error)
    if spec.world.num_machines > 1 and probes.slurm().status != OK:
        return f"needs {spec.world.num_machines} machines, and no SLURM answers here"
    return None
