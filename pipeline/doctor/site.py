"""Checks of `doctor --site`: does the cluster take what workflow/site.yaml asks for?"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from pipeline.doctor.probes import IMAGE, OK, SECONDS, Finding, image, missing, note, ok, slurm
from pipeline.errors import LaunchError
from pipeline.launch.slurm.request import Request, allocation
from pipeline.machine.image import RUNTIMES, enter
from pipeline.machine.site import APPTAINER, NO_RUNTIME, PYXIS, SITE_FILE, Site, load_site


def probes() -> dict[str, Callable[[], Finding]]:
    """Every probe by name; raises LaunchError for a site file that cannot be used."""
    site = load_site()
    checks: dict[str, Callable[[], Finding]] = {
        "slurm": slurm,
        "before": partial(before, site),
        "jobs": partial(asked, site, gpus=0),
        "gpus": partial(asked, site, gpus=1),
    }
    if site.network_partition:
        checks["network"] = partial(asked, replace(site, partition=site.network_partition), gpus=0)
    checks["accounting"] = partial(accounting, site)
    checks["container"] = partial(container, site)
    return checks | {"folders": partial(folders, site), "environment": partial(environment, site)}


def before(site: Site) -> Finding:
    """Run the lines that begin a job on this machine."""
    if not site.before:
        return ok("no lines")
    failed = _failure("sh", "-c", site.script())
    return missing(failed, f"correct {SITE_FILE}") if failed else ok("; ".join(site.before))


def asked(site: Site, gpus: int) -> Finding:
    """Ask sbatch whether it would take a job for one node; none is sent."""
    sbatch, *options = allocation(site, 1, [Request(1, gpus, 1000, 10, site)])
    if shutil.which(sbatch) is None:
        return missing("no sbatch", "run on a cluster's login node")
    failed = _failure(sbatch, "--test-only", *options, "--wrap=true")
    words = " ".join(options)
    if failed is None:
        return ok(f"SLURM takes {words}")
    return missing(
        f"SLURM refuses {words}: {failed}",
        f"correct `gpus` in {SITE_FILE}; a study on CPUs needs none"
        if gpus
        else f"correct {SITE_FILE}; `sinfo` and `sacctmgr show assoc` list what there is",
    )


def accounting(site: Site) -> Finding:
    """Ask sacct, by which the end of each job is seen."""
    if not site.accounting:
        return ok("squeue is asked how jobs stand")
    if shutil.which("sacct") is None:
        failed: str | None = "no sacct"
    else:
        failed = _failure("sacct", "--noheader", "--allocations", "--jobs=1")
    return missing(failed, f"write `accounting: false` in {SITE_FILE}") if failed else ok("sacct")


RUNTIME_THERE = {
    APPTAINER: (
        f"command -v {' || command -v '.join(RUNTIMES)}",
        f"no {' or '.join(RUNTIMES)}",
        f"load its module by a line of `before` in {SITE_FILE}, or install it",
    ),
    PYXIS: (
        "srun --help 2>&1 | grep -- --container-image",
        "srun has no --container-image",
        f"ask the site for pyxis, or take another `runtime` in {SITE_FILE}",
    ),
}
"""Runtime -> the question of a shell, what is missing where it fails, and how to get it."""


def container(site: Site) -> Finding:
    """Look for the runtime after the lines that begin a job, and have it take the image."""
    if site.runtime == NO_RUNTIME:
        return note("none: ranks run on the nodes themselves, by the checkout's .venv")
    question, absent, fix = RUNTIME_THERE[site.runtime]
    if _failure("sh", "-c", f"{site.script()}{question}") is not None:
        return missing(absent, fix)
    packed = image()
    if packed.status == OK and site.runtime == PYXIS:
        try:
            enter(IMAGE, site, device="cpu", folders=())
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


def environment(site: Site) -> Finding:
    """Variables that ranks get and records hold."""
    return ok(", ".join(f"{k}={v}" for k, v in site.environment.items()) or "no variables")


def _failure(*command: str) -> str | None:
    """Output of a command that failed, in one line; None where it ended well."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    output = "; ".join((done.stderr.strip() or done.stdout.strip() or "it failed").splitlines())
    return output[-300:] if done.returncode else None
