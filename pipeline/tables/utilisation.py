"""Model and hardware FLOP utilisation; `python -m pipeline table utilisation`."""

from __future__ import annotations

import math

import pandas as pd

from pipeline.metrics.select import pick, records
from pipeline.reference.devices import Peak, datasheet_peak
from pipeline.tables import columns as col

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
_RATE = "model_flops_per_second"
_MEASURES = (
    "model_flops_per_step",
    _RATE,
    "peak_flops_per_second",
    "model_flops_utilisation",
    "hardware_flops_utilisation",
    "share_of_network_bound",
)


def build(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each cell and node count, in FLOP and FLOP/s; shares are fractions of 1."""
    found = col.every_cell(table, "world_size", "device")
    found = col.with_measures(found, table, _MEASURES, bounded=[_RATE])
    peaks = [_datasheet(table, row["cell"], row["nodes"]) for row in records(found)]
    for name, absent in (("device", None), ("source", None), ("flops_per_second", math.nan)):
        found[f"datasheet_{name}"] = [getattr(peak, name, absent) for peak in peaks]
    # A process may drive all devices of a node.
    per_node = pick(table, "cell", "num_ok")["ranks_per_node"]
    devices = (found["nodes"] * per_node).astype(float)
    found["share_of_datasheet"] = found[_RATE] / (found["datasheet_flops_per_second"] * devices)
    return found


def _datasheet(table: pd.DataFrame, cell: str, nodes: int) -> Peak | None:
    """The peak for what all finished runs of a cell ran on; None for a CPU or a mixture."""
    runs = table[(table["level"] == "run") & (table["cell"] == cell) & (table["nodes"] == nodes)]
    runs = runs[(runs["status"] == "ok") & (runs["device"] == "cuda")]
    dtypes = set(runs.loc[runs["metric"] == "compute_dtype", "text"])
    lists = runs.loc[runs["metric"] == "gpus", "text"]
    gpus = {name for text in lists for name in text.split(", ")}
    if len(gpus) != 1 or len(dtypes) != 1:
        return None
    return datasheet_peak(gpus.pop(), dtypes.pop())


def show(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as text, rates in GFLOP/s and shares in per cent."""
    columns = [
        col.text("Ranks", "world_size"),
        col.Column("A step [GFLOP]", "model_flops_per_step", col.GIGA),
        col.interval("Rate [GFLOP/s]", _RATE, col.GIGA),
        col.Column("Peak [GFLOP/s]", "peak_flops_per_second", col.GIGA),
        col.Column("MFU [%]", "model_flops_utilisation", col.PER_CENT),
        col.Column("HFU [%]", "hardware_flops_utilisation", col.PER_CENT),
        col.Column("Datasheet [GFLOP/s]", "datasheet_flops_per_second", col.GIGA),
        col.Column("Share [%]", "share_of_datasheet", col.PER_CENT),
    ]
    if frame["share_of_network_bound"].notna().any():
        columns.append(col.Column("Network [%]", "share_of_network_bound", col.PER_CENT))
    return col.shown(frame, columns)
