"""Shares by control groups of both versions, on folders that look like them, and by pinning."""

import os
from pathlib import Path

import pytest

from pipeline import control_groups
from pipeline.emulation import shares

V1 = "30 29 0:26 / {root} rw,relatime - cgroup cgroup rw,cpu\n"
V2 = "31 29 0:27 / {root} rw,relatime - cgroup2 cgroup2 rw\n"


@pytest.fixture
def hierarchy(tmp_path, monkeypatch):
    """A folder for a hierarchy, named in the kernel's two files; groups in it have no processes."""

    def make(mount: str, own: str) -> Path:
        root = tmp_path / "cgroup"
        (root / "mine").mkdir(parents=True)
        (tmp_path / "mountinfo").write_text(mount.format(root=root))
        (tmp_path / "cgroups").write_text(own)
        monkeypatch.setattr(control_groups, "MOUNTS", tmp_path / "mountinfo")
        monkeypatch.setattr(control_groups, "OWN_GROUPS", tmp_path / "cgroups")
        monkeypatch.setattr(shares, "_check_moves", lambda group, home: None)
        monkeypatch.setattr(shares, "_start_sweeper", lambda groups: None)
        return root

    return make


def with_files(monkeypatch, *names: str) -> None:
    """New folders get the files that the kernel gives a new group."""
    plain = Path.mkdir

    def mkdir(self, *args, **kwargs):
        plain(self, *args, **kwargs)
        for name in names:
            (self / name).write_text("")

    monkeypatch.setattr(Path, "mkdir", mkdir)


def test_version_1_gets_a_quota_in_a_period(hierarchy, monkeypatch) -> None:
    root = hierarchy(V1, "1:cpu:/mine\n0::/\n")
    with_files(monkeypatch, "cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.idle")
    made = shares.make_shares(0.25, [[0], [1]])
    assert made.kind == "quota"
    assert [group.parent for group in made.groups] == [root / "mine"] * 2
    assert (made.groups[0] / "cpu.cfs_period_us").read_text() == "10000"
    assert (made.groups[0] / "cpu.cfs_quota_us").read_text() == "2500"
    assert made.idle is not None
    assert (made.idle / "cpu.idle").read_text() == "1"
    assert (made.idle / "cpu.cfs_quota_us").read_text() == ""


def test_version_2_gets_both_in_one_file(hierarchy, monkeypatch) -> None:
    hierarchy(V2, "0::/mine\n")
    with_files(monkeypatch, "cpu.max", "cpu.idle")
    made = shares.make_shares(1.5, [[0, 1]])
    assert (made.groups[0] / "cpu.max").read_text() == "15000 10000"


def test_the_kernel_s_smallest_quota_makes_the_period_longer(hierarchy, monkeypatch) -> None:
    hierarchy(V2, "0::/mine\n")
    with_files(monkeypatch, "cpu.max", "cpu.idle")
    made = shares.make_shares(0.05, [[0]])
    assert (made.groups[0] / "cpu.max").read_text() == "1000 20000"


def test_a_group_without_a_quota_is_removed_and_nodes_are_pinned(hierarchy) -> None:
    root = hierarchy(V2, "0::/mine\n")
    made = shares.make_shares(0.5, [[0], [0]])
    assert made.kind == "pinned"
    assert "no control group" in str(made.reason)
    assert list((root / "mine").iterdir()) == []


def test_nodes_with_cores_of_their_own_need_no_group(hierarchy, monkeypatch) -> None:
    root = hierarchy(V2, "0::/mine\n")
    with_files(monkeypatch, "cpu.max", "cpu.idle")
    made = shares.make_shares(2, [[0, 1], [2, 3]])
    assert (made.kind, made.places, made.idle) == ("own", [[0, 1], [2, 3]], None)
    assert list((root / "mine").iterdir()) == []


def test_a_core_that_two_nodes_share_is_nobody_s_own(hierarchy) -> None:
    hierarchy(V2, "0::/mine\n")
    assert shares.make_shares(1, [[0], [0]]).kind == "pinned"


def test_a_controller_that_lies_elsewhere_is_not_used(hierarchy) -> None:
    hierarchy(V1, "2:cpuacct:/mine\n0::/mine\n")
    assert shares.make_shares(0.5, [[0]]).kind == "pinned"


def test_pinning_holds_for_a_while() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    pinned = shares.Shares(shares.PINNED, places=[[core]])
    with pinned.of(0):
        assert os.sched_getaffinity(0) == {core}
    assert os.sched_getaffinity(0) == before
