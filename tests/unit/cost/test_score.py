"""Errors on the published points: the bars that are met stay met."""

from pathlib import Path

import pytest

from pipeline.cost.constants import content
from pipeline.cost.score import band, by_constant, by_source, markdown, order, points, scored, table
from pipeline.files import marks


def errors(source: str, which: str = "out") -> float:
    found = [row.error(which) for row in scored() if row.source == source]
    return sum(found) / len(found)


@pytest.mark.parametrize(
    ("source", "most"),
    [
        ("ptdp_table1", 0.05),
        ("ptdp_table2", 0.05),
        ("ptdp_figure11", 0.10),
        ("ptdp_figure12", 0.05),
        ("seqsel2022_a100", 0.15),
        ("llmfoundry", 0.10),
        ("torchtitan", 0.15),
        ("megatron2020_v100_a100", 0.10),
    ],
)
def test_sets_that_the_model_has_not_seen(source, most) -> None:
    assert errors(source) <= most


def test_own_points_are_met_by_constants_that_they_gave() -> None:
    assert errors("samestep_h200", "own") <= 0.10 < errors("samestep_h200")


def test_suspect_rows_are_never_scored() -> None:
    assert not any(row.row["suspect"] for row in scored())
    assert sum(bool(row["suspect"]) for row in points()) == 71


def test_the_table_has_every_measured_set() -> None:
    assert sum(int(row["n"]) for row in table()) == len(scored()) == 1034


def test_a_constant_utilisation_is_the_best_of_all() -> None:
    rows = by_source()["seqsel2022_a100"]
    errors = [abs(s / row.measured - 1) for s, row in zip(by_constant(rows), rows, strict=True)]
    assert 0 < sum(errors) / len(rows) < 0.2


def test_the_bands_are_those_of_the_residuals() -> None:
    for kind, ends in content()["band"].items():
        assert list(band(kind)) == ends


def test_the_page_has_the_table_that_is_computed() -> None:
    first, last = marks("errors")
    page = Path("docs/planner.md").read_text(encoding="utf-8")
    before, _, rest = page.partition(first)
    written, _, after = rest.partition(last)
    assert written.strip() == markdown()
    assert len(f"{before} {after}".split()) <= 1400


def test_layouts_are_ordered() -> None:
    assert order("own")[0] >= 0.70
    assert order()[0] > 0.3
