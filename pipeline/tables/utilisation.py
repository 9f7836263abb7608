"""Model and hardware FLOP utilisation; `python -m pipeline table utilisation`."""

from __future__ import annotations

import pandas as pd

from pipeline.metrics.format import NONE, significant, with_interval
from pipeline.metrics.select import pick, records
from pipeline.reference.devices import Peak, datasheet_peak
from pipeline.tables.write import PLACE, places

CAPTION = (
    "Model FLOPs of a step, (6 N + 12 L d s) for each token with N weights in matrix products, L "
    "layers, width d and context s; the rate reached, with the interval of the throughput; the "
    "peak of a rank, the best matrix product in the run's number format that the rank measured "
    "after the training. MFU is the rate over the peaks of all ranks. HFU adds the FLOPs of "
    "recomputed activations, which are no model FLOPs; where nothing is recomputed both are equal. "
    "Where more threads than cores share a machine, peaks count for the cores there are; an "
    "emulated node has whole cores in its dilated time. Datasheet: dense peak of a device and the "
    "share of it that the training reached; a dash where no source is at hand, as for every "
    "processor. Network: share reached of the throughput that the links allow at most, if nodes "
    "send no more than a sum of gradients takes."
)
COMPARES = {"precision"}
_MEASURES = (
    "model_flops_per_step",
    "model_flops_per_second",
    "peak_flops_per_second",
    "model_flops_utilisation",
    "hardware_flops_utilisation",
    "share_of_network_bound",
)
_BOUNDED = "model_flops_per_second"


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell and node count, in FLOP and FLOP/s; shares are fractions of 1."""
    keys = ["cell", "nodes"]
    found = pick(table, "cell", "num_ok")[[*PLACE, "label", "world_size", "device"]]
    for metric in _MEASURES:
        names = {"value": metric}
        if metric == _BOUNDED:
            names |= {"low": f"{metric}_low", "high": f"{metric}_high"}
        rows = pick(table, "cell", metric)[[*keys, *names]]
        found = found.merge(rows.rename(columns=names), on=keys, how="left")
    peaks = [_datasheet(table, row["cell"], row["nodes"]) for row in records(found)]
    found["datasheet_device"] = [peak.device if peak else None for peak in peaks]
    found["datasheet_source"] = [peak.source if peak else None for peak in peaks]
    found["datasheet_flops_per_second"] = [
        peak.flops_per_second if peak else float("nan") for peak in peaks
    ]
    summed = found["datasheet_flops_per_second"] * _devices(table, found)
    found["share_of_datasheet"] = found[_BOUNDED] / summed
    return found


def _devices(table: pd.DataFrame, found: pd.DataFrame) -> pd.Series:
    """How many devices each row trained on: a process may drive all of a node."""
    per_node = pick(table, "cell", "num_ok")["ranks_per_node"].to_numpy()
    return pd.Series(found["nodes"].to_numpy() * per_node, index=found.index, dtype=float)


def _datasheet(table: pd.DataFrame, cell: str, nodes: int) -> Peak | None:
    """The peak for what all finished runs of a cell ran on; None for a CPU or a mixture."""
    runs = table[(table["level"] == "run") & (table["cell"] == cell) & (table["nodes"] == nodes)]
    runs = runs[(runs["status"] == "ok") & (runs["device"] == "cuda")]
    dtypes = set(runs.loc[runs["metric"] == "compute_dtype", "text"])
    gpus = {
        name for text in runs.loc[runs["metric"] == "gpus", "text"] for name in text.split(", ")
    }
    if len(gpus) != 1 or len(dtypes) != 1:
        return None
    return datasheet_peak(gpus.pop(), dtypes.pop())


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text, rates in GFLOP/s and shares in per cent."""
    shown = pd.DataFrame(places(frame)).join(
        pd.DataFrame(
            [
                {
                    "Ranks": str(row["world_size"]),
                    "A step [GFLOP]": _giga(row["model_flops_per_step"]),
                    "Rate [GFLOP/s]": _reached(row),
                    "Peak [GFLOP/s]": _giga(row["peak_flops_per_second"]),
                    "MFU [%]": significant(100 * row["model_flops_utilisation"]),
                    "HFU [%]": significant(100 * row["hardware_flops_utilisation"]),
                    "Datasheet [GFLOP/s]": _giga(row["datasheet_flops_per_second"]),
                    "Share [%]": significant(100 * row["share_of_datasheet"]),
                }
                for row in records(frame)
            ]
        )
    )
    if (bound := frame["share_of_network_bound"]).notna().any():
        shown["Network [%]"] = [NONE if pd.isna(x) else significant(100 * x) for x in bound]
    return shown


def _giga(value: float) -> str:
    return NONE if pd.isna(value) else significant(value / 1e9)


def _reached(row: dict[str, float]) -> str:
    value, low, high = (row[f"{_BOUNDED}{end}"] / 1e9 for end in ("", "_low", "_high"))
    return NONE if pd.isna(value) else with_interval(value, low, high)
