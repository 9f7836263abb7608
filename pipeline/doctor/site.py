"""Checks of `doctor --site`: does the cluster take what workflow/site.yaml asks for?"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from pipeline.doctor.probes import IMAGE, OK, Finding, failure, image, missing, note, ok, slurm
from pipeline.errors import LaunchError
from pipeline.launch.slurm.request import Request, allocation
from pipeline.machine.image import RUNTIMES, enter
from pipeline.machine.site import APPTAINER, NO_RUNTIME, PYXIS, SITE_FILE, Site, load_site


def probes() -> dict[str, Callable[[], Finding]]:
    """Every probe by name; raises LaunchError for a site file that cannot be used."""
    site = load_site()
    to_hub = replace(site, partition=site.network_partition)
    variables = ", ".join(f"{k}={v}" for k, v in site.environment.items()) or "no variables"
    return {
        "slurm": slurm,
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
    question, absent, fix = {
        APPTAINER: (
            f"command -v {' || command -v '.join(RUNTIMES)}", f"no {' or '.join(RUNTIMES)}",
            f"load its module by a line of `before` in {SITE_FILE}, or install it",
        ),
        PYXIS: (
            "srun --help 2>&1 | grep -- --container-image", "srun has no --container-image",
            f"ask the site for pyxis, or take another `runtime` in {SITE_FILE}",
        ),
    }[site.runtime]  # fmt: skip
    if failure("sh", "-c", f"{site.script()}{question}") is not None:
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
