"""Real launches: a taken port costs a start."""

import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pipeline.launch import preloaded
from pipeline.machine import limits
from tests.parity.cases import Case
from tests.system.stage import train_here

pytestmark = pytest.mark.usefixtures("loaded")


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
