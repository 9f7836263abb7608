"""The tidy table: one value per row, its columns, and reading and writing it as Parquet.

`level` says what a row is about: `study`, `cell` (a cell at one node count, over its repeats),
`comparison` (a cell against `other`, both at the node counts given), `run`, `rank` (one rank of one
run), `step` (one optimiser step of one run), `profile` (a profiled run or one of its ranks) or
`real_time` (a run in real time), and runs of the last two stand at no other level. A fact that is
not a number stands in `text`; `low` and `high` bound `value` by the rule that `interval` names.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import RecordError
from pipeline.files import atomic_path, open_regular
from pipeline.metrics.statistics import MIN_REPEATS, Interval
from pipeline.schemas import validate

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

# Their type in COLUMNS is all that the schema asks of them.
_PER_ROW = ("step", "rank", "timed", *_NUMBERS, "n", "text")


class Rows(NamedTuple):
    """Some rows of a table: the columns that all of them share, and those of each."""

    shared: Mapping[str, Any]
    values: Sequence[Mapping[str, Any]]


def row(metric: str, unit: str, value: float, **more: Any) -> dict[str, Any]:
    """The columns of one value."""
    return {"metric": metric, "unit": unit, "value": value, **more}


def interval_row(metric: str, unit: str, value: Interval, **more: Any) -> dict[str, Any]:
    """The columns of one value with its interval."""
    ends = {"low": value.low, "high": value.high, "n": value.n, "interval": value.how}
    return row(metric, unit, value.value, **ends, **more)


def assemble(parts: Iterable[Rows]) -> pd.DataFrame:
    """One table of all `parts`, with every column of `COLUMNS` in its type.

    A value of under `MIN_REPEATS` others loses its bounds: no 95 % interval is made of so few.
    """
    # Column by column: a frame for each of a thousand parts would take many times as long.
    cells: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for shared, values in parts:
        own = {name for value in values for name in value}
        if unknown := (own | shared.keys()) - cells.keys():
            raise RecordError(f"metrics have no column {min(unknown)!r}; add it to COLUMNS")
        for name, column in cells.items():
            common = shared.get(name, math.nan)
            if name in own:
                column += [value.get(name, common) for value in values]
            else:
                column += [common] * len(values)
    table = pd.DataFrame(cells, dtype=object).astype(COLUMNS)
    # The one door: what has no interval here is drawn and printed without one everywhere.
    table.loc[(table["n"] < MIN_REPEATS).fillna(False), ["low", "high"]] = math.nan
    return table


def check(table: pd.DataFrame, where: Path | str) -> None:
    """Raise RecordError unless the table fits `metrics.schema.json`.

    The schema asks something of each value by itself, and of what is there by the level, so every
    distinct value and every pattern of columns that are there at a level is validated once.
    """
    # Rows are many and their patterns few: validating each row would take far longer.
    keys = table.drop(columns=list(_PER_ROW))
    pattern = keys.notna().assign(level=table["level"])
    chosen = {*pattern.drop_duplicates().index}.union(
        *(keys[name].drop_duplicates().index for name in keys)
    )
    for row in keys.loc[sorted(chosen)].to_dict("records"):
        present = {name: value for name, value in row.items() if not pd.isna(value)}
        validate(present, "metrics", where)


_HASH_KEY = b"samestep_sha256"
MAX_ROWS = 50_000_000
"""Ten times the steps of a study of `pipeline.study.expansion.MAX_RUNS` runs of 500 steps."""

MAX_BYTES = 8 << 30
"""Of the columns before compression, as the file states them: a guard against bombs."""


def write(table: pd.DataFrame, final: Path) -> None:
    """Validate and write the table as Parquet with its hash; equal tables give equal bytes."""
    check(table, final)
    content = pa.Table.from_pandas(table, preserve_index=False)
    digest = _sha256(content.to_pandas().astype(COLUMNS))
    known = {**content.schema.metadata, _HASH_KEY: digest.encode()}
    with atomic_path(final) as temporary:
        pq.write_table(content.replace_schema_metadata(known), temporary, compression="zstd")


def read(path: Path, study: str | None = None) -> pd.DataFrame:
    """The table under `path`, as `write` wrote it: what was checked then holds by its hash.

    Raises RecordError where it is missing, not such a table, was changed since, or is of another
    study than `study`.
    """
    again = "delete it and run `python -m pipeline metrics`"
    try:
        with open_regular(path) as stream:
            file = pq.ParquetFile(stream)
            groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
            num_bytes = sum(group.total_byte_size for group in groups)
            # More than any study has, so it is not unpacked.
            if file.metadata.num_rows > MAX_ROWS or num_bytes > MAX_BYTES:
                raise ValueError(f"it states {file.metadata.num_rows} rows of {num_bytes} bytes")
            content = file.read()
    except FileNotFoundError:
        raise RecordError(
            f"{path} does not exist; run `python -m pipeline metrics` first"
        ) from None
    except (pa.ArrowException, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # pyarrow's own have no number
            raise RecordError(
                f"{path} cannot be read: {error.strerror}; give the file of `metrics`, readable"
            ) from None
        reason = " ".join(str(error).split())[:120]
        raise RecordError(f"{path} is not Parquet ({reason}); {again}") from None
    stated = (content.schema.metadata or {}).get(_HASH_KEY, b"").decode("ascii", "replace")
    try:
        table: pd.DataFrame = content.to_pandas().astype(COLUMNS)
        is_whole = list(table) == list(COLUMNS) and stated == _sha256(table)
    except (KeyError, TypeError, ValueError, pa.ArrowException):
        is_whole = False
    if not is_whole:
        raise RecordError(f"{path} is not as `metrics` of this version wrote it; {again}")
    others = set(table["study"].unique()) - {study}
    if study is not None and others:
        raise RecordError(
            f"{path} is of study {min(others)!r}, not of {study!r}; give the table of that study"
        )
    return table


def _sha256(table: pd.DataFrame) -> str:
    """SHA-256 of names and rows of a table read from Parquet, in which all NaN are the same."""
    digest = hashlib.sha256(" ".join(table.columns).encode())
    digest.update(pd.util.hash_pandas_object(table, index=False).to_numpy().tobytes())
    return digest.hexdigest()
