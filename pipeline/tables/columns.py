"""A table as it is declared, and its columns: numbers -> text. No pandas, for dry runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pipeline.metrics.format import NONE, ratio_interval, significant, with_interval

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Column:
    """A column as text: its title, the column of numbers, what these are multiplied by, their look.

    `name` is a metric of a cell, or a column that the rows of the table have besides. `write` takes
    the value, or with `bounded` the value and both bounds.
    """

    title: str
    name: str
    scale: float | None = None
    write: Callable[..., str] = significant
    bounded: bool = False

    def texts(self, frame: pd.DataFrame) -> list[str]:
        """The text of each row, a dash where it has no value."""
        ends = ("", "_low", "_high") if self.bounded else ("",)
        values = frame[[self.name + end for end in ends]]
        if self.scale is not None:
            values = self.scale * values
        absent = frame[self.name].isna()
        return [
            NONE if none else self.write(*row)
            for none, row in zip(absent, values.itertuples(index=False), strict=True)
        ]


def text(title: str, name: str) -> Column:
    """A column of words or of whole numbers, as they are."""
    return Column(title, name, write=str)


def interval(title: str, name: str, scale: float = 1) -> Column:
    """A column of values with their intervals."""
    return Column(title, name, scale, with_interval, bounded=True)


def ratio(title: str, name: str, scale: float = 1, decimals: int = 2) -> Column:
    """A column of ratios with their intervals, all with as many decimals."""
    return Column(title, name, scale, partial(ratio_interval, decimals=decimals), bounded=True)


@dataclass(frozen=True)
class Table:
    """A table as declared: its numbers are the CSV, its columns all other formats.

    The function of `pipeline.tables.rows` that has the table's name gives the rows; `show` names
    one of `pipeline.tables.texts`, without which the columns stand beside what each row is about.
    `needs` is what the study must have (`pipeline.catalogue`), `compares` the fields of equal work
    that may differ.
    """

    caption: str
    columns: Sequence[Column] = ()
    show: str = "shown"
    needs: str = ""
    compares: Collection[str] = ("precision",)
