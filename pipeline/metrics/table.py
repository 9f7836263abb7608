"""The tidy table: one value a row, its columns, and reading and writing it as Parquet.

`level` says what a row is about: `study`, `cell` (a cell at one node count, over its repeats),
`comparison` (a cell against `other`, both at the node counts given), `run`, `rank` (one rank of one
run), `step` (one optimiser step of one run) or `profile` (a profiled run or one of its ranks, which
stand at no other level). A fact that is not a number stands in `text`; `low` and `high` bound
`value` by the rule that `interval` names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.errors import RecordError
from pipeline.files import atomic_path

LEVELS = ("study", "cell", "comparison", "run", "rank", "step", "profile")

_TEXT = (
    "study level cell label arm arm_label strategy precision precision_ran scaling schedule data "
    "model device network link run_id status reason origin metric unit interval base other text"
).split()
_INTEGERS = (
    "cell_order nodes ranks_per_node world_size global_batch global_batch_tokens accumulation "
    "updates_per_step seed repeat step rank n other_nodes"
).split()
_NUMBERS = ("value", "low", "high")

COLUMNS: dict[str, str] = {
    **dict.fromkeys(_TEXT, "str"),
    **dict.fromkeys(_INTEGERS, "Int64"),
    "timed": "boolean",
    **dict.fromkeys(_NUMBERS, "float64"),
}

# What identifies a row beyond its numbers; every distinct combination is validated.
_PER_ROW = ("step", "rank", "timed", *_NUMBERS, "n")


def assemble(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """One table of all `frames`, with every column of `COLUMNS` in its type."""
    kept = [frame for frame in frames if not frame.empty]
    table = pd.concat([frame.astype(object) for frame in kept], ignore_index=True)
    unknown = set(table.columns) - set(COLUMNS)
    if unknown:
        raise RecordError(f"metrics have no column {sorted(unknown)[0]!r}; add it to COLUMNS")
    table = table.reindex(columns=list(COLUMNS))
    return table.astype({name: COLUMNS[name] for name in table.columns})


def rows(context: Mapping[str, Any], values: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A frame of `values`, each sharing the columns of `context`."""
    return pd.DataFrame([{**context, **value} for value in values])


def check(table: pd.DataFrame, where: Path | str) -> None:
    """Raise RecordError unless the table fits `metrics.schema.json` and its numbers are possible.

    Rows that differ only in step, rank and number are validated once, so that a study of a
    million steps is checked in a second.
    """
    from pipeline.schemas import validate, validator

    fits = validator("metrics").is_valid
    keys = table.drop(columns=list(_PER_ROW)).drop_duplicates()
    for row in keys.to_dict("records"):
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
        table = pd.read_parquet(path, engine="pyarrow")
    except FileNotFoundError:
        raise RecordError(
            f"{path} does not exist; run `python -m pipeline metrics` first"
        ) from None
    except (ValueError, OSError) as error:
        reason = " ".join(str(error).split())[:120]
        raise RecordError(
            f"{path} is not Parquet ({reason}); delete it and run `python -m pipeline metrics`"
        ) from None
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise RecordError(
            f"{path} has no column {missing[0]!r}; it is of another version, delete it and run "
            "`python -m pipeline metrics`"
        )
    return table.astype(COLUMNS)
