"""Speedup against nodes."""

from __future__ import annotations

from matplotlib.figure import Figure

from pipeline.figures import against_nodes
from pipeline.metrics.results import Results
from pipeline.text import listed

CAPTION = (
    "Speedup: throughput over that of the base, with the interval of the ratio. The base is the "
    "single device in fp32, else in the precision of the cell, else the cell on one node; the line "
    "below the figure names it. So a cell in mixed precision also gains by its format, and where "
    "no base has a cell's batch, by that. Where the batch grows with the devices (weak scaling), "
    "the ratio is called scaled speedup."
)
COMPARES = {"precision"}


def draw(results: Results) -> Figure:
    """Speedup of every cell at every node count, a panel for each link, with the ideal line."""
    name = results.speedup_name
    label = f"{name[0].upper()}{name[1:]} over the base"
    # Each base with its absolute throughput, and for which cells it is one.
    bases, every = [], results.pick("cell", "base_tokens_per_second")
    for base, rows in every.groupby("base", sort=False):
        own = {str(base).split(", ")[0]} == {*rows["arm"]}
        whose = "itself, which has no single device of its precision"
        if not own:
            whose = "all" if len(rows) == len(every) else listed(dict.fromkeys(rows["arm_label"]))
        bases.append(f"{base} ({rows['value'].iloc[0]:,.0f} tokens/s) for {whose}")
    remark = f"Bases: {'; '.join(bases)}. "
    return against_nodes.draw(results, results.pick("cell", "speedup"), label, remark)
