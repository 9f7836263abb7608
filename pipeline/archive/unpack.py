"""Lay the records of an archive where results are rebuilt from them.

Everything is checked in a folder of its own before that takes its place, so that a bad archive
leaves what was there before.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory


def unpack(archive: Path, into: Path) -> Path:
    """The folder <into>/<study> with the archive's records, replacing one of an earlier archive.

    Raises ArchiveError in one line, and leaves `into` as it was, where the archive is no good.
    """
    from pipeline.archive.layout import SUMS_FILE
    from pipeline.archive.read import check_records, extract
    from pipeline.errors import ArchiveError, SamestepError

    into.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=into, prefix=".unpack.") as place:
        fresh = Path(place) / "study"
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
            os.replace(final, Path(place) / "old")
        os.replace(fresh, final)
    return final
