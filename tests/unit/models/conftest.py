"""A cache that the tests of models share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of their own, in which sizes of models are kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAMESTEP_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
