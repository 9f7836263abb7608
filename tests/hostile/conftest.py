"""Good files, of which the tests make wrong ones."""

from pathlib import Path

import pytest

from tests.hostile.entries import Laid, lay


@pytest.fixture(scope="session")
def laid(tmp_path_factory: pytest.TempPathFactory) -> Laid:
    """One good file of every kind, not to be changed."""
    return lay(tmp_path_factory.mktemp("good"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
