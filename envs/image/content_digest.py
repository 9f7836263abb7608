"""A digest of all that an image holds: equal content gives an equal one, whatever runs the image.

    python content_digest.py ROOT [--without PATH]...

A SHA-256 over one entry a file, sorted by path: path, type, mode, owner, and the content's own
hash or the link's target. Times are left out, and so is what a runtime puts there: mount points,
the kernel's file systems, temporary files and the few files of /etc that follow the host. It stands
alone (standard library only), since the image runs it after its own sources are gone.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

DIGEST_FILE = "/etc/samestep-image-digest"
NOT_OF_THE_IMAGE = frozenset(
    {"/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp"}
    | {"/etc/resolv.conf", "/etc/hosts", "/etc/hostname", "/etc/mtab", "/etc/localtime"}
    | {DIGEST_FILE, f"{DIGEST_FILE}.new", "/.dockerenv"}
    # what Apptainer adds to an image that it builds, and has there while it does
    | {"/.post.script", "/.build.labels"}
    | {"/.singularity.d", "/.exec", "/.run", "/.shell", "/.test", "/singularity", "/environment"}
)


def mount_points(mountinfo: str) -> set[str]:
    """Mount points of a text like /proc/self/mountinfo, with its octal escapes undone."""
    points = (line.split()[4] for line in mountinfo.splitlines() if line.strip())
    return {re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), point) for point in points}


def entries(root: Path, skipped: Iterable[str]) -> Iterator[bytes]:
    """One entry for every file below `root`, without the paths (inside it) in `skipped`."""
    skip = frozenset(skipped)
    pending = [""]
    while pending:
        inside = pending.pop()
        path = root / inside.lstrip("/")
        if inside:
            yield _entry(path, inside)
        if path.is_dir() and not path.is_symlink():
            children = (f"{inside}/{child.name}" for child in path.iterdir())
            pending += sorted((child for child in children if child not in skip), reverse=True)


def _entry(path: Path, inside: str) -> bytes:
    status = path.lstat()
    kind = stat.S_IFMT(status.st_mode)
    content = ""
    if stat.S_ISLNK(kind):
        content = str(path.readlink())
    elif stat.S_ISREG(kind):
        with path.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
    elif stat.S_ISCHR(kind) or stat.S_ISBLK(kind):
        content = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    fields = (inside, f"{status.st_mode:o}", f"{status.st_uid}:{status.st_gid}", content)
    # No path and no target holds a NUL, so four of them end an entry beyond doubt.
    return b"".join(os.fsencode(field) + b"\0" for field in fields)


def content_digest(root: Path, skipped: Iterable[str] = ()) -> str:
    """`sha256:<64 hex digits>` of the file system below `root`."""
    digest = hashlib.sha256()
    for entry in entries(root, NOT_OF_THE_IMAGE | set(skipped)):
        digest.update(entry)
    return f"sha256:{digest.hexdigest()}"


def main(arguments: list[str]) -> int:
    """Print the digest of ROOT."""
    parser = argparse.ArgumentParser(description="Digest of all that an image holds.")
    parser.add_argument("root", type=Path)
    parser.add_argument("--without", action="append", default=[], help="a path inside ROOT")
    args = parser.parse_args(arguments)
    root = args.root.resolve()
    skipped = set(args.without)
    if root == Path("/"):
        skipped |= mount_points(Path("/proc/self/mountinfo").read_text(encoding="utf-8")) - {"/"}
    print(content_digest(root, skipped))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
