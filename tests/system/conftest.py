"""Fixtures of the tests that start real parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.slurm_cluster import SlurmCluster, why_missing

GROUPS = {
    "test_image.py": "image",
    "test_slurm_in_image.py": "image",
    "test_slurm.py": "slurm",
    "test_slurm_cluster.py": "slurm",
}
"""Files that one worker takes, since they share an image or would disturb one another."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every file of this folder a worker, the groups first, which take longest."""
    here = Path(__file__).parent
    order = list(GROUPS)

    def place(item: pytest.Item) -> int:
        name = item.path.name
        return order.index(name) if item.path.parent == here and name in order else len(order)

    items.sort(key=place)
    for item in items:
        if item.path.parent == here:
            item.add_marker(pytest.mark.xdist_group(GROUPS.get(item.path.name, item.path.name)))


@pytest.fixture(scope="session")
def slurm() -> None:
    """Skip what needs a SLURM cluster where none can start."""
    reason = why_missing()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def slurm_cluster(slurm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A real SLURM cluster of four nodes, shared by the tests of a module."""
    with SlurmCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
