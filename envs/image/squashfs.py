"""A flattened image as one squashfs file that Apptainer runs like a SIF.

What Apptainer's own conversion adds and a run needs is the environment that the image sets; it is
written where Apptainer looks for it, below /.singularity.d/env. Apptainer empties the environment,
reads the scripts there in the order of their names, sets right after 99-base.sh what the caller
gave by --env or APPTAINERENV_NAME, and last gives back the host's variables that nobody has set.
So the caller wins over the image, and the image over the host.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

FOLDER = ".singularity.d"
ENVIRONMENT_FILE = "env/10-docker2singularity.sh"
LAST_FILE = "env/99-base.sh"
"""Holds nothing, but without it nothing of the caller's is set."""

TIMESTAMP = "0"
"""Seconds since 1970 of every file and of the file system, so that equal images are equal bytes."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def environment_script(variables: Iterable[str]) -> str:
    """Shell text that exports `NAME=value` lines of an OCI configuration."""
    lines = ["#!/bin/sh"]
    for variable in variables:
        name, _, value = variable.partition("=")
        if _NAME.fullmatch(name):
            lines.append(f"export {name}={shlex.quote(value)}")
    return "\n".join(lines) + "\n"


def write_environment(variables: Iterable[str], folder: Path) -> Path:
    """Write the scripts into a tree below `folder`; returns what is to become /.singularity.d."""
    top = folder / FOLDER
    script, last = top / ENVIRONMENT_FILE, top / LAST_FILE
    script.parent.mkdir(parents=True)
    script.write_text(environment_script(variables), encoding="utf-8")
    last.write_text(environment_script(()), encoding="utf-8")
    for path in (top, script.parent, script, last):
        path.chmod(0o755)
    return top


def pack_command(source: str, target: Path, *options: str) -> Sequence[str]:
    """Command that packs the folder `source` (or `-` with the option `-tar`) into `target`.

    Level 3 of zstd: level 15, the default, takes several times as long for little.
    """
    times = ["-all-time", TIMESTAMP, "-mkfs-time", TIMESTAMP]
    compression = ["-comp", "zstd", "-Xcompression-level", "3"]
    quiet = ["-noappend", "-no-progress", "-quiet", "-no-xattrs"]
    # Buildah shows a root folder that its owner may not write: Apptainer could not unpack that.
    root = ["-root-mode", "755"]
    # It refuses times that are given twice, and a caller may have exported this one.
    program = ["env", "--unset=SOURCE_DATE_EPOCH", "mksquashfs"]
    return [*program, source, str(target), *options, *quiet, *root, *times, *compression]
