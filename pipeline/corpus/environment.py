"""Settings that third-party libraries read from the environment while tokens are made."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import CorpusError
from pipeline.study.model_files import hub_fault


@contextmanager
def settings(work: Path, *, offline: bool, num_proc: int) -> Iterator[None]:
    """Keep caches below `work`, torch out of the process, and the network shut where not needed.

    The libraries read most of these when they are first imported, so enter this before importing
    `datasets`. The environment is put back on leaving.
    """
    # Absolute, since `datasets` keeps its cache's name for as long as the process lives.
    work = work.resolve()
    wanted = {
        # Without this `datasets` searches for torch, which costs seconds and hundreds of megabytes.
        **dict.fromkeys(("USE_TORCH", "USE_TF", "USE_JAX"), "0"),
        "HF_DATASETS_CACHE": str(work / "datasets"),
        "HF_MODULES_CACHE": str(work / "modules"),
        "HF_HUB_CACHE": str(work / "hub"),
        "HF_XET_CACHE": str(work / "xet"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        # What it says of each of its attempts; how they ended is in the error.
        "HF_HUB_VERBOSITY": "error",
        # Threads train; processes encode, which `encode` says. A fork after threads would otherwise
        # warn on every call.
        "TOKENIZERS_PARALLELISM": "true" if num_proc > 1 else "false",
        "RAYON_NUM_THREADS": str(num_proc),
        **(dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"), "1") if offline else {}),
    }
    temporary, before = tempfile.tempdir, {n: os.environ[n] for n in wanted if n in os.environ}
    tempfile.tempdir = _folder_for_sockets()
    os.environ.update(wanted)
    try:
        yield
    finally:
        tempfile.tempdir = temporary
        for name in wanted:
            os.environ.pop(name, None)
        os.environ.update(before)


def check_hub() -> None:
    """Raise CorpusError where the name of the hub leads nowhere."""
    if (fault := hub_fault()) is not None:
        raise CorpusError(
            f"{fault}; make the tokens where there is a network, set HTTPS_PROXY if the site has a "
            "proxy, or name a folder of this machine in corpus.name or tokenizer.name"
        )


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
