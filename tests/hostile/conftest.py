"""Good files, of which the tests make wrong ones."""

from __future__ import annotations

import pytest

from tests.hostile.entries import Laid, lay


@pytest.fixture(scope="module")
def laid(tmp_path_factory: pytest.TempPathFactory) -> Laid:
    """One good file of every kind."""
    return lay(tmp_path_factory.mktemp("good"))
