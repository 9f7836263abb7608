"""Probes run at the same time, each in its own place, and say what went wrong."""

import os
from contextlib import contextmanager, nullcontext

import pytest

from pipeline.emulation import probes
from pipeline.errors import LaunchError


def test_every_probe_runs_in_its_own_place() -> None:
    @contextmanager
    def place(number: int):
        os.environ["PLACE"] = str(number)
        yield

    def probe(wait_for_all) -> float:
        wait_for_all()
        return float(os.environ["PLACE"])

    assert probes.measure([probe] * 3, place) == [0.0, 1.0, 2.0]
    assert "PLACE" not in os.environ


def test_none_starts_before_all_are_ready(tmp_path) -> None:
    def probe(wait_for_all) -> float:
        (tmp_path / str(os.getpid())).touch()
        wait_for_all()
        return float(len(list(tmp_path.iterdir())))

    assert probes.measure([probe] * 4, lambda _: nullcontext()) == [4.0] * 4


@pytest.mark.parametrize("ready", [False, True])
def test_a_probe_that_fails_is_an_error_with_its_words(ready) -> None:
    """All of them, also where it fails before the others begin."""

    def probe(wait_for_all) -> float:
        if ready:
            wait_for_all()
        raise OSError("no such wire")

    with pytest.raises(LaunchError, match="failed: OSError: no such wire; set cluster"):
        probes.measure([probe], lambda _: nullcontext())
