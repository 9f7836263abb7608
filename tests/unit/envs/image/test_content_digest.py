import os
from collections.abc import Callable
from pathlib import Path

import pytest

from envs.image.content_digest import content_digest as digest
from envs.image.content_digest import mount_points


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small file system."""
    top = tmp_path / "root"
    for folder in ("bin", "etc", "opt/empty", "proc", "tmp"):
        (top / folder).mkdir(parents=True)
    (top / "bin" / "tool").write_text("#!/bin/sh\n")
    (top / "bin" / "tool").chmod(0o755)
    (top / "bin" / "link").symlink_to("tool")
    (top / "etc" / "name").write_text("value\n")
    return top


def relink(link: Path) -> None:
    link.unlink()
    link.symlink_to("t")


def to_file(folder: Path) -> None:
    folder.rmdir()
    folder.touch()


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda root: (root / "etc" / "name").write_text("other\n"),
    "mode": lambda root: (root / "bin" / "tool").chmod(0o700),
    "target of a link": lambda root: relink(root / "bin" / "link"),
    "new empty folder": lambda root: (root / "opt" / "more").mkdir(),
    "file for a folder": lambda root: to_file(root / "opt" / "empty"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_every_change_of_the_content_changes_it(root, change) -> None:
    before = digest(root)
    assert digest(root) == before
    change(root)
    assert digest(root) != before


def test_times_and_what_a_runtime_mounts_do_not_change_it(root: Path) -> None:
    before = digest(root)
    os.utime(root / "etc" / "name", (1, 1))
    os.utime(root / "etc", (1, 1))
    (root / "proc" / "1").mkdir()
    (root / "tmp" / "left").touch()
    (root / "etc" / "hosts").write_text("127.0.0.1 here\n")
    (root / "etc" / "samestep-image-digest").write_text(before)
    (root / ".singularity.d").mkdir()
    (root / ".post.script").write_text("cd /opt/samestep-build\n")
    (root / ".build.labels").touch()
    assert digest(root) == before


def test_mount_points_are_read_with_their_escapes() -> None:
    text = (
        "173 172 0:41 / / rw - overlay overlay rw\n"
        r"240 173 254:0 /w /opt/two\040words ro,nodev - ext4 /dev/vda rw" + "\n"
    )
    assert mount_points(text) == {"/", "/opt/two words"}
