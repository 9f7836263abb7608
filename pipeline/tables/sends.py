"""What each strategy sends: formula, prediction and count; `python -m pipeline table sends`."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.select import KEYS, pick
from pipeline.tables import columns as col

CAPTION = (
    "What the rank that sends most sends in a step along each axis of the layout, in bytes on the "
    "wire: by the formula of its strategy, and as counted in the profiled run by the algorithm "
    "that ran (a ring sends (n-1)/n of what it scatters or gathers, and twice that in an "
    "all-reduce). n are the ranks of the axis, m micro-batches, L blocks of a rank, T tokens of "
    "its share of the batch; G, W, B, P, A and R are bytes: of gradients, of the weights that "
    "these ranks hold together, of those of blocks and of those with more than 100,000 numbers, of "
    "an activation of T tokens, of the gradients that no axis cuts. Formulas leave out padding and "
    "single numbers, as a norm is; headers, acknowledgements and Horovod's negotiation are not "
    "counted. Calls are those of the rank; Horovod fuses its own into fewer messages. A dash: "
    "nothing was counted."
)
COMPARES = {"precision"}
NEEDS = "profile"
_PREDICTED, _COUNTED = "predicted_sent_bytes:", "sent_bytes:"


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell, node count and axis, of the rank that sends most; bytes of a step.

    `ratio` is what was counted over what the formula gives.
    """
    rows = table[(table["level"] == "profile") & (table["status"] == "ok")]
    keys, order = [*KEYS, "rank", "axis"], ["predicted_bytes", "counted_bytes"]
    names = {"value": "predicted_bytes", "text": "formula"}
    predicted = _axes(rows, _PREDICTED).rename(columns=names)
    counted = _axes(rows, _COUNTED).rename(columns={"value": "counted_bytes", "text": "calls"})
    both = predicted.merge(counted[[*keys, "counted_bytes", "calls"]], on=keys, how="left")
    most = both.sort_values(order, ascending=False, kind="stable").drop_duplicates([*KEYS, "axis"])
    most = most.sort_values(["cell_order", "nodes", "axis"], kind="stable").reset_index(drop=True)
    ratio = most["counted_bytes"] / most["predicted_bytes"]
    most["ratio"] = ratio.where(most["predicted_bytes"] > 0)
    columns = ["strategy", "axis", "rank", "formula", *order, "ratio", "calls"]
    return most[[*col.PLACE, "label", *columns]]


def _axes(rows: pd.DataFrame, prefix: str) -> pd.DataFrame:
    """The rows of a metric that has one value per axis, with its name as `axis`."""
    names = [name for name in rows["metric"].unique() if str(name).startswith(prefix)]
    found = pick(rows, "profile", *names)
    axes = [str(name).removeprefix(prefix) for name in found["metric"]]
    columns = [*col.PLACE, "label", "cell_order", "strategy", "rank", "value", "text"]
    return found[columns].assign(axis=axes)


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text, bytes as whole numbers."""
    columns = [
        col.text("Axis", "axis"),
        col.text("Formula", "formula"),
        col.Column("Predicted", "predicted_bytes", write=col.whole),
        col.Column("Counted", "counted_bytes", write=col.whole),
        col.Column("Ratio", "ratio", write="{:.3f}".format),
        col.text("Calls", "calls"),
    ]
    return col.same_over_links(col.shown(frame, columns))
