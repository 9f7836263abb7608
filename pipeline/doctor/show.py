"""The command `doctor`: what can run on this machine, and how to get what is missing.

With `--site` it holds workflow/site.yaml against its cluster.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from pipeline import strategies
from pipeline.corpus.sources import check_files
from pipeline.doctor import probes as machine
from pipeline.doctor.probes import BROKEN, NOTE, OK, Finding, failure, missing, note, ok
from pipeline.errors import CorpusError, LaunchError, StudyError, UnsupportedError
from pipeline.launch.slurm.request import Request, allocation
from pipeline.machine.image import RUNTIMES, enter
from pipeline.machine.site import NO_RUNTIME, PYXIS, SITE_FILE, Site, load_site
from pipeline.resolved import ResolvedRun, first_runs
from pipeline.study.expansion import tokens_spec
from pipeline.study.load import load_study, shipped_studies
from pipeline.text import plural
from pipeline.training.devices import without_kernels

PREFIX = "study:"
Probes = Iterable[tuple[str, Callable[[], Finding]]]


def show(probes: Probes) -> None:
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


def of_machine(study: Path | None = None) -> Probes:
    """Every probe by name: the machine, strategies that need more than torch, and studies.

    Those are the shipped ones, or `study` with its corpus. A strategy whose file cannot be used has
    a probe too, which says so.
    """
    named = shipped_studies() if study is None else {load_study(study).name: study}
    yield from machine.PROBES.items()
    for name in strategies.names():
        with suppress(StudyError):
            chosen = strategies.load(name, {})
            if not (chosen.requires or chosen.needs_of_torch):
                continue
        yield name, partial(machine.strategy, name)
    if study is not None:
        yield "corpus", partial(corpus, study)
    for name, path in named.items():
        yield PREFIX + name, partial(cells, path)


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
        check_files(tokens_spec(study))
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


def of_site() -> dict[str, Callable[[], Finding]]:
    """Every probe of `--site` by name; raises LaunchError for a site file that cannot be used."""
    site = load_site()
    to_hub = replace(site, partition=site.network_partition)
    variables = ", ".join(f"{k}={v}" for k, v in site.environment.items()) or "no variables"
    return {
        "slurm": machine.slurm,
        "before": partial(before, site),
        "jobs": partial(asked, site, gpus=0),
        "gpus": partial(asked, site, gpus=1),
        **({"network": partial(asked, to_hub, gpus=0)} if site.network_partition else {}),
        "accounting": partial(accounting, site),
        "container": partial(container, site),
        "folders": partial(folders, site),
        "environment": partial(ok, variables),
    }


def before(site: Site) -> Finding:
    """Run the lines that begin a job on this machine."""
    if failed := failure("sh", "-c", site.script()):
        return missing(failed, f"correct {SITE_FILE}")
    return ok("; ".join(site.before) or "no lines")


def asked(site: Site, gpus: int) -> Finding:
    """Ask sbatch whether it would take a job for one node; none is sent."""
    sbatch, *options = allocation(site, 1, [Request(1, gpus, 1000, 10, site)])
    if shutil.which(sbatch) is None:
        return missing("no sbatch", "run on a cluster's login node")
    failed, words = failure(sbatch, "--test-only", *options, "--wrap=true"), " ".join(options)
    if failed is None:
        return ok(f"SLURM takes {words}")
    fix = f"correct {SITE_FILE}; `sinfo` and `sacctmgr show assoc` list what there is"
    if gpus:
        fix = f"correct `gpus` in {SITE_FILE}; a study on CPUs needs none"
    return missing(f"SLURM refuses {words}: {failed}", fix)


def accounting(site: Site) -> Finding:
    """Ask sacct, by which the end of each job is seen."""
    if not site.accounting:
        return ok("squeue is asked how jobs stand")
    there = shutil.which("sacct") is not None
    failed = failure("sacct", "--allocations", "--jobs=1") if there else "no sacct"
    return missing(failed, f"write `accounting: false` in {SITE_FILE}") if failed else ok("sacct")


def container(site: Site) -> Finding:
    """Look for the runtime after the lines that begin a job, and have it take the image."""
    if site.runtime == NO_RUNTIME:
        return note("none: ranks run on the nodes themselves, by the checkout's .venv")
    if site.runtime == PYXIS:
        question = "srun --help 2>&1 | grep -- --container-image"
        absent = "srun has no --container-image"
        fix = f"ask the site for pyxis, or take another `runtime` in {SITE_FILE}"
    else:
        question = f"command -v {' || command -v '.join(RUNTIMES)}"
        absent = f"no {' or '.join(RUNTIMES)}"
        fix = f"load its module by a line of `before` in {SITE_FILE}, or install it"
    if failure("sh", "-c", f"{site.script()}{question}") is not None:
        return missing(absent, fix)
    packed = machine.image()
    if packed.status == OK and site.runtime == PYXIS:
        try:
            enter(machine.IMAGE, site, device="cpu", folders=())
        except LaunchError as error:
            what, _, fix = str(error).partition("; ")
            return missing(what, fix)
    return replace(packed, text=f"{site.runtime}; {packed.text}")


def folders(site: Site) -> Finding:
    """Folders of the site that this machine has; a compute node may have others."""
    paths = [path.partition(":")[0] for path in site.mounts]
    absent = [path for path in paths if not Path(path).exists()]
    if absent:
        text = f"not on this machine: {', '.join(absent)}"
        return note(text, "a job whose node lacks one fails; run this on such a node, by srun")
    if site.folder and not os.access(site.folder, os.W_OK):
        return missing(f"scratch {site.folder} cannot be written", f"correct {SITE_FILE}")
    return ok(", ".join(paths) or "none")
