"""Lay the records of an archive where results are rebuilt from them.

Everything is checked in a folder of its own before that takes its place, so that a bad archive
leaves what was there before.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

_PREFIX = ".unpack."


def unpack(archive: Path, into: Path) -> Path:
    """The folder <into>/<study> with the archive's records, replacing one of an earlier archive.

    Raises ArchiveError in one line, and leaves `into` as it was, where the archive is no good.
    """
    from pipeline.archive.layout import SUMS_FILE
    from pipeline.archive.read import check_records, extract
    from pipeline.errors import ArchiveError, SamestepError
    from pipeline.files import made_folder

    with made_folder(into), _work_folder(into) as place:
        fresh = place / "study"
        extract(archive, fresh)
        try:
            study = check_records(fresh)
        except (SamestepError, ValueError, RecursionError) as error:
            # the fault is the archive's, not that of a folder which is about to go
            text = " ".join(str(error).split())
            raise ArchiveError(f"{archive}: {text}".replace(f"{fresh}{os.sep}", "")) from None
        final = into / study
        if final.exists() and not (final / SUMS_FILE).is_file():
            raise ArchiveError(f"{final} was not unpacked from an archive; move it away first")
        if final.exists():
            os.replace(final, place / "old")
        os.replace(fresh, final)
    return final


@contextmanager
def _work_folder(into: Path) -> Iterator[Path]:
    """A folder inside `into`, gone afterwards; so are those of earlier calls that were killed.

    The kernel's lock on `into`, which ends with its process, tells these from one that works.
    """
    lock = os.open(into, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in into.glob(f"{_PREFIX}*"):
            shutil.rmtree(left, ignore_errors=True)
        place = Path(mkdtemp(dir=into, prefix=_PREFIX))
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)
    finally:
        os.close(lock)
