"""Lines and dots as seaborn draws them, with white edges, but without its search for semantics.

Every figure has dozens of them, each of one colour and one marker, which seaborn 0.13 finds out by
some twenty operations on frames: it took longer to prepare a figure than to draw it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike


def line(axes: Axes, x: ArrayLike, y: ArrayLike, **look: Any) -> None:
    """A line through these points from left to right; what is not finite is left out."""
    across, up = _finite(x, y)
    order = np.argsort(across, kind="stable")
    axes.plot(across[order], up[order], **{"markeredgecolor": "w", **look})


def dots(axes: Axes, x: ArrayLike, y: ArrayLike, **look: Any) -> None:
    """A dot at each of these points; none where no point is finite."""
    across, up = _finite(x, y)
    if len(across):
        axes.scatter(across, up, **{"edgecolor": "w", **look})


def _finite(x: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    across, up = (np.asarray(values, dtype=float) for values in (x, y))
    keep = np.isfinite(across) & np.isfinite(up)
    return across[keep], up[keep]
