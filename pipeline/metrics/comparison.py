"""The rule of equal work: what must agree before two cells may stand in one comparison.

A figure or table declares in `COMPARES` the fields that it is about; every other field of `FIELDS`
must agree over all rows that it compares. Under weak scaling the global batch grows with the world
by definition, so there it is the batch per rank that must agree.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

FIELDS = ("global_batch", "schedule", "updates_per_step", "precision", "data", "model")


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
