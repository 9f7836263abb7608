"""`python -m pipeline archive --study FILE`: archives/<study>.zip from results/<study>.

`--results` and `--out` name another folder and another file.
"""

from __future__ import annotations

import argparse
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

SUMMARY = "a finished study with all that belongs to it as one file, a Workflow Run RO-Crate"

# The first moment that a zip can state: an archive says when its runs were, not when it was packed.
_MOMENT = (1980, 1, 1, 0, 0, 0)
_UNIX, _REGULAR_FILE = 3, 0o100644


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the stage."""
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--study", type=Path, help="study file, which names its results")
    place.add_argument("--results", type=Path, help="folder results/<study>")
    parser.add_argument("--out", type=Path, help="zip file to write; archives/<study>.zip")
    parser.add_argument(
        "--partial",
        action="store_true",
        help="pack the records of an unfinished study, without results",
    )


def run(args: argparse.Namespace) -> int:
    """Check the study, write the archive, print its size and checksum."""
    from pipeline.archive.contents import contents
    from pipeline.archive.layout import STUDY_FILE
    from pipeline.errors import ArchiveError
    from pipeline.files import sha256_of_file
    from pipeline.study import results_folder

    results = args.results or results_folder(args.study)
    out = args.out or Path("archives", f"{results.name}.zip")
    if not (results / STUDY_FILE).is_file():
        raise ArchiveError(f"there is no {results / STUDY_FILE}; run the study with make paper")
    parts = contents(results, partial=args.partial)
    write_zip(parts, out)
    size = out.stat().st_size / 1e6
    print(f"{out}: {len(parts) + 1} files, {size:.1f} MB, sha256 {sha256_of_file(out)}")
    return 0


def write_zip(parts: Mapping[str, Path | bytes], final: Path) -> None:
    """Write the files by their names and, last, SHA256SUMS; equal files give equal bytes.

    Raises ArchiveError when they are more than an archive may hold.
    """
    from pipeline.archive.layout import MAX_BYTES, SUMS_FILE
    from pipeline.errors import ArchiveError
    from pipeline.files import atomic_path

    total = sum(len(p) if isinstance(p, bytes) else p.stat().st_size for p in parts.values())
    if total > MAX_BYTES:
        raise ArchiveError(
            f"the files of the study are {total / 2**30:.1f} GiB, an archive holds at most "
            f"{MAX_BYTES >> 30} GiB; split the study"
        )
    sums = []
    with atomic_path(final) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name in sorted(parts):
            part = parts[name]
            content = part if isinstance(part, bytes) else part.read_bytes()
            sums.append(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
            _add(archive, name, content)
        _add(archive, SUMS_FILE, "".join(sums).encode())


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _MOMENT)
    entry.create_system = _UNIX
    entry.external_attr = _REGULAR_FILE << 16
    archive.writestr(entry, content, zipfile.ZIP_DEFLATED, compresslevel=6)
