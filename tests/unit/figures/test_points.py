"""The figure of the published points: each is drawn by each way, suspect ones apart."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection

from pipeline.cost import score
from pipeline.figures import points, theme


def test_every_point_is_drawn_by_each_way_and_the_band_with_the_model() -> None:
    theme.apply()
    figure = points.draw()
    for axes, way in zip(figure.axes, points.PANELS, strict=True):
        dots = [one for one in axes.collections if isinstance(one, PathCollection)]
        drawn = np.concatenate([np.asarray(one.get_offsets()) for one in dots])
        ratios = sorted(1 + row[way] for row in score.every())
        assert sorted(drawn[:, 1]) == pytest.approx(ratios)
        assert axes.get_ylim()[0] < min(ratios) and max(ratios) < axes.get_ylim()[1]
        bands = [one for one in axes.collections if isinstance(one, LineCollection)]
        assert [len(one.get_segments()) for one in bands] == [len(ratios)] * (way == "model")
        crosses = [line for line in axes.lines if line.get_marker() == "x"]
        assert [np.size(line.get_xdata()) for line in crosses] == [61] * (way == "own")
    assert figure.get_figwidth() == theme.WIDTH_INCHES
    plt.close(figure)
