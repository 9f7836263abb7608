"""Fixtures of the tests that start real parts."""

import json
import os
from collections.abc import Callable, Iterator

import pytest

from pipeline.machine.facts import hardware
from tests.system.fault_table import MEASURED
from tests.system.slurm_cluster import SlurmCluster, why_missing


@pytest.fixture(scope="module")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A real SLURM cluster of four nodes, shared by the tests of a module."""
    if reason := why_missing():
        pytest.skip(reason)
    with SlurmCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def measured(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """Takes what a fault cost; `--write-faults` writes it where docs/reliability.md reads it."""
    found: dict[str, dict[str, object]] = {}

    def keep(name: str, words: str, record: str, again: str, lost: int, seconds: float) -> None:
        load = round(os.getloadavg()[0], 1)
        found[name] = {"words": words, "record": record, "again": again, "steps_again": lost,
                       "seconds": round(seconds, 1), "load_average": load}  # fmt: skip

    yield keep
    if request.config.getoption("--write-faults"):
        before = json.loads(MEASURED.read_text())["faults"] if MEASURED.exists() else {}
        about = {"hardware": hardware(), "faults": before | found}
        MEASURED.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
