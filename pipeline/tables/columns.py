"""The columns of a table: which numbers it takes from the metrics, and how they read as text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from pipeline.metrics.format import NONE, ratio_interval, significant, with_interval
from pipeline.metrics.select import beside, bounds_of, pick

PLACE = ["cell", "arm", "arm_label", "link", "nodes"]
"""Columns of the table of metrics by which `places` names a row."""

MEBIBYTES, MILLISECONDS, PER_CENT, GIGA = 1 / 2**20, 1000, 100, 1e-9
"""Factors by which bytes, seconds, shares and rates are multiplied to be shown."""

whole, hundredths = "{:,.0f}".format, "{:.2f}".format
# In place of a link: each of them has the same rows.
EVERY = "every"


@dataclass(frozen=True)
class Column:
    """A column as text: its title, the column of numbers, what these are multiplied by, their look.

    `write` takes the value, or with `bounded` the value and both bounds.
    """

    title: str
    name: str
    scale: float | None = None
    write: Callable[..., str] = significant
    bounded: bool = False

    def texts(self, frame: pd.DataFrame) -> list[str]:
        """The text of each row, a dash where it has no value."""
        ends = ("", "_low", "_high") if self.bounded else ("",)
        rows = zip(*(frame[self.name + end] for end in ends), strict=True)
        return [
            NONE
            if pd.isna(row[0])
            else self.write(*(one if self.scale is None else self.scale * one for one in row))
            for row in rows
        ]


def text(title: str, name: str) -> Column:
    """A column of words or of whole numbers, as they are."""
    return Column(title, name, write=str)


def interval(title: str, name: str, scale: float = 1) -> Column:
    """A column of values with their intervals."""
    return Column(title, name, scale, with_interval, bounded=True)


def ratio(title: str, name: str) -> Column:
    """A column of ratios with their intervals, all with as many decimals."""
    return Column(title, name, write=ratio_interval, bounded=True)


def shown(frame: pd.DataFrame, columns: Sequence[Column]) -> pd.DataFrame:
    """`frame` as text: what its rows are about, then these columns."""
    return pd.DataFrame({**places(frame), **{one.title: one.texts(frame) for one in columns}})


def places(frame: pd.DataFrame) -> dict[str, list[str]]:
    """Columns that say what a row is about: the cell, its link where links are compared, its nodes.

    `frame` has the columns of `PLACE`; a cell at one node, which uses no link, has a dash.
    """
    over = frame["link"].astype(object).where(frame["cell"] != frame["arm"]).fillna(NONE)
    found = {"Cell": list(frame["arm_label"]), "Link": list(over)}
    if (over == NONE).all():
        del found["Link"]
    return {**found, "Nodes": [str(nodes) for nodes in frame["nodes"]]}


def every_cell(table: pd.DataFrame, *more: str) -> pd.DataFrame:
    """A row for each cell and node count, with `PLACE`, its label and the columns `more`."""
    return pick(table, "cell", "num_ok")[[*PLACE, "label", *more]]


def with_measures(
    frame: pd.DataFrame,
    table: pd.DataFrame,
    measures: Mapping[str, str] | Sequence[str],
    bounded: Collection[str] = (),
) -> pd.DataFrame:
    """`frame` with a column for each of these metrics of its cell and nodes, NaN where none is.

    `measures` may give the columns by metric; those in `bounded` have `_low` and `_high` beside.
    """
    for metric in measures:
        name = measures[metric] if isinstance(measures, Mapping) else metric
        names = bounds_of(name) if metric in bounded else {"value": name}
        frame = beside(frame, table, metric, names)
    return frame


def same_over_links(shown: pd.DataFrame) -> pd.DataFrame:
    """`shown` with the rows of a cell once, of every link, where each link has the same ones."""
    if "Link" not in shown or shown["Link"].nunique() < 2:
        return shown
    kept = []
    for _, rows in shown.groupby("Cell", sort=False):
        over = [part.drop(columns="Link") for _, part in rows.groupby("Link", sort=False)]
        if len(over) == shown["Link"].nunique() and all(
            part.to_numpy().tolist() == over[0].to_numpy().tolist() for part in over
        ):
            rows = rows.loc[over[0].index].assign(Link=EVERY)
        kept.append(rows)
    return pd.concat(kept, ignore_index=True)


def once(shown: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """`shown` with a repeated value left blank below its first row, in each of `columns`.

    A value also stands again where one to the left of it, in `columns`, is a new one.
    """
    new, found = pd.Series(False, index=shown.index), {}
    for column in columns:
        new = new | (shown[column] != shown[column].shift())
        found[column] = shown[column].where(new, "")
    return shown.assign(**found)
