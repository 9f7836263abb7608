"""The rows of each table as raw numbers, for its CSV: one function each, named as the table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from pipeline.metrics.format import probability
from pipeline.metrics.parity import EQUAL, UNEQUAL
from pipeline.metrics.results import KEYS, STATUSES, Results, bounds_of, records
from pipeline.metrics.statistics import DRIFT, NOT_TESTED
from pipeline.reference.devices import datasheet_peak
from pipeline.tables.declared import TABLES
from pipeline.text import NONE, plural, significant

PLACE = ["cell", "arm", "arm_label", "link", "nodes"]
"""Columns of the table of metrics that say what a row is about."""

_SHARED = ["label", "strategy", "precision_ran", "scaling", "device", "world_size", "status"]
"""Further fields that all metrics of a cell at a number of nodes share."""


def _every_cell(results: Results) -> pd.DataFrame:
    """A row for each cell and number of nodes."""
    return results.pick("cell", "num_ok")[[*PLACE, *_SHARED]]


def step_time(results: Results) -> pd.DataFrame:
    """A row for each cell and number of nodes, with the metrics that the columns name."""
    return _with_metrics(_every_cell(results), results, "step_time")


def _with_metrics(frame: pd.DataFrame, results: Results, name: str) -> pd.DataFrame:
    """`frame` with the metrics of a cell, and bounds, that a table's columns name; NaN without."""
    known = set(results.table.loc[results.table["level"] == "cell", "metric"])
    for column in TABLES[name].columns:
        if column.name not in frame and (column.name in known or column.bounded):
            frame = results.beside(frame, column.name, bounds_of(column.name))
        elif column.name not in frame:
            frame = frame.assign(**{column.name: math.nan})
    return frame


def summary(results: Results) -> pd.DataFrame:
    """The cells at the most nodes over the last link, the highest throughput first."""
    frame = results.last_place[[*PLACE, *_SHARED]]
    frame = results.beside(frame, "speedup", {"base": "base"})
    # A cell that trained otherwise must not be read as one of the others, however fast it was.
    verdicts = results.pick("cell", "parity_verdict")
    alike = []
    for cell, nodes in zip(frame["cell"], frame["nodes"], strict=True):
        own = {*verdicts.loc[(verdicts["cell"] == cell) & (verdicts["nodes"] == nodes), "text"]}
        alike.append("NO" if own & {*UNEQUAL} else "yes" if EQUAL in own else NONE)
    frame = _with_metrics(frame.assign(same_training=alike), results, "summary")
    return frame.sort_values("tokens_per_second", ascending=False, ignore_index=True)


def scaling(results: Results) -> pd.DataFrame:
    """Every cell with the base of its speedup, and what the test says of the two."""
    frame = _every_cell(results)
    frame = results.beside(frame, "speedup", {"base": "base", "interval": "interval"})
    # On one node the two are a pair of cells, which is in the table of comparisons once.
    bases = {f"{cell}, {plural(nodes, 'node')}": (cell, nodes)
             for cell, nodes in zip(frame["cell"], frame["nodes"], strict=True)}  # fmt: skip
    verdicts: list[Any] = []
    for row in records(frame):
        base = bases.get(row["base"])
        test = base and results.compared((row["cell"], row["nodes"]), base)
        verdicts.append(test.verdict if test else math.nan)
    frame = _with_metrics(frame.assign(verdict=verdicts), results, "scaling")
    fewest = frame.groupby("arm")["nodes"].transform("min")
    own = frame.filter(like="own_speedup").columns
    frame[own] = frame[own].where(frame["nodes"] > fewest)
    return results.beside(frame, "base_tokens_per_second", {"value": "base_tokens_per_second"})


def comparisons(results: Results) -> pd.DataFrame:
    """A row for each comparison; the ratio is that of the cell over the other one."""
    return results.comparisons


def what_if(results: Results) -> pd.DataFrame:
    """A row for each condition, cell and number of nodes."""
    frame = results.against_plain
    return frame.rename(columns={"low": "ratio_low", "high": "ratio_high"})


def accuracy(results: Results) -> pd.DataFrame:
    """A row for each cell that has runs in real time: seconds, and emulated over real ones."""
    cells = results.pick("real_time", "status")[[*PLACE, "label"]].drop_duplicates(KEYS)
    return _with_metrics(cells.reset_index(drop=True), results, "accuracy")


def parity(results: Results) -> pd.DataFrame:
    """A row for each cell, number of nodes and reference, with the deviations and their bands."""
    keys = [*KEYS, "base"]
    frame = results.pick("cell", "parity_verdict")[[*PLACE, "label", "base", "text"]]
    frame = frame.rename(columns={"text": "verdict"})
    for one in TABLES["parity"].columns:
        names = {"value": one.name, "text": f"{one.name}_tolerance"}
        frame = results.beside(frame, one.name, names, keys=keys)
    return results.beside(frame, "weights_bit_equal", {"value": "weights_bit_equal", "n": "ranks"})


def status(results: Results) -> pd.DataFrame:
    """A row for each cell and number of nodes: runs planned, a count for each status, reasons."""
    lines = []
    runs, drifts = results.pick("run", "status"), results.pick("run", "drift")
    tested = drifts[drifts["text"] != NOT_TESTED]
    for (_, cell, nodes), part in runs.groupby(["cell_order", "cell", "nodes"], sort=True):
        own = tested[(tested["cell"] == cell) & (tested["nodes"] == nodes)]
        drifted = records(own[own["text"] == DRIFT])
        lines.append({
            **{name: part[name].iloc[0] for name in [*PLACE, "label"]},
            "runs": len(part),
            **{status: int((part["text"] == status).sum()) for status in STATUSES},
            "reasons": "; ".join(sorted(part["reason"].dropna().unique())),
            "drift_tested": len(own),
            "drifted": len(drifted),
            "drifts": ", ".join(f"r{r['repeat']} {100 * r['value']:+.1f} %" for r in drifted),
        })  # fmt: skip
    return pd.DataFrame(lines)


_MEMORY = [f"{name}_memory_bytes" for name in ("peak", "base", "predicted", "formula")]


def _ranks_memory(results: Results, *each: str) -> pd.DataFrame:
    """A row for each rank of a cell (and of `each`): medians of its bytes, NaN where none ran."""
    rows = results.pick("rank", *_MEMORY)
    medians = rows.groupby([*KEYS, *each, "rank", "metric"], sort=False)["value"].median()
    return medians.unstack("metric").reindex(columns=_MEMORY).reset_index()


def memory(results: Results) -> pd.DataFrame:
    """One or two rows for each cell and number of nodes; bytes, and ratios above the base.

    A rank whose peak is within a twentieth of that of rank 0 gets no row, if the predictions are
    the same.
    """
    cells = results.pick("cell", "num_ok")[[*PLACE, "label"]]
    frame = cells.merge(_ranks_memory(results), on=KEYS, how="left")
    above = frame["peak_memory_bytes"] - frame["base_memory_bytes"]
    for name in ("predicted", "formula"):
        frame[f"{name}_ratio"] = (frame[f"{name}_memory_bytes"] / above).where(above > 0)
    kept = []
    for _, part in frame.groupby(KEYS, sort=False):
        # Rank 0, or the one row of a cell that never ran, and the largest of the others.
        first, others = part.iloc[:1], part.iloc[1:]
        kept.append(first)
        if len(others):
            largest = others.loc[[others["peak_memory_bytes"].idxmax()]]
            peaks = largest["peak_memory_bytes"], first["peak_memory_bytes"]
            predictions = largest["predicted_memory_bytes"], first["predicted_memory_bytes"]
            if not (np.array_equal(*predictions) and np.allclose(*peaks, rtol=0.05)):
                kept.append(largest)
    return pd.concat(kept, ignore_index=True)


def utilisation(results: Results) -> pd.DataFrame:
    """Every cell with its FLOP and FLOP/s, beside the datasheet of its device; shares of 1."""
    frame = results.pick("cell", "num_ok")[[*PLACE, *_SHARED, "ranks_per_node"]]
    runs = results.table[results.table["level"] == "run"]
    ran = runs[(runs["status"] == "ok") & (runs["device"] == "cuda")]
    # What all finished runs of a cell ran on has a datasheet; a CPU or a mixture has none.
    peaks = []
    for row in records(frame):
        own = ran[(ran["cell"] == row["cell"]) & (ran["nodes"] == row["nodes"])]
        dtypes = {*own.loc[own["metric"] == "compute_dtype", "text"]}
        lists = own.loc[own["metric"] == "gpus", "text"]
        gpus = {name for text in lists for name in text.split(", ")}
        is_one = len(gpus) == len(dtypes) == 1
        peaks.append(datasheet_peak(gpus.pop(), dtypes.pop()) if is_one else None)
    for name, absent in (("device", None), ("source", None), ("flops_per_second", math.nan)):
        frame[f"datasheet_{name}"] = [getattr(peak, name, absent) for peak in peaks]
    frame["share_of_datasheet"] = math.nan
    frame = _with_metrics(frame, results, "utilisation")
    # A process may drive all devices of a node.
    devices = (frame["nodes"] * frame["ranks_per_node"]).astype(float)
    most = frame["datasheet_flops_per_second"] * devices
    return frame.assign(share_of_datasheet=frame["model_flops_per_second"] / most)


def _axes(results: Results, prefix: str) -> pd.DataFrame:
    """Rows of the finished profiled runs of a metric that has a value per axis, named `axis`."""
    metrics = results.table["metric"].unique()
    named = results.pick("profile", *(one for one in metrics if one.startswith(f"{prefix}:")))
    named = named[named["status"] == "ok"].reset_index(drop=True)
    return named.assign(axis=[str(name).partition(":")[2] for name in named["metric"]])


def sends(results: Results) -> pd.DataFrame:
    """A row for each cell, number of nodes and axis, of the rank that sends most; bytes of a step.

    `ratio` is what was counted over what the formula gives, `between_nodes_bytes` what of it goes
    to other nodes.
    """
    keys = [*KEYS, "rank", "axis"]
    # Of ranks that send as much, the one from which most leaves the node.
    order = ["predicted_bytes", "counted_bytes", "between_nodes_bytes"]
    names = {"value": "predicted_bytes", "text": "formula"}
    both = _axes(results, "predicted_sent_bytes").rename(columns=names)
    for prefix, names in (
        ("sent_bytes", {"value": "counted_bytes", "text": "calls"}),
        ("between_nodes_bytes", {"value": "between_nodes_bytes"}),
    ):
        counted = _axes(results, prefix).rename(columns=names)[[*keys, *names.values()]]
        both = both.merge(counted, on=keys, how="left")
    both = both.sort_values(order, ascending=False, kind="stable")
    most = both.drop_duplicates([*KEYS, "axis"])
    most = most.sort_values(["cell_order", "nodes", "axis"], kind="stable").reset_index(drop=True)
    ratio = (most["counted_bytes"] / most["predicted_bytes"]).where(most["predicted_bytes"] > 0)
    columns = ["strategy", "axis", "rank", "formula", *order]
    # Of an axis without a formula nothing is predicted.
    most["predicted_bytes"] = most["predicted_bytes"].where(most["formula"].notna())
    return most[[*PLACE, "label", *columns]].assign(ratio=ratio, calls=most["calls"])


def layouts(results: Results) -> pd.DataFrame:
    """Every cell: bytes, seconds and shares beside their formulas; NaN where nothing is known."""
    frame = _every_cell(results)
    each = _ranks_memory(results, "run_id")
    each["memory_bytes"] = each["peak_memory_bytes"] - each["base_memory_bytes"]
    # As the peak of a cell: the largest rank of each run, the median over the runs.
    sizes = ["memory_bytes", "predicted_memory_bytes"]
    largest = each.sort_values("memory_bytes", kind="stable").groupby([*KEYS, "run_id"])[sizes]
    most = largest.last().groupby(KEYS).median()
    # A base that is larger than the peak is not that of these ranks.
    frame = frame.join(most.where(most > 0), on=KEYS)
    # An axis that no formula names was counted alone.
    named = Results(results.table[results.table["text"].notna()])
    for known, name in ((named, "predicted_sent_bytes"), (results, "sent_bytes")):
        most_bytes = known.most_sent(name).groupby(KEYS)["value"].max()
        frame = frame.join(most_bytes.rename(name), on=KEYS)
    frame = _with_metrics(frame.assign(ideal_seconds=math.nan), results, "layouts")
    # For as many tokens as the cell has, which may be fewer than the single device's.
    tokens = results.pick("cell", "step_seconds").groupby(KEYS)["global_batch_tokens"].first()
    work = frame.join(tokens, on=KEYS)["global_batch_tokens"]
    alone = (frame["step_seconds"] / work)[frame["world_size"] == 1].dropna()
    ideal = work / frame["world_size"] * (alone.iloc[0] if len(alone) else math.nan)
    ideal *= 1 + frame["phase_bubble_formula"].fillna(0)
    return frame.assign(ideal_seconds=ideal.where(frame["step_seconds"].notna()))


_FACTS = {
    "Processor": "cpu_model",
    "Cores": "num_cores",
    "GPUs": "gpus",
    "Launcher": "launcher",
    "Threads a rank": "threads_per_rank",
    "Backend": "backend",
    "Git commit": "git_commit",
    "Image digest": "image_digest",
    "Tokeniser SHA-256": "tokenizer_sha256",
    "Host": "host",
    "Kernel": "kernel",
    "Virtualisation": "virtualisation",
    "GPU driver": "driver",
    "NCCL": "nccl",
    "NCCL's transports": "nccl_transports",
    "NCCL's cards": "nccl_cards",
    "NCCL's channels": "nccl_channels",
    "Interface": "interface",
    "Interface [Mbit/s]": "interface_mbits",
    "Emulated: shares of cores": "shares",
    "TCP's congestion control": "tcp_congestion_control",
}
"""Facts that the runs recorded; one that none of them did, as in older records, has no row."""

_SPANS = {
    "Memory [GiB]": ("memory_bytes", 1 / 2**30),
    "Time taken by the host [%]": ("steal_share", 100),
    "Clock of the cores [MHz]": ("cpu_mhz", 1),
    "Padding of the batches [%]": ("padding_share", 100),
    "Emulated: copies of a world": ("copies", 1),
    "Emulated: cores of a node that it got": ("measured_cores", 1),
    "Emulated: rate into a node [Mbit/s]": ("measured_mbits", 1),
    "Emulated: one byte to the next node [µs]": ("latency_us", 1),
    "Emulated: TCP's least time-out [ms]": ("tcp_rto_min_seconds", 1000),
    "Emulated: speed of a core over the yardstick's [%]": ("machine_speed", 100),
}
"""Numbers of the runs, of which the table has the least and the largest."""


def environment(results: Results) -> pd.DataFrame:
    """Two columns, item and value: hardware, threads, provenance, data, then versions."""
    table = results.table
    runs = table[table["level"] == "run"]
    value = {str(name): rows["value"].dropna() for name, rows in runs.groupby("metric")}
    none = pd.Series(dtype=float)
    items = {item: results.fact(name) for item, name in _FACTS.items() if name in value}
    for item, (name, scale) in _SPANS.items():
        if len(own := scale * value.get(name, none)):
            ends = dict.fromkeys(f"{end:,.4g}" for end in (own.min(), own.max()))
            items[item] = " to ".join(ends)
    if len(stalled := value.get("stalled", none)):
        items["Emulated: runs that stalled"] = f"{stalled.sum():.0f} of {len(stalled)}"
    tested = runs[(runs["metric"] == "drift") & (runs["text"] != NOT_TESTED)]["text"]
    items["Runs that drifted"] = (
        f"{(tested == DRIFT).sum()} of {len(tested)} tested"
        if len(tested)
        else "none tested: too few timed steps"
    )
    order = table[table["metric"] == "order_drift"].iloc[0]
    change = "" if pd.isna(order["value"]) else f" ({100 * order['value']:+.1f} %)"
    kept = results.fact("order_kept")
    items["Order of runs"] = f"{kept}; step times over it: {order['text']}{change}"
    if len(clock := value.get("timer_overhead_seconds", none)):
        share = probability(100 * value["timer_overhead_share"].max())
        slowest = significant(1e6 * clock.max(), 2)
        items["Timer overhead"] = f"at most {slowest} microseconds, {share} % of a step"
    items["Token manifest SHA-256"] = ", ".join(sorted(runs["data"].dropna().unique())) or NONE
    versions = sorted(m for m in runs["metric"].unique() if m.startswith("version:"))
    items["Versions"] = ", ".join(
        f"{name.removeprefix('version:')} {results.fact(name)}" for name in versions
    )
    return pd.DataFrame(items.items(), columns=["item", "value"])
