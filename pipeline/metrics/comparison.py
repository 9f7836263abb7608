"""The rule of equal work: what must agree before two cells may stand in one comparison.

A figure or table declares in `COMPARES` the fields that it is about; every other field of `FIELDS`
must agree over all rows that it compares. Under weak scaling the global batch grows with the world
by definition, so there it is the batch per rank that must agree.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.errors import ComparisonError

if TYPE_CHECKING:
    import pandas as pd

FIELDS = ("global_batch", "schedule", "updates_per_step", "precision", "data", "model")


def require_equal_work(
    table: pd.DataFrame, compares: Collection[str], what: str = "comparison"
) -> None:
    """Raise ComparisonError naming the first field in which rows of `table` differ.

    Only rows of runs that finished are compared; `compares` lists the fields that may differ, and
    the study may declare more of them (row `compares` of level `study`). Profiled runs, which are
    shorter, are held against the timed ones where their rows are made.
    """
    allowed = {*compares, *declared_by_study(table)}
    unknown = sorted({*compares} - {*FIELDS})
    if unknown:
        raise ComparisonError(
            f"{what} compares {unknown[0]!r}, which is no field of equal work; use one of "
            + ", ".join(FIELDS)
        )
    compared = (table["status"] == "ok") & table["cell"].notna() & (table["level"] != "profile")
    ran = table.loc[compared, ["cell", "nodes", "scaling", "data_devices", *FIELDS]]
    for field in (field for field in FIELDS if field not in allowed):
        places = ran.drop_duplicates(["cell", "nodes", field])
        values = places[field]
        if field == "global_batch" and (places["scaling"] == "weak").all():
            values = values / places["data_devices"]
        different = values[values != values.iloc[0]] if len(values) else values
        if different.empty:
            continue
        first, other = places.iloc[0], places.loc[different.index[0]]
        raise ComparisonError(
            f"{what} refuses: {field} is {first[field]} in cell {first['cell']!r} at "
            f"{first['nodes']} nodes and {other[field]} in {other['cell']!r} at {other['nodes']} "
            f"nodes; make the cells do equal work or declare that {field} is compared"
        )


def declared_by_study(table: pd.DataFrame) -> set[str]:
    """Fields that the study itself sets out to compare."""
    declared = table.loc[(table["level"] == "study") & (table["metric"] == "compares"), "text"]
    return {field for text in declared for field in text.split()}


def unequal_work(
    one: Mapping[str, Any], other: Mapping[str, Any], allowed: Collection[str]
) -> list[str]:
    """Fields in which two cells did not do equal work, without those that are `allowed` to differ.

    Precision may always differ: labels name it. Under weak scaling it is the batch per rank that
    must agree.
    """
    weak = one["scaling"] == other["scaling"] == "weak"

    def value(context: Mapping[str, Any], field: str) -> object:
        per_rank = weak and field == "global_batch"
        return context[field] / context["data_devices"] if per_rank else context[field]

    return [
        field
        for field in FIELDS
        if field not in {*allowed, "precision"} and value(one, field) != value(other, field)
    ]
