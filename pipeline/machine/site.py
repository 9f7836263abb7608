"""A cluster as its site runs it: `workflow/site.yaml`, the one file of names and habits.

The workflow asks for jobs by it, launchers enter the image by it, and `doctor --site` holds it
against the cluster. It belongs to the place: nothing of it identifies a training.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.documents import read_document
from pipeline.errors import LaunchError
from pipeline.machine.inherited import INTERFACES, reserved
from pipeline.schemas import validate

SITE_FILE = Path("workflow/site.yaml")
APPTAINER, PYXIS, NO_RUNTIME = "apptainer", "pyxis", "none"
LIBRARIES = "LD_LIBRARY_PATH"
IMAGE_VARIABLES = "/.singularity.d/env/10-docker2singularity.sh"
"""Variables of an image (`envs/image/squashfs.py`)."""


@dataclass(frozen=True)
class Site:
    """Names and habits of a site; the defaults suit most SLURM clusters.

    `gpus` is the option of sbatch and srun with N for the number on a node. Without
    `cpus_per_node` nodes are not shared. `before` are lines of POSIX sh that begin a job.
    """

    partition: str | None = None
    network_partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gpus: str = "--gpus-per-node=N"
    cpus_per_node: int | None = None
    max_minutes: int | None = None
    accounting: bool = True
    before: tuple[str, ...] = ()
    runtime: str = APPTAINER
    binds: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    scratch: str | None = None

    @property
    def submission(self) -> dict[str, str]:
        """Resources of Snakemake's executor that are the same for every job."""
        named = {
            "slurm_partition": self.partition,
            "slurm_account": self.account,
            "qos": self.qos,
            "constraint": self.constraint,
        }
        return {name: value for name, value in named.items() if value}

    @property
    def mounts(self) -> list[str]:
        """Folders that the image needs besides the project's, with the job's variables in them."""
        return [os.path.expandvars(path) for path in (*self.binds, self.folder) if path]

    @property
    def folder(self) -> str | None:
        """The folder for temporary files of ranks on their node."""
        return os.path.expandvars(self.scratch) if self.scratch else None

    def variables(self, environment: Mapping[str, str], *, over_network: bool) -> dict[str, str]:
        """Variables of the ranks, with the libraries of `environment` after the site's own.

        The site's interfaces lead to other machines, so ranks that meet `over_network` have them.
        """
        made = {k: v for k, v in self.environment.items() if over_network or k not in INTERFACES}
        if LIBRARIES in made and environment.get(LIBRARIES):
            made[LIBRARIES] += f":{environment[LIBRARIES]}"
        return made

    def inside(self, variables: Mapping[str, str]) -> tuple[str, ...]:
        """The words before a command inside an image, which set `variables` over the image's.

        A runtime sets some of its own, such as where the GPU's driver lies, so libraries are put
        before those. Pyxis alone does not read the variables of an image that `make image` packed.
        """
        lines = []
        if self.runtime == PYXIS:
            lines = [f"[ ! -f {IMAGE_VARIABLES} ] || . {IMAGE_VARIABLES}", 'export HOME="$PWD"']
        for name, value in variables.items():
            own = '"${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"' if name == LIBRARIES else ""
            lines.append(f"export {name}={shlex.quote(value)}{own}")
        return ("sh", "-c", "; ".join([*lines, 'exec "$@"']), "sh") if lines else ()

    def script(self) -> str:
        """The lines `before`; one that fails ends the shell with an error that names it."""
        script = ""
        for line in self.before:
            error = (
                f"error: {SITE_FILE}: the line {line!r} of `before` failed; correct or remove it"
            )
            script += f"{{ {line}\n}} || {{ printf '%s\\n' {shlex.quote(error)} >&2; exit 2; }}\n"
        return script


def load_site(path: Path = SITE_FILE) -> Site:
    """The site of a file; raises LaunchError in one line where it is missing or wrong."""
    if not path.exists():
        raise LaunchError(
            f"there is no {path}, which says how jobs are asked for here; copy "
            "workflow/site.example.yaml to it and fill in what the cluster wants"
        )
    content = read_document(path, "site file", LaunchError)
    validate(content, "site", f"site file {path}", LaunchError, "correct it")
    container = content.pop("container")
    flat = content | container
    lists = {name: tuple(flat.get(name, ())) for name in ("before", "binds", "options")}
    site = Site(**flat | lists)
    if names := reserved(site.environment, of_site=True):
        raise LaunchError(
            f"site file {path}: environment has {', '.join(names)}, which this project sets "
            "itself; leave it out"
        )
    return site
