"""Fixtures of the tests that start real parts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.slurm_cluster import SlurmCluster, why_missing


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
