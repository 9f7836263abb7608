"""Profiled runs of real ranks: the same training, and phases that add up to its steps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from pipeline import strategies
from pipeline.errors import UnsupportedError
from pipeline.records import RunRecord, read_record
from pipeline.study.profiling import IN_STEP
from tests.parity.cases import STEPS, Case

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.usefixtures("loaded")]

RUNS = [("single", 1), ("ddp", 2), ("parameter_server", 2), ("horovod", 2)]
Trained = Callable[[str, int, bool], RunRecord]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, small_tokens: Path) -> Trained:
    """Train a strategy through the command line, once a module, timed or profiled."""

    @cache
    def train(strategy: str, world: int, profile: bool) -> RunRecord:
        try:
            strategies.load(strategy, {}).check()
        except UnsupportedError as error:
            pytest.skip(str(error))
        spec = replace(Case(strategy, accumulation=2).spec(world), profile=profile)
        folder = tmp_path_factory.mktemp("run")
        (folder / "spec.json").write_text(spec.to_json())
        command = [sys.executable, "-m", "pipeline", "train", "--spec", str(folder / "spec.json")]
        done = subprocess.run(
            [*command, "--tokens", str(small_tokens), "--out", str(folder)],
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        record = read_record(folder)
        assert record.status == "ok", record.run["reason"]
        return record

    return train


@pytest.mark.parametrize(("strategy", "world"), RUNS)
def test_profiling_changes_no_bit_of_the_training(
    trained: Trained, strategy: str, world: int
) -> None:
    timed, profiled = (trained(strategy, world, profile) for profile in (False, True))
    assert len(timed.steps) == STEPS * world
    assert [(s.step, s.rank, s.loss, s.grad_norm) for s in profiled.steps] == [
        (s.step, s.rank, s.loss, s.grad_norm) for s in timed.steps
    ]
    hashes = [[r["weights_sha256"] for r in record.run["ranks"]] for record in (timed, profiled)]
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize(("strategy", "world"), RUNS)
def test_a_timed_run_has_no_phases_on_disk(trained: Trained, strategy: str, world: int) -> None:
    record = trained(strategy, world, False)
    assert "profile" not in record.run["spec"]
    assert all(step.phases is None and "phases" not in step.to_dict() for step in record.steps)


@pytest.mark.parametrize(("strategy", "world"), RUNS)
def test_the_phases_of_every_rank_add_up_and_only_several_ranks_communicate(
    trained: Trained, strategy: str, world: int
) -> None:
    for step in trained(strategy, world, True).steps:
        assert step.phases is not None
        assert sum(step.phases[name] for name in IN_STEP) == pytest.approx(step.seconds, rel=1e-9)
        assert min(step.phases[name] for name in ("forward", "backward", "optimiser")) > 0
        assert (step.phases["communication"] > 0) == (world > 1)
