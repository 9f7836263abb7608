"""Comparison of files that were rebuilt from an archive with what it states."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.archive import layout
from pipeline.archive.unpack import parse_sums
from pipeline.documents import MAX_MADE_BYTES, read_text
from pipeline.errors import ArchiveError
from pipeline.files import sha256_of_file
from pipeline.machine.facts import provenance
from pipeline.schemas import read
from pipeline.study.load import load_study


def verify(results: Path) -> int:
    """Print whether the products below `results`, which `unpack` made, have the archived bytes.

    Exit status 1 where not, with what differs, and probably why.
    """
    sums = results / layout.SUMS_FILE
    fix = "give a folder that `python -m pipeline unpack` made"
    listed = parse_sums(read_text(sums, "", ArchiveError, fix, MAX_MADE_BYTES), str(sums))
    # What it is rebuilt from has to be the archive's too.
    given = {name: total for name, total in listed.items() if layout.is_needed(name)}
    if changed := differing(given, results):
        print(
            f"{len(changed)} files that came from the archive were changed or removed since: "
            f"{shown(changed)}; run `make paper FROM=archive.zip` again",
            file=sys.stderr,
        )
        return 1
    made = layout.products(load_study(results / layout.STUDY_FILE))
    if missing := [name for name in made if name not in listed]:
        print(
            f"the archive states no checksum of {len(missing)} products of its study "
            f"({shown(missing)}), so they cannot be verified; pack it anew or use the commit that "
            "made it",
            file=sys.stderr,
        )
        return 1
    if former := [name for name in listed if layout.PRODUCT.fullmatch(name) and name not in made]:
        print(f"not compared, as this version does not make them: {shown(former)}")
    expected = {name: listed[name] for name in made}
    if not any(map(Path.is_file, map(results.joinpath, expected))):
        raise ArchiveError(
            f"nothing was rebuilt below {results}; run `make paper FROM=archive.zip` first"
        )
    others = differing(expected, results)
    if not others:
        print(f"{len(expected)} files rebuilt, every one byte-identical to the archive")
        return 0
    print(
        f"{len(others)} of {len(expected)} rebuilt files differ from the archive: {shown(others)}; "
        + reason(listed, results),
        file=sys.stderr,
    )
    return 1


def differing(expected: Mapping[str, str], folder: Path) -> list[str]:
    """Names of `expected` (name -> SHA-256) that are missing below `folder` or are others."""
    files = {name: folder / name for name in expected}
    return [
        name
        for name, path in files.items()
        if not path.is_file() or sha256_of_file(path) != expected[name]
    ]


def reason(listed: Mapping[str, str], results: Path) -> str:
    """The difference of this checkout from the one that made the archive."""
    inside = {
        "envs/requirements.lock"
        if name == layout.LOCK_FILE
        else name.removeprefix("source/"): total
        for name, total in listed.items()
        if name.startswith("source/") or name == layout.LOCK_FILE
    }
    changed = differing(inside, layout.ROOT)
    if changed:
        return f"this checkout has another {', '.join(changed)}"
    made = read(results / layout.ARCHIVE_FILE, "archive", "python -m pipeline unpack")
    here = provenance()["git_commit"]
    if made["git_commit"] != here:
        return f"the archive was made by commit {made['git_commit']}, this checkout is {here}"
    return f"the code is the same, so compare the installed versions with its {layout.LOCK_FILE}"


def shown(names: Sequence[str]) -> str:
    """The first names, and that there are more."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
