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
        monkeypatch.setattr(control_groups, "TOPOLOGY", tmp_path / "hidden")
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
        return root

    return make


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max", 64), ("200000", 2), ("250000", 2), ("50000", 1)],
    ids=["none", "two cores", "a part of a core is none", "but one is left"],
)
def test_a_container_has_the_cores_of_its_quota(hierarchy, quota: str, cores: int) -> None:
    hierarchy(V2, "0::/\n", {"": {"cpu.max": f"{quota} 100000\n"}})
    assert control_groups.usable_cores() == list(range(cores))


def test_of_a_core_with_two_threads_one_counts(hierarchy, tmp_path) -> None:
    """Two nodes on one core would each be slower than one node that has it to itself."""
    hierarchy(V2, "0::/\n", {"": {"cpu.max": "max 100000\n"}})
    for thread in range(64):
        folder = tmp_path / f"hidden/cpu{thread}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{thread % 32},{thread % 32 + 32}\n")
    assert control_groups.usable_cores() == list(range(32))


def test_the_smallest_quota_on_the_way_to_the_root_counts(hierarchy) -> None:
    groups = {
        "pod": {"cpu.max": "300000 100000"},
        "pod/one": {"cpu.max": "max 100000"},
        "pod/other": {"cpu.max": "100000 100000"},
    }
    hierarchy(V2, "0::/pod/one\n", groups)
    assert control_groups.cpu_quota() == 3


@pytest.mark.parametrize("mounted", ["/", "/docker/4f"])
@pytest.mark.parametrize(("quota", "cores"), [("400000", 4), ("-1", None)])
def test_version_1_with_and_without_a_namespace(hierarchy, mounted, quota, cores) -> None:
    files = {"cpu.cfs_quota_us": f"{quota}\n", "cpu.cfs_period_us": "100000\n"}
    mount = f"30 29 0:26 {mounted} {{root}} rw - cgroup cgroup rw,cpu,cpuacct\n"
    inside = "docker/4f" if mounted == "/" else ""
    root = hierarchy(mount, "1:cpu,cpuacct:/docker/4f\n0::/\n", {inside: files})
    assert control_groups.lineage()[0] == (1, root / inside)
    assert control_groups.cpu_quota() == cores


def test_nodes_are_not_emulated_on_a_part_of_a_core(hierarchy) -> None:
    """Their steps would be 20 % slower, with nothing in the record that says so."""
    hierarchy(V2, "0::/\n", {"": {"cpu.max": "50000 100000\n"}})
    assert why_not() == "a CPU quota of 0.5 cores stops a node within its steps; allow one core"
