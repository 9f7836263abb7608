"""Options of the whole suite."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The one way to move golden files."""
    parser.addoption(
        "--write-golden", action="store_true", help="write tests/golden/*.json anew, then compare"
    )
