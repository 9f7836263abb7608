"""Settings that third-party libraries read from the environment while tokens are made."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import CorpusError


@contextmanager
def settings(work: Path, *, offline: bool, num_proc: int) -> Iterator[None]:
    """Keep caches below `work`, torch out of the process, and the network shut where not needed.

    The libraries read most of these when they are first imported, so enter this before importing
    `datasets`. The environment is put back on leaving.
    """
    wanted = {
        # Without this `datasets` searches for torch, which costs seconds and hundreds of megabytes.
        "USE_TORCH": "0",
        "USE_TF": "0",
        "USE_JAX": "0",
        "HF_DATASETS_CACHE": str(work / "datasets"),
        "HF_MODULES_CACHE": str(work / "modules"),
        "HF_HUB_CACHE": str(work / "hub"),
        "HF_XET_CACHE": str(work / "xet"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        # Threads train; processes encode. A fork after threads would otherwise warn on every call.
        "TOKENIZERS_PARALLELISM": "true" if num_proc > 1 else "false",
        "RAYON_NUM_THREADS": str(num_proc),
    }
    if offline:
        wanted |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    before = {name: os.environ.get(name) for name in wanted}
    temporary = tempfile.tempdir
    os.environ.update(wanted)
    tempfile.tempdir = _folder_for_sockets()
    try:
        yield
    finally:
        tempfile.tempdir = temporary
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _folder_for_sockets() -> str:
    """The temporary folder, or a shorter one: Linux takes 107 bytes for the name of a socket.

    `datasets` makes sockets below it, with names of 35 bytes, to reach its processes. Raises
    CorpusError where there is no short folder.
    """
    folders = [tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"]  # noqa: S108
    for folder in folders:
        if len(os.fsencode(folder)) <= 64 and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise CorpusError(
        f"the temporary folder {folders[0]} has a name too long for sockets; set TMPDIR to one "
        "of at most 64 bytes"
    )


@contextmanager
def single_threaded_tokenizers() -> Iterator[None]:
    """No threads inside `tokenizers`, for work that is already spread over processes."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before
