"""Pieces of work that processes on one core do, each paced."""

import pytest

from bench.emulated import phase_length as bench
from bench.emulated.undisturbed import Machine


def test_pieces_of_all_processes_are_held_against_their_cpu_seconds(monkeypatch) -> None:
    monkeypatch.setattr(bench, "LASTS_SECONDS", 0.1)
    found = bench.phase_length(2, 0.002, Machine())
    assert (found["factor"], found["cpu_seconds"]) == (2, 0.002)
    assert found["n"] >= 4
    assert found["p5"] <= found["value"] <= found["p95"]


def test_a_process_that_fails_is_an_error_not_a_wait(monkeypatch) -> None:
    monkeypatch.setattr(bench, "_work", lambda *_: 1 / 0)
    with pytest.raises(EOFError):
        bench.phase_length(2, 0.002, Machine())
