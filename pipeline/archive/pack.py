"""Write the files of an archive as one zip whose bytes depend on them alone."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

# The first moment that a zip can state: an archive says when its runs were, not when it was packed.
_MOMENT = (1980, 1, 1, 0, 0, 0)
_UNIX, _REGULAR_FILE = 3, 0o100644


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
