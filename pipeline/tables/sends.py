"""What each strategy sends: formula, prediction and count; `python -m pipeline table sends`."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.format import NONE
from pipeline.metrics.select import pick
from pipeline.tables.write import PLACE, places, same_over_links

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
    found = [_axes(rows, prefix) for prefix in (_PREDICTED, _COUNTED)]
    keys = ["cell", "nodes", "rank", "axis"]
    predicted = found[0].rename(columns={"value": "predicted_bytes", "text": "formula"})
    counted = found[1].rename(columns={"value": "counted_bytes", "text": "calls"})
    both = predicted.merge(counted[[*keys, "counted_bytes", "calls"]], on=keys, how="left")
    order = ["predicted_bytes", "counted_bytes"]
    most = both.sort_values(order, ascending=False, kind="stable").drop_duplicates(
        ["cell", "nodes", "axis"]
    )
    most = most.sort_values(["cell_order", "nodes", "axis"], kind="stable").reset_index(drop=True)
    most["ratio"] = (most["counted_bytes"] / most["predicted_bytes"]).where(
        most["predicted_bytes"] > 0
    )
    columns = ["strategy", "axis", "rank", "formula", *order, "ratio", "calls"]
    return most[[*PLACE, "label", *columns]]


def _axes(rows: pd.DataFrame, prefix: str) -> pd.DataFrame:
    """The rows of a metric that has one value per axis, with its name as `axis`."""
    names = [name for name in rows["metric"].unique() if str(name).startswith(prefix)]
    found = pick(rows, "profile", *names)
    axes = [str(name).removeprefix(prefix) for name in found["metric"]]
    columns = [*PLACE, "label", "cell_order", "strategy", "rank", "value", "text"]
    return found[columns].assign(axis=axes)


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text, bytes as whole numbers."""

    def whole(values: pd.Series) -> list[str]:
        return [NONE if pd.isna(v) else f"{v:,.0f}" for v in values]

    def words(values: pd.Series) -> list[str]:
        return [NONE if pd.isna(v) else str(v) for v in values]

    shown = pd.DataFrame(
        {
            **places(frame),
            "Axis": frame["axis"],
            "Formula": words(frame["formula"]),
            "Predicted": whole(frame["predicted_bytes"]),
            "Counted": whole(frame["counted_bytes"]),
            "Ratio": [NONE if pd.isna(v) else f"{v:.3f}" for v in frame["ratio"]],
            "Calls": words(frame["calls"]),
        }
    )
    return same_over_links(shown)
