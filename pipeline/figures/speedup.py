"""Speedup against nodes; `python -m pipeline figure speedup`."""

from __future__ import annotations

from matplotlib.figure import Figure

from pipeline.figures import against_nodes
from pipeline.metrics.results import Results
from pipeline.text import listed

CAPTION = (
    "Speedup: throughput over that of the base, with the interval of the ratio. The base is the "
    "single-device run of the same precision, or the cell's own run on one node where there is "
    "none; the line below the figure gives it in absolute terms and says what the intervals cover. "
    "Where the batch grows with the devices (weak scaling), the ratio is called scaled speedup. "
    "Against the number of nodes both axes are logarithmic, so equal distances are equal factors, "
    "and the dashed grey line is ideal speedup; between the points that a line joins nothing was "
    "measured."
)
COMPARES = {"precision"}


def draw(results: Results) -> Figure:
    """Speedup of every cell at every node count, a panel for each link, with the ideal line."""
    name = results.speedup_name
    label = f"{name[0].upper()}{name[1:]} over the base".replace(", under", ",\nunder")
    # Each base with its absolute throughput, and for which cells it is one.
    bases = []
    for base, rows in results.pick("cell", "base_tokens_per_second").groupby("base", sort=False):
        arms = list(dict.fromkeys(rows["arm"]))
        own = [str(base).split(", ")[0]] == arms
        whose = "itself, which has no single device of its precision" if own else listed(arms)
        bases.append(f"{base} ({rows['value'].iloc[0]:,.0f} tokens/s) for {whose}")
    remark = f"Bases: {'; '.join(bases)}. "
    return against_nodes.draw(results, results.pick("cell", "speedup"), label, remark)
