"""Predicted against measured peak memory of each rank; `python -m pipeline table memory`."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipeline.metrics.format import NONE
from pipeline.metrics.select import pick
from pipeline.tables.write import PLACE, places

CAPTION = (
    "Peak memory of a rank as measured and as predicted from the spec: rank 0 and, where it "
    "differs, the largest of the others; medians over the repeats, in MiB. On a CPU the base is "
    "Python and its libraries, which no formula knows; on a GPU it is zero. 'Model' counts "
    "parameters, gradients, optimiser, buffers of the reduction, activations and loss; 'formula "
    "24' is the study's own. Both are held against what was measured above the base, as predicted "
    "over measured. On a CPU small amounts are uncertain by the size of the libraries."
)
COMPARES = {"precision"}
_MEBIBYTE = 2**20
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
    keys = ["cell", "label", "nodes", "rank"]
    found = pick(table, "cell", "num_ok")[[*PLACE, "label"]]
    rows = pick(table, "rank", *_MEASURES)
    medians = rows.groupby([*keys, "metric"], sort=False)["value"].median().unstack("metric")
    medians = medians.reindex(columns=list(_MEASURES)).rename(columns=_MEASURES).reset_index()
    found = found.merge(medians, on=["cell", "label", "nodes"], how="left")
    above = found["measured"] - found["base"]
    for name in ("model", "formula_24"):
        found[f"{name}_ratio"] = (found[name] / above).where(above > 0)
    return _root_and_largest(found)


def _root_and_largest(found: pd.DataFrame) -> pd.DataFrame:
    """Rank 0 and the largest of the others, where that differs; a cell that never ran stays."""
    others = found[found["rank"] > 0].sort_values("measured", ascending=False, kind="stable")
    largest = others.drop_duplicates(["cell", "nodes"]).reset_index()
    root = found[found["rank"] == 0].set_index(["cell", "nodes"])
    beside = root.reindex(pd.MultiIndex.from_frame(largest[["cell", "nodes"]]))
    differs = ~np.isclose(largest["measured"], beside["measured"], rtol=_ALIKE)
    for name in ("model", "formula_24"):
        differs |= (largest[name] != beside[name].to_numpy()) & largest[name].notna().to_numpy()
    keep = found["rank"].isna() | (found["rank"] == 0)
    keep |= found.index.isin(largest.loc[differs, "index"])
    return found[keep].reset_index(drop=True)


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text, memory in MiB."""

    def mebibytes(values: pd.Series) -> list[str]:
        return [NONE if pd.isna(v) else f"{v / _MEBIBYTE:,.0f}" for v in values]

    def ratios(values: pd.Series) -> list[str]:
        return [NONE if pd.isna(v) else f"{v:.2f}" for v in values]

    return pd.DataFrame(
        {
            **places(frame),
            "Rank": [NONE if pd.isna(rank) else str(int(rank)) for rank in frame["rank"]],
            "Measured": mebibytes(frame["measured"]),
            "Base": mebibytes(frame["base"]),
            "Model": mebibytes(frame["model"]),
            "Ratio": ratios(frame["model_ratio"]),
            "Formula 24": mebibytes(frame["formula_24"]),
            "Its ratio": ratios(frame["formula_24_ratio"]),
        }
    )
