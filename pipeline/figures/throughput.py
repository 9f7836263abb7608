"""Throughput against nodes; `python -m pipeline figure throughput`."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from pipeline.figures import against_nodes
from pipeline.metrics.comparison import declared_by_study
from pipeline.metrics.select import pick, records
from pipeline.reference import Number, ids, load

CAPTION = (
    "Training throughput: the tokens of one step over the median step time, with its interval. "
    "Where cells ran at several numbers of nodes, both axes are logarithmic, dashed lines show "
    "ideal scaling from each base, points are moved sideways a little so that none hides another, "
    "and nothing was measured between the points that a line joins."
)
COMPARES = {"precision"}


def draw(table: pd.DataFrame) -> Figure:
    """Tokens per second of every cell at every node count, a panel for each link."""
    values = pick(table, "cell", "tokens_per_second")
    bases = pick(table, "cell", "base_tokens_per_second")
    numbers = published_step_seconds(table)
    tokens = values.set_index(["cell", "nodes"])["global_batch_tokens"]
    devices = dict.fromkeys(str(number.setting["device"]) for number in numbers.values())
    return against_nodes.draw(
        table,
        values,
        "Throughput [tokens/s]",
        scale=dict(zip(bases["base"], bases["value"], strict=True)),
        published={place: tokens[place] / one.value for place, one in numbers.items()},
        source=f"published, on {' and '.join(devices)}",
    )


def published_step_seconds(table: pd.DataFrame) -> dict[tuple[str, int], Number]:
    """(cell, nodes) -> the published step time of the very setting that a cell has, in seconds.

    An absolute time of other hardware may stand beside a measured one only where model, batch,
    precision and number of devices agree and both are of GPUs; a study on a CPU gets none. Nor does
    a study whose arms differ in their work: the table does not say what each step did besides.
    """
    if declared_by_study(table):
        return {}
    known = [
        number
        for study in ids()
        for number in load(study).numbers.values()
        if number.unit == "s"
        and "model" in number.setting
        and not number.setting.get("empty_cache", False)
    ]
    on_gpus = pick(table, "cell", "step_seconds").query("device == 'cuda'")
    columns = ["strategy", "precision", "nodes", "global_batch", "model", "world_size"]
    keys = [*columns[:-1], "devices"]
    settings = {tuple(number.setting.get(key) for key in keys): number for number in known}
    return {
        (row["cell"], int(row["nodes"])): settings[place]
        for row in records(on_gpus)
        if (place := tuple(row[name] for name in columns)) in settings
    }
