"""Accuracy of the emulated times: runs in real time against the emulated ones of the same cell.

Rows of level `real_time` are about one such run, rows of level `cell` about all of a cell on two
nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from pipeline.metrics.cells import Group, Groups
from pipeline.metrics.labels import Labels, label_of, run_context
from pipeline.metrics.runs import load_run
from pipeline.metrics.statistics import (
    MIN_REPEATS,
    Interval,
    bounds,
    interval_of_ratio,
    repeats_interval,
)
from pipeline.metrics.table import Rows, rows
from pipeline.records import RunRecord
from pipeline.records.record import texts

BASE = "the same cell in real time"


@dataclass(frozen=True)
class Accuracy:
    """Step time of a cell in real time, and the emulated one over it."""

    group: Group
    real: Interval
    ratio: Interval

    @property
    def rows(self) -> Rows:
        """The two, as rows of the cell."""
        shared = {"level": "cell", "base": BASE}
        real = {"metric": "real_time_step_seconds", "unit": "s", **bounds(self.real)}
        ratio = {"metric": "accuracy", "unit": "1", **bounds(self.ratio)}
        return rows(self.group.context, [shared | real, shared | ratio])


def accuracies(records: Sequence[RunRecord], groups: Groups) -> list[Accuracy]:
    """Of each cell that finished both ways; `records` are those of the runs in real time."""
    found = []
    for (cell, nodes), group in groups.items():
        real = [
            load_run(one, {}).timed_seconds
            for one in records
            if one.status == "ok" and (one.spec.cell, one.spec.world.nodes) == (cell, nodes)
        ]
        if real and group.ok:
            seconds = repeats_interval(real)
            ratio = interval_of_ratio(group.step_seconds, seconds)
            found.append(Accuracy(group, seconds, ratio))
    return found


def bias_from(found: Iterable[Accuracy], uncertainty: float = 0.0) -> float | None:
    """Share by which a ratio of two emulated times may be off: the far end of the worst pair.

    All times of a study share the level of its yardstick, the speed of the emulated processor,
    which a ratio does not have; so cells are held against one another, and a single one against
    itself in real time. `uncertainty` is that of a yardstick's passes against each other, which
    two nodes do not show. None where no cell has the repeats that an interval needs.
    """
    ratios = [one.ratio for one in found if one.ratio.n >= MIN_REPEATS]
    pairs = [interval_of_ratio(one, other) for one, other in combinations(ratios, 2)] or ratios
    if not pairs:
        return None
    return max(max(one.high, 1 / one.low) for one in pairs) * (1 + uncertainty) - 1


def real_time_rows(records: Iterable[RunRecord], labels: Labels) -> list[Rows]:
    """Status, times and bytes of each run."""
    return [
        rows(run_context(one, label_of(labels, one)) | {"level": "real_time"}, _facts(one))
        for one in records
    ]


def _facts(record: RunRecord) -> list[dict[str, Any]]:
    ok, size = float(record.status == "ok"), float(sum(map(len, texts(record).values())))
    return [
        {"metric": "status", "unit": "1", "value": ok, "text": record.status},
        *({"metric": name, "text": record.run[name]} for name in ("started_at", "ended_at")),
        {"metric": "record_bytes", "unit": "bytes", "value": size},
    ]
