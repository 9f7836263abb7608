"""Sizes are counted anew for each module of these tests, whatever an earlier session has kept."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def counted_anew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where sizes are kept there is none yet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAMESTEP_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
