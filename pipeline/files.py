"""Writing files so that nothing half-written ever stands under its final name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import SamestepError


@contextmanager
def atomic_path(final: Path) -> Iterator[Path]:
    """Yield a temporary path beside `final`; rename it to `final` on success, remove it on error.

    Raises SamestepError when the disk refuses (full, read-only), naming the file.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.with_name(f".{final.name}.{os.getpid()}.tmp{final.suffix}")
    try:
        yield temporary
        os.replace(temporary, final)
    except OSError as error:
        raise SamestepError(
            f"could not write {final}: {error.strerror or error}; free space or fix the permissions"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(final: Path, text: str) -> None:
    """Write `text` as UTF-8 under `final`, atomically."""
    with atomic_path(final) as temporary:
        temporary.write_text(text, encoding="utf-8")


def whole_lines(path: Path) -> list[str]:
    """Lines of a file that grows, ends included; one that a kill cut off is left out."""
    whole, end, _ = path.read_text(encoding="utf-8").rpartition("\n")
    return (whole + end).splitlines(keepends=True)


def to_disk(path: Path) -> None:
    """Wait until a closed file is on the disk, or on the server of a shared folder."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def sha256_of_file(path: Path) -> str:
    """SHA-256 of a file's bytes, read in blocks."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
