"""Predicted against measured peak memory of each rank; `python -m pipeline table memory`."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipeline.metrics.select import KEYS, pick
from pipeline.tables import columns as col

CAPTION = (
    "Peak memory of a rank as measured and as predicted from the spec: rank 0 and, where it "
    "differs, the largest of the others; medians over the repeats, in MiB. On a CPU the base is "
    "Python and its libraries, which no formula knows; on a GPU it is zero. 'Model' counts "
    "parameters, gradients, optimiser, buffers of the reduction, activations and loss; 'formula "
    "24' is the study's own. Both are held against what was measured above the base, as predicted "
    "over measured. On a CPU small amounts are uncertain by the size of the libraries."
)
COMPARES = {"precision"}
_ALIKE = 0.05
"""A rank whose peak is this near to that of rank 0 gets no row, if the predictions are the same."""
_MEASURES = {
    "peak_memory_bytes": "measured",
    "base_memory_bytes": "base",
    "predicted_memory_bytes": "model",
    "formula_memory_bytes": "formula_24",
}


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One or two rows for each cell and node count; bytes, and ratios above the base."""
    rows = pick(table, "rank", *_MEASURES)
    keys = ["cell", "label", "nodes", "rank"]
    medians = rows.groupby([*keys, "metric"], sort=False)["value"].median().unstack("metric")
    medians = medians.reindex(columns=list(_MEASURES)).rename(columns=_MEASURES).reset_index()
    found = col.every_cell(table).merge(medians, on=["cell", "label", "nodes"], how="left")
    above = found["measured"] - found["base"]
    for name in ("model", "formula_24"):
        found[f"{name}_ratio"] = (found[name] / above).where(above > 0)
    # Rank 0 and the largest of the others, where that differs; a cell that never ran stays.
    others = found[found["rank"] > 0].sort_values("measured", ascending=False, kind="stable")
    largest = others.drop_duplicates(KEYS).reset_index()
    root = found[found["rank"] == 0].set_index(KEYS)
    beside = root.reindex(pd.MultiIndex.from_frame(largest[KEYS]))
    differs = ~np.isclose(largest["measured"], beside["measured"], rtol=_ALIKE)
    for name in ("model", "formula_24"):
        differs |= (largest[name] != beside[name].to_numpy()) & largest[name].notna().to_numpy()
    keep = found["rank"].isna() | (found["rank"] == 0)
    keep |= found.index.isin(largest.loc[differs, "index"])
    return found[keep].reset_index(drop=True)


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text, memory in MiB."""
    columns = [
        col.Column("Rank", "rank", write="{:.0f}".format),
        col.Column("Measured", "measured", col.MEBIBYTES, col.whole),
        col.Column("Base", "base", col.MEBIBYTES, col.whole),
        col.Column("Model", "model", col.MEBIBYTES, col.whole),
        col.Column("Ratio", "model_ratio", write=col.hundredths),
        col.Column("Formula 24", "formula_24", col.MEBIBYTES, col.whole),
        col.Column("Its ratio", "formula_24_ratio", write=col.hundredths),
    ]
    return col.shown(frame, columns)
