"""A flattened image as one squashfs file that Apptainer runs like a SIF.

The only thing that Apptainer's own conversion adds and a run needs is the environment that the
image sets; it is written where Apptainer looks for it, below /.singularity.d/env.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

ENVIRONMENT_FILE = ".singularity.d/env/10-docker2singularity.sh"
TIMESTAMP = "0"
"""Seconds since 1970 of every file and of the file system, so that equal images are equal bytes."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def environment_script(variables: Iterable[str]) -> str:
    """Shell text that exports `NAME=value` lines of an OCI configuration.

    As in Apptainer the image decides over PATH, and the caller's value wins for all others.
    """
    lines = ["#!/bin/sh"]
    for variable in variables:
        name, _, value = variable.partition("=")
        if not _NAME.fullmatch(name):
            continue
        if name == "PATH":
            lines.append(f"export PATH={shlex.quote(value)}")
        else:
            lines.append(f'[ "${{{name}+set}}" ] || export {name}={shlex.quote(value)}')
    return "\n".join(lines) + "\n"


def write_environment(variables: Iterable[str], folder: Path) -> Path:
    """Write the script into a tree below `folder`; returns what is to become /.singularity.d."""
    script = folder / ENVIRONMENT_FILE
    script.parent.mkdir(parents=True)
    script.write_text(environment_script(variables), encoding="utf-8")
    for path in (script, script.parent, script.parent.parent):
        path.chmod(0o755)
    return script.parent.parent


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
