"""Words for several things."""

import pytest

from pipeline.metrics.select import listed


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a and b"),
        (["a", "b", "c"], "a, b and c"),
        (["a", "b, x", "c"], "a; b, x and c"),
    ],
)
def test_items_are_listed_so_that_each_is_seen(items: list[str], text: str) -> None:
    assert listed(items) == text
