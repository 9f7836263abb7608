"""The figure of changes: a point for each pair, its colour by what else both cells have."""

import numpy as np

from tests.fake_records import a_cell, make_table
from tests.unit.figures.drawn import draw, words

BUCKET = {"bucket_cap_mb": 1}


def test_every_pair_is_a_point_in_the_band_of_its_change() -> None:
    cells = [
        a_cell("plain", nodes=[4]),
        a_cell("bucket", nodes=[4], options=BUCKET),
        a_cell("mixed", nodes=[4], precision="bf16"),
        a_cell("both", nodes=[4], options=BUCKET, precision="bf16"),
    ]
    figure = draw("switches", make_table(repeats=6, cells=cells))
    (axes,) = [one for one in figure.axes if one.lines]
    points = [np.asarray(line.get_ydata()) for line in axes.lines if line.get_marker() == "o"]
    assert sorted(int(np.round(one[0])) for one in points) == [0, 0, 1, 1]
    assert len({line.get_color() for line in axes.lines if line.get_marker() == "o"}) == 2
    said = words(figure)
    assert all(text in said for text in ("alone", "as the last", "precision fp32 to bf16"))
