"""Every published point, predicted over measured, for docs/planner.md and its paper.

No figure of a study with runs, so it has no `CAPTION` and is not in the catalogue.
"""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from pipeline.cost import score
from pipeline.figures import panels, theme

TEXT = (
    "Every point that is scored, in each of four ways to predict it: predicted over measured step "
    "time against the measured one, a colour and marker for each kind of GPU; on the line a "
    "prediction is right. Constant: the best single utilisation for the very set, known only "
    "afterwards. Nearest neighbour: the utilisation of the most alike point of another set. Model: "
    "without any constant derived from the set of the point, with the 90 % band of each prediction "
    "as a grey line, which should cross the line of 1; then with all constants, which is no test. "
    "Suspect points, whose source contradicts itself, are shown and never scored."
)
PANELS = {
    "constant": "Constant utilisation, known afterwards",
    "neighbour": "Nearest neighbour",
    "model": "Model, set left out",
    "own": "Model, with all constants",
}
_LOOKS = {
    "V100": ("#0072B2", "o"), "A100": ("#D55E00", "^"), "H100": ("#009E73", "s"),
    "H200": ("#000000", "D"),
}  # fmt: skip


def draw() -> Figure:
    """A panel for each way to predict, with the points of all sets."""
    points, suspect = (pd.DataFrame(made()) for made in (score.every, score.suspect))
    # The most frequent kind first, so that it hides no other one.
    kinds = points["device"].value_counts().index
    titles = [*PANELS.values()]
    figure, axes_of = panels.grid(len(PANELS), 2.2, 2, titles, sharex=True, sharey=True)
    for axes, way in zip(axes_of, PANELS, strict=True):
        axes.axhline(1.0, color="0.25", lw=0.9, zorder=1)
        if way == "model":
            ends = points["measured"], points["low"], points["high"]
            axes.vlines(*ends, color=theme.GREY, lw=0.5, alpha=0.35, zorder=2)
        for kind in kinds:
            own, (colour, marker) = points[points["device"] == kind], _LOOKS[kind]
            sns.scatterplot(
                x=own["measured"], y=1 + own[way], ax=axes, color=colour, marker=marker, s=9,
                alpha=0.55, linewidth=0, zorder=3,
            )  # fmt: skip
        if way in suspect:
            axes.plot(suspect["measured"], 1 + suspect[way], "x", color="0.45", ms=3, mew=0.7)
        panels.log_axis(axes.yaxis, *_around(1 + points[list(PANELS)], 1 + suspect["own"]))
        panels.log_axis(axes.xaxis, *_around(points["measured"], suspect["measured"]))
    panels.label(axes_of, "Measured step [s]", "Predicted over measured")
    handles = [
        Line2D([], [], color=colour, marker=marker, ms=4, ls="", label=kind)
        for kind, (colour, marker) in _LOOKS.items()
    ]
    handles.append(Line2D([], [], color="0.45", marker="x", ms=4, ls="", label="suspect"))
    band = Patch(color=theme.GREY, alpha=0.5, label="90 % band of a prediction")
    theme.stack(figure, [*handles, band], figure.text(0.012, 0, ""), columns=len(handles) + 1)
    return figure


def _around(*values: pd.DataFrame | pd.Series) -> tuple[float, float]:
    """Ends of a logarithmic axis that holds all values."""
    flat = pd.concat([pd.Series(one.to_numpy().ravel()) for one in values])
    return 0.9 * float(flat.min()), 1.1 * float(flat.max())
