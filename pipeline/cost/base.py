"""Larger worlds from the measured step of the smallest: `predict --base`.

Rows alike but for gpus, dp, accum and global_batch are one family. What a device does by itself is
scaled by what the base measured over what was predicted of it; communication is as predicted. Of
the base alone the measured step is read, the one case in which a measurement is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pipeline.cost.constants import Constants, content
from pipeline.cost.job import CONFIGURATION, Refused, jobs_of
from pipeline.cost.points import ADDED, answer_of, predict_row
from pipeline.cost.predict import predict

SCALED = ("gpus", "dp", "accum", "global_batch")
FAMILY = tuple(name for name in CONFIGURATION if name not in SCALED)
LEAST, MOST = 0.2, 5.0
"""Scale of a device's own time; a base beyond it is no measurement of the same thing."""


def families(rows: Sequence[Mapping[str, str]]) -> Iterator[list[int]]:
    """Places of the rows of each family, the smallest world first."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, row in enumerate(rows):
        key = tuple(row.get(name, "") for name in FAMILY)
        groups.setdefault(key, []).append(place)
    for places in groups.values():
        yield sorted(places, key=lambda place: _gpus(rows[place]))


def _gpus(row: Mapping[str, str]) -> float:
    try:
        return float(row["gpus"])
    except ValueError:
        return float("inf")


def predict_rows(rows: Sequence[Mapping[str, str]], constants: Constants) -> list[dict[str, str]]:
    """Columns added to each row; `base` names the world it is from, empty for a base itself."""
    values_of: list[dict[str, str]] = [{} for _ in rows]
    for places in families(rows):
        base = rows[places[0]]
        for place in places:
            row = rows[place]
            scaled = _gpus(row) > _gpus(base)
            values = _from_base(row, base, constants) if scaled else predict_row(row, constants)
            values_of[place] = {**values, "base": base["gpus"] if scaled else ""}
    return values_of


def _from_base(
    row: Mapping[str, str], base: Mapping[str, str], constants: Constants
) -> dict[str, str]:
    try:
        measured = float(base.get("step_s") or "nan")
        job, base_job = jobs_of(row)[0], jobs_of(base)[0]
        whole, small = predict(job, constants), predict(base_job, constants)
    except (Refused, ValueError) as refused:
        return dict.fromkeys(ADDED, "") | {"reason": str(refused)}
    if not measured > 0:
        return dict.fromkeys(ADDED, "") | {"reason": "the smallest world has no measured step_s"}
    own = small.seconds - small.communication
    scale = min(max((measured - small.communication) / own, LEAST), MOST)
    # Only what a device does by itself is scaled.
    scaled = replace(whole.scaled(scale), communication=whole.communication)
    return answer_of(job, scaled, content()["band"]["base"])
