"""Profiled runs of real launchers: the same training, and phases that add up to its steps."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import strategies
from pipeline.errors import UnsupportedError
from pipeline.records import RunRecord, read_record
from pipeline.study.profiling import IN_STEP
from tests.parity.cases import STEPS, Case
from tests.system.stage import words_of

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.usefixtures("loaded")]


def trained(strategy: str, tokens: Path, folder: Path, *, profile: bool) -> RunRecord:
    """The record of a run of two ranks through the command line."""
    spec = replace(Case(strategy, accumulation=2).spec(2), profile=profile)
    command = [sys.executable, "-m", "pipeline", *words_of(spec, tokens, folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    record = read_record(folder)
    assert record.status == "ok", record.run["reason"]
    return record


@pytest.mark.parametrize("strategy", ["ddp", "parameter_server", "horovod"])
def test_profiling_changes_no_bit_and_its_phases_add_up(strategy, small_tokens, tmp_path) -> None:
    try:
        strategies.load(strategy, {}).check()
    except UnsupportedError as error:
        pytest.skip(str(error))
    timed = trained(strategy, small_tokens, tmp_path / "timed", profile=False)
    profiled = trained(strategy, small_tokens, tmp_path / "profiled", profile=True)
    assert len(timed.steps) == STEPS * 2
    assert [(s.step, s.rank, s.loss, s.grad_norm) for s in profiled.steps] == [
        (s.step, s.rank, s.loss, s.grad_norm) for s in timed.steps
    ]
    hashes = [[r["weights_sha256"] for r in record.run["ranks"]] for record in (timed, profiled)]
    assert hashes[0] == hashes[1]
    for step in profiled.steps:
        assert step.phases is not None
        assert sum(step.phases[name] for name in IN_STEP) == pytest.approx(step.seconds, rel=1e-9)
        assert min(step.phases[name] for name in IN_STEP if name != "rest") > 0
