"""Does each cell compute the same training? `python -m pipeline table parity`."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.format import NONE, limit, scientific
from pipeline.metrics.select import pick, records

CAPTION = (
    "Largest relative deviation of each cell from its single-device reference over all repeats, in "
    "loss and in the gradient norm before clipping: at the first step and over the early steps, "
    "which decide; a later drift is reported in the text. 'Within' gives the tolerances of both. "
    "'Ranks bit-equal' says whether all ranks ended with the same weights to the bit."
)
# Parity holds each cell against a reference whose work it checks itself.
COMPARES = {"global_batch", "schedule", "updates_per_step", "precision", "data", "model"}
_FIGURES = ("parity_loss_first", "parity_norm_first", "parity_loss_early", "parity_norm_early")


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell, node count and reference."""
    keys = ["cell", "label", "nodes", "base"]
    found = pick(table, "cell", "parity_verdict")[[*keys, "text"]].rename(
        columns={"text": "verdict"}
    )
    for metric in _FIGURES:
        rows = pick(table, "cell", metric)[[*keys, "value", "text"]]
        names = {"value": metric, "text": f"{metric}_tolerance"}
        found = found.merge(rows.rename(columns=names), on=keys, how="left")
    bits = pick(table, "cell", "weights_bit_equal")[["cell", "nodes", "value", "n"]]
    bits = bits.rename(columns={"value": "weights_bit_equal", "n": "ranks"})
    return found.merge(bits, on=["cell", "nodes"], how="left")


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text; a cell out of tolerance reads NOT EQUAL."""
    shown = []
    for row in records(frame):
        compared = not pd.isna(row["parity_loss_first"])
        first, later = row["parity_loss_first_tolerance"], row["parity_loss_early_tolerance"]
        line = {
            "Cell": row["label"],
            "Nodes": str(row["nodes"]),
            "Reference": NONE if pd.isna(row["base"]) else row["base"],
            "Loss, first": scientific(row["parity_loss_first"]),
            "Norm, first": scientific(row["parity_norm_first"]),
            "Loss, early": scientific(row["parity_loss_early"]),
            "Norm, early": scientific(row["parity_norm_early"]),
            "Within": f"{limit(float(first))}, {limit(float(later))}" if compared else NONE,
            "Ranks bit-equal": _bits(row["weights_bit_equal"], row["ranks"]),
            "Verdict": row["verdict"],
        }
        shown.append(line)
    columns = ["Cell", "Nodes", "Reference", "Loss, first", "Norm, first", "Loss, early",
               "Norm, early", "Within", "Ranks bit-equal", "Verdict"]  # fmt: skip
    return pd.DataFrame(shown, columns=columns)


def _bits(equal: float, ranks: int) -> str:
    if ranks == 1:
        return "one rank"
    return "yes" if equal else "no"
