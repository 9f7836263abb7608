"""Probes say what went wrong; that they run at once, each in its place, is in tests/system."""

from contextlib import nullcontext

import pytest

from pipeline.emulation import probes
from pipeline.errors import LaunchError


@pytest.mark.parametrize("ready", [False, True])
def test_a_probe_that_fails_is_an_error_with_its_words(ready) -> None:
    """All of them, also where it fails before the others begin."""

    def probe(wait_for_all) -> float:
        if ready:
            wait_for_all()
        raise OSError("no such wire")

    with pytest.raises(LaunchError, match="failed: OSError: no such wire; set cluster"):
        probes.measure([probe], lambda _: nullcontext())
