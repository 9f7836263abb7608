"""The tidy table: one value a row, its columns, and reading and writing it as Parquet.

`level` says what a row is about: `study`, `cell` (a cell at one node count, over its repeats),
`comparison` (a cell against `other`, both at the node counts given), `run`, `rank` (one rank of one
run), `step` (one optimiser step of one run) or `profile` (a profiled run or one of its ranks, which
stand at no other level). A fact that is not a number stands in `text`; `low` and `high` bound
`value` by the rule that `interval` names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from pipeline.errors import RecordError
from pipeline.files import atomic_path, open_regular

LEVELS = ("study", "cell", "comparison", "run", "rank", "step", "profile")

_TEXT = (
    "study level cell label arm arm_label strategy precision precision_ran scaling schedule data "
    "model device network link run_id status reason origin metric unit interval base other text"
).split()
_INTEGERS = (
    "cell_order nodes ranks_per_node world_size data_devices global_batch global_batch_tokens "
    "accumulation updates_per_step seed repeat step rank n other_nodes"
).split()
_NUMBERS = ("value", "low", "high")

COLUMNS: dict[str, str] = {
    **dict.fromkeys(_TEXT, "str"),
    **dict.fromkeys(_INTEGERS, "Int64"),
    "timed": "boolean",
    **dict.fromkeys(_NUMBERS, "float64"),
}

# A table from before the column has what it was then, this other column.
_LATER = {"data_devices": "world_size"}

# Their type in COLUMNS is all that the schema asks of them.
_PER_ROW = ("step", "rank", "timed", *_NUMBERS, "n", "text")


def assemble(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """One table of all `frames`, with every column of `COLUMNS` in its type.

    Column by column: pandas takes many times as long to join a thousand frames of some rows.
    """
    cells: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for frame in frames:
        for name in frame.columns:
            if name not in cells:
                raise RecordError(f"metrics have no column {name!r}; add it to COLUMNS")
        for name, column in cells.items():
            column += frame[name].tolist() if name in frame else [math.nan] * len(frame)
    return pd.DataFrame(cells, dtype=object).astype(COLUMNS)


def rows(context: Mapping[str, Any], values: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A frame of `values`, each sharing the columns of `context`."""
    return pd.DataFrame([{**context, **value} for value in values])


def with_context(frame: pd.DataFrame, context: Mapping[str, Any]) -> pd.DataFrame:
    """`frame` with a column for each entry of `context`, made at once: `assign` makes each anew."""
    columns: dict[str, Any] = {str(name): frame[name] for name in frame}
    return pd.DataFrame(columns | dict(context), index=frame.index)


def check(table: pd.DataFrame, where: Path | str) -> None:
    """Raise RecordError unless the table fits `metrics.schema.json` and its numbers are possible.

    The schema asks something of each value by itself, and of what is there by the level, so every
    distinct value and every pattern of columns that are there at a level is validated once.
    """
    from pipeline.schemas import validate, validator

    fits = validator("metrics").is_valid
    keys = table.drop(columns=list(_PER_ROW))
    pattern = keys.notna().assign(level=table["level"])
    chosen = {*pattern.drop_duplicates().index}.union(
        *(keys[name].drop_duplicates().index for name in keys)
    )
    for row in table.loc[sorted(chosen)].drop(columns=list(_PER_ROW)).to_dict("records"):
        present = {name: value for name, value in row.items() if not pd.isna(value)}
        if not fits(present):
            validate(present, "metrics", where)
    bounded = table.dropna(subset=["low", "high", "value"])
    outside = bounded[(bounded.low > bounded.value) | (bounded.high < bounded.value)]
    if not outside.empty:
        first = outside.iloc[0]
        raise RecordError(
            f"{where}: {first['metric']} of {first['cell']} at {first['nodes']} nodes is "
            f"{first['value']}, outside its interval [{first['low']}, {first['high']}]; the "
            "statistics are wrong, report this"
        )


def write(table: pd.DataFrame, final: Path) -> None:
    """Validate and write the table as Parquet; equal tables give equal bytes."""
    check(table, final)
    with atomic_path(final) as temporary:
        table.to_parquet(temporary, engine="pyarrow", compression="zstd", index=False)


def read(path: Path) -> pd.DataFrame:
    """The table under `path`; raises RecordError when it is missing or not such a table."""
    try:
        with open_regular(path) as stream:
            table = pd.read_parquet(stream, engine="pyarrow")
    except FileNotFoundError:
        raise RecordError(
            f"{path} does not exist; run `python -m pipeline metrics` first"
        ) from None
    except (pa.ArrowException, ValueError, OSError) as error:
        reason = " ".join(str(error).split())[:120]
        raise RecordError(
            f"{path} is not Parquet ({reason}); delete it and run `python -m pipeline metrics`"
        ) from None
    for name, former in _LATER.items():
        if name not in table.columns and former in table.columns:
            table[name] = table[former]
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise RecordError(
            f"{path} has no column {missing[0]!r}; it is of another version, delete it and run "
            "`python -m pipeline metrics`"
        )
    try:
        return table.astype(COLUMNS)
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        raise RecordError(
            f"{path} has a column of another type ({reason}); delete it and run "
            "`python -m pipeline metrics`"
        ) from None
