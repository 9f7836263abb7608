"""Real launches: profiled runs train the same, Horovod tunes, a taken port costs a start."""

import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import strategies
from pipeline.errors import UnsupportedError
from pipeline.launch import preloaded
from pipeline.machine import limits
from pipeline.records import RunRecord, read_record
from pipeline.strategies.horovod.plan import TUNED_POINTS
from pipeline.study.profiling import IN_STEP
from tests.parity.cases import STEPS, Case
from tests.programs import ran
from tests.system.stage import train_here, words_of
from tests.unit.strategies.test_horovod import assert_a_search_ends

pytestmark = pytest.mark.usefixtures("loaded")


def trained(strategy: str, tokens: Path, folder: Path, *, profile: bool) -> RunRecord:
    """The record of a run of two ranks through the command line."""
    spec = replace(Case(strategy, accumulation=2).spec(2), profile=profile)
    command = [sys.executable, "-m", "pipeline", *words_of(spec, tokens, folder)]
    done = ran(command, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    record = read_record(folder)
    assert record.status == "ok", record.run["reason"]
    return record


def skip_without(strategy: str) -> None:
    """Skip a test of a strategy whose packages are not installed."""
    try:
        strategies.load(strategy, {}).check()
    except UnsupportedError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("strategy", ["ddp", "horovod"])
def test_profiling_changes_no_bit_and_its_phases_add_up(strategy, small_tokens, tmp_path) -> None:
    skip_without(strategy)
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


def test_horovod_tries_as_many_points_as_a_run_waits_for(small_tokens, tmp_path) -> None:
    """By its own default: what is timed must come after them."""
    skip_without("horovod")
    assert_a_search_ends(small_tokens, tmp_path, TUNED_POINTS)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of the loopback on which this test listens."""
    with socket.create_server((limits.LOOPBACK, 0)) as listener:
        yield int(listener.getsockname()[1])


def test_a_run_whose_port_was_taken_starts_again(
    taken, small_tokens, tmp_path, monkeypatch, capsys
) -> None:
    """Something took it between its probe and its use."""
    ports, free_port = iter([taken]), limits.free_port

    def port(*address: str) -> int:
        # Without an address only the loopback is tried.
        return (next(ports, 0) if address else 0) or free_port(*address)

    monkeypatch.setattr(limits, "free_port", port)
    monkeypatch.setenv(preloaded.STAGES, "")  # the stage is this process
    run = Case("ddp").spec(2)
    run = replace(run, workload=replace(run.workload, steps=3))
    record = train_here(run, small_tokens, tmp_path / "out")
    assert record.run["status"] == "ok", record.run["reason"]
    assert len(record.steps) == 3 * 2
    (told,) = record.run["execution"]["interruptions"]
    assert "lost in attempt 1 of 3" in told and "EADDRINUSE" in told
    assert capsys.readouterr().err.count(told) == 1
