"""A file that cannot be written is not mistaken for a source that cannot be read."""

import errno
from pathlib import Path

import pytest

from pipeline.errors import SamestepError
from pipeline.files import atomic_path, sha256_of_file, sha256_once


def full(temporary: Path, source: Path) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def refused(temporary: Path, source: Path) -> None:
    raise PermissionError(errno.EACCES, "Permission denied", str(temporary))


def gone(temporary: Path, source: Path) -> None:
    temporary.write_bytes(source.read_bytes())


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (full, "out: No space left on device; free space or"),
        (refused, "out: Permission denied; free space or fix the permissions"),
        (gone, "source: No such file or directory; bring that file back"),
    ],
)
def test_the_file_that_is_at_fault_is_named(tmp_path: Path, write, words: str) -> None:
    with pytest.raises(SamestepError, match=words), atomic_path(tmp_path / "out") as temporary:
        write(temporary, tmp_path / "source")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("left", [b"", b"\0" * 64, b"\xff", b"ab"])
def test_a_hash_that_a_disk_emptied_is_found_anew(tmp_path, monkeypatch, left) -> None:
    monkeypatch.setenv("SAMESTEP_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "weights"
    file.write_text("content")
    expected = sha256_of_file(file)
    assert sha256_once(file) == expected
    [kept] = (tmp_path / "cache/sha256").iterdir()
    kept.write_bytes(left)
    assert sha256_once(file) == expected
    assert kept.read_text() == expected
