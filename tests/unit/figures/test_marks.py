"""Lines and dots are those of seaborn, which takes longer to find out what they are."""

import numpy as np
import seaborn as sns
from matplotlib import pyplot as plt

from pipeline.figures import marks

X, Y = [4.0, 1.0, 2.0, 3.0], [0.5, np.nan, 0.25, 1.0]


def test_a_line_is_that_of_seaborn() -> None:
    figure, (own, other) = plt.subplots(1, 2)
    marks.line(own, X, Y, color="#0072B2", marker="s", markeredgewidth=0.4)
    sns.lineplot(x=X, y=Y, ax=other, color="#0072B2", marker="s", markeredgewidth=0.4)
    [one], [expected] = own.lines, other.lines
    assert np.array_equal(one.get_xydata(), expected.get_xydata())
    for look in ("color", "marker", "markeredgecolor", "markeredgewidth", "linestyle", "linewidth"):
        assert plt.getp(one, look) == plt.getp(expected, look)
    plt.close(figure)


def test_dots_are_those_of_seaborn_and_none_without_a_place() -> None:
    figure, (own, other) = plt.subplots(1, 2)
    marks.dots(own, X, Y, color="#0072B2", marker="s", s=6, linewidth=0)
    sns.scatterplot(x=X, y=Y, ax=other, color="#0072B2", marker="s", s=6, linewidth=0)
    [one], [expected] = own.collections, other.collections
    assert np.array_equal(one.get_offsets(), expected.get_offsets())
    for look in ("facecolor", "edgecolor", "sizes", "linewidth"):
        assert np.array_equal(plt.getp(one, look), plt.getp(expected, look))
    marks.dots(own, [1.0], [np.nan], s=6)
    assert len(own.collections) == 1
    plt.close(figure)
