"""Writing files so that nothing half-written stands under its final name; opening regular files."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from pipeline.errors import SamestepError

_MADE = ".made.json"


def open_regular(path: Path) -> BufferedReader:
    """Open a file that somebody named, for reading; raises OSError unless it is a regular file.

    Opening a FIFO would wait for its writer, and a device may never end.
    """
    try:
        letter = stat.filemode(path.stat().st_mode)[0]
    except ValueError:
        raise OSError(errno.EINVAL, "a path holds no NUL and no half character") from None
    if letter != "-":
        kind = {"d": "folder", "p": "FIFO", "s": "socket"}.get(letter, "device")
        raise OSError(errno.EINVAL, f"it is a {kind}, not a regular file", str(path))
    # A FIFO that takes the file's place now is not waited for either.
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))


@contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """Make `folder` with those above it; on error remove what was made and is still empty.

    Raises SamestepError where it cannot be made.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SamestepError(
            f"could not make {folder}: {error.strerror or error}; give another place or fix the "
            "permissions"
        ) from error
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for path in missing:
                path.rmdir()
        raise


@contextmanager
def atomic_path(final: Path) -> Iterator[Path]:
    """Yield a temporary path beside `final`; rename it to `final` on success, remove it on error.

    Raises SamestepError when the disk refuses (full, read-only), naming the file; or another one
    that it is made from and that cannot be used.
    """
    # Beside it, since a rename is atomic within one file system alone; with its suffix, by which
    # pandoc and matplotlib choose the format.
    temporary = final.with_name(f".{final.name}.{os.getpid()}.tmp{final.suffix}")
    with made_folder(final.parent):
        try:
            yield temporary
            os.replace(temporary, final)
        except OSError as error:
            reason, fix = error.strerror or error, "free space or fix the permissions"
            if error.filename not in (None, str(temporary), temporary):
                reason, fix = f"{error.filename}: {reason}", "bring that file back or fix it"
            raise SamestepError(f"could not write {final}: {reason}; {fix}") from error
        finally:
            with suppress(OSError):
                temporary.unlink()


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


def sha256_once(path: Path) -> str:
    """`sha256_of_file`, kept in the cache by the file's place, size and times.

    Files of weights have gigabytes, and every job of a study asks for their hashes.
    """
    about = path.stat()
    key = [str(path.resolve()), about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns]
    kept = cache_folder() / "sha256" / hashlib.sha256(json.dumps(key).encode()).hexdigest()
    with suppress(OSError, UnicodeDecodeError):
        # A disk that lost its power may have emptied it.
        if re.fullmatch("[0-9a-f]{64}", digest := kept.read_text(encoding="ascii")):
            return digest
    digest = sha256_of_file(path)
    with suppress(SamestepError):  # read again by the next process
        write_text(kept, digest)
    return digest


def cache_folder() -> Path:
    """The folder for what is found once: `SAMESTEP_CACHE`, else one in the user's own."""
    # A user without an entry may have no home.
    home = os.environ.get("HOME") or Path(__file__).parents[1]
    base = os.environ.get("XDG_CACHE_HOME") or Path(home, ".cache")
    return Path(os.environ.get("SAMESTEP_CACHE") or Path(base, "samestep"))


def note_made(files: Iterable[Path], metrics: Path) -> None:
    """Note in their folders that a stage has made these files of that table; see `is_made_of`."""
    source = sha256_of_file(metrics)
    for path in [*files]:
        noted = _made(path.parent) | {path.name: [sha256_of_file(path), source]}
        write_text(path.parent / _MADE, json.dumps(noted, indent=1, sort_keys=True) + "\n")


def is_made_of(path: Path, metrics: Path) -> bool:
    """True for a file that is as a stage noted, of the table as it is now.

    False where nothing was noted, as in a copy without the names that begin with a dot.
    """
    return _made(path.parent).get(path.name) == [sha256_of_file(path), sha256_of_file(metrics)]


def _made(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / _MADE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def replace_marked(path: Path, name: str, text: str) -> None:
    """Put `text` between the marks of `name` in a Markdown file, which are comments.

    Raises SamestepError where the file has none.
    """
    first, last = marks(name)
    try:
        with open_regular(path) as stream:
            content = stream.read().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SamestepError(f"{path} cannot be read: {error}; give a Markdown file") from None
    before, begin, rest = content.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise SamestepError(f"{path} has no lines {first} and {last}; add them where it is due")
    write_text(path, f"{before}{first}\n{text}\n{last}{after}")


def marks(name: str) -> tuple[str, str]:
    """The lines between which the generated text called `name` stands."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
