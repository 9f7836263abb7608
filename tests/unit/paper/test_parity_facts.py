"""What the paper says of parity, in as few words as it takes."""

import pandas as pd
import pytest

from pipeline.metrics.format import limit
from pipeline.paper.parity_facts import _settings


def test_settings_of_a_cell_are_told_together() -> None:
    """Each link and node count was a place of its own, eight of them in `smoke`."""
    found: list[tuple[str, str | None, int]] = []
    found += [("Horovod", link, nodes) for link in ("200 Mbit/s", "1 Gbit/s") for nodes in (4, 8)]
    found += [("DDP", "1 Gbit/s", 8), ("DDP", "200 Mbit/s", 4), ("ZeRO 1", None, 1)]
    rows = pd.DataFrame(found, columns=["arm_label", "link", "nodes"])
    assert _settings(rows) == [
        "Horovod at 4 and 8 nodes over 200 Mbit/s and 1 Gbit/s",
        "DDP at 8 nodes over 1 Gbit/s",
        "DDP at 4 nodes over 200 Mbit/s",
        "ZeRO 1 at 1 node",
    ]
    assert _settings(rows.iloc[:0]) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1e-5, "1e-5"),
        (1e-4, "1e-4"),
        (2.5e-4, "2.5e-4"),
        (0.001, "0.001"),
        (0.02, "0.02"),
    ],
)
def test_small_tolerances_are_all_written_alike(value: float, text: str) -> None:
    """`1e-5, 0.0001` stood beside each other."""
    assert limit(value) == text
