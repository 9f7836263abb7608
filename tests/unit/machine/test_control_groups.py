"""Cores by affinity and by the quota of a container, on folders that look like control groups."""

import os
from pathlib import Path

import pytest

from pipeline.emulation.nodes import why_not
from pipeline.machine import control_groups

V2 = "31 29 0:27 / {root} rw,relatime - cgroup2 cgroup2 rw\n"


@pytest.fixture
def hierarchy(tmp_path, monkeypatch):
    """A mounted hierarchy with the groups that are given, each with its files."""

    def make(mount: str, own: str, groups: dict[str, dict[str, str]]) -> Path:
        root = tmp_path / "cgroup"
        for group, files in groups.items():
            (root / group).mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (root / group / name).write_text(text)
        (tmp_path / "mountinfo").write_text(mount.format(root=root))
        (tmp_path / "own").write_text(own)
        monkeypatch.setattr(control_groups, "MOUNTS", tmp_path / "mountinfo")
        monkeypatch.setattr(control_groups, "OWN_GROUPS", tmp_path / "own")
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
        return root

    return make


def test_without_a_quota_the_affinity_counts(hierarchy) -> None:
    hierarchy(V2, "0::/mine\n", {"mine": {"cpu.max": "max 100000\n"}})
    assert control_groups.cpu_quota() is None
    assert control_groups.usable_cores() == list(range(64))


def test_a_container_of_two_cores_has_two_of_64(hierarchy) -> None:
    hierarchy(V2, "0::/\n", {"": {"cpu.max": "200000 100000\n"}})
    assert control_groups.usable_cores() == [0, 1]


@pytest.mark.parametrize(("quota", "cores"), [("250000", 2), ("50000", 1)])
def test_a_part_of_a_core_is_no_core_but_one_is_left(hierarchy, quota: str, cores: int) -> None:
    hierarchy(V2, "0::/\n", {"": {"cpu.max": f"{quota} 100000\n"}})
    assert len(control_groups.usable_cores()) == cores


def test_the_smallest_quota_on_the_way_to_the_root_counts(hierarchy) -> None:
    groups = {
        "pod": {"cpu.max": "300000 100000"},
        "pod/one": {"cpu.max": "max 100000"},
        "pod/other": {"cpu.max": "100000 100000"},
    }
    hierarchy(V2, "0::/pod/one\n", groups)
    assert control_groups.cpu_quota() == 3


@pytest.mark.parametrize("mounted", ["/", "/docker/4f"])
def test_version_1_with_and_without_a_namespace(hierarchy, mounted: str) -> None:
    files = {"cpu.cfs_quota_us": "400000\n", "cpu.cfs_period_us": "100000\n"}
    mount = f"30 29 0:26 {mounted} {{root}} rw - cgroup cgroup rw,cpu,cpuacct\n"
    inside = "docker/4f" if mounted == "/" else ""
    root = hierarchy(mount, "1:cpu,cpuacct:/docker/4f\n0::/\n", {inside: files})
    assert control_groups.lineage()[0] == control_groups.ControlGroup(root / inside, 1)
    assert control_groups.cpu_quota() == 4


def test_no_limit_in_version_1(hierarchy) -> None:
    files = {"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}
    hierarchy("30 29 0:26 / {root} rw - cgroup cgroup rw,cpu\n", "1:cpu:/\n", {"": files})
    assert control_groups.cpu_quota() is None


def test_nodes_are_not_emulated_on_a_part_of_a_core(hierarchy) -> None:
    """Their steps would be 20 % slower, with nothing in the record that says so."""
    hierarchy(V2, "0::/\n", {"": {"cpu.max": "50000 100000\n"}})
    assert why_not() == "a CPU quota of 0.5 cores stops a node within its steps; allow one core"
