"""Which files that were rebuilt from an archive differ from what it states, and why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def differing(expected: Mapping[str, str], folder: Path) -> list[str]:
    """Names of `expected` (name -> SHA-256) that are missing below `folder` or are others."""
    from pipeline.files import sha256_of_file

    files = {name: folder / name for name in expected}
    return [
        name
        for name, path in files.items()
        if not path.is_file() or sha256_of_file(path) != expected[name]
    ]


def reason(listed: Mapping[str, str], results: Path) -> str:
    """What in this checkout is not as it was when the archive was made."""
    from pipeline.archive.layout import ARCHIVE_FILE, LOCK_FILE, ROOT
    from pipeline.machine.facts import provenance
    from pipeline.schemas import read

    inside = {
        "envs/requirements.lock" if name == LOCK_FILE else name.removeprefix("source/"): total
        for name, total in listed.items()
        if name.startswith("source/") or name == LOCK_FILE
    }
    changed = differing(inside, ROOT)
    if changed:
        return f"this checkout has another {', '.join(changed)}"
    made = read(results / ARCHIVE_FILE, "archive", "python -m pipeline unpack")
    here = provenance()["git_commit"]
    if made["git_commit"] != here:
        return f"the archive was made by commit {made['git_commit']}, this checkout is {here}"
    return "the code is the same, so compare the installed versions with environment/" + (
        "requirements.lock of the archive"
    )
