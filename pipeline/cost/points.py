"""Files of points: a CSV of configurations is read, and written with predictions of each row.

No measured column is read, but by `predict_from_base`. Where layout or micro-batch are not
published, all that are possible are predicted: the answer is the fastest that fits, and a range
above it.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.cost.constants import Constants, content
from pipeline.cost.job import CONFIGURATION, Impossible, Job, Refused, jobs_of
from pipeline.cost.predict import PARTS, Prediction, predict
from pipeline.documents import MAX_MADE_BYTES, read_text
from pipeline.errors import PredictionError
from pipeline.files import write_text

ADDED = (
    "step_s_pred", "step_s_low", "step_s_high", *(f"{part}_s_pred" for part in PARTS),
    "mem_gib_pred", "fits", "reason",
)  # fmt: skip
RANGE = 1.15
"""Ratio of the ends of the answer where a layout or a micro-batch is not published."""
USABLE = 0.94
"""Share of a device's memory that a process can have; the driver and libraries keep the rest."""


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV; raises PredictionError on one without the columns `hardware` and `gpus`.

    So it does where a row has more or fewer values than the header: a comma too many would move
    every value after it into another column.
    """
    text = read_text(path, "", PredictionError, max_bytes=MAX_MADE_BYTES)
    lines = csv.reader(io.StringIO(text), strict=True)
    try:
        head = next(lines, [])
        rows = [(lines.line_num, row) for row in lines if row]
    except csv.Error as error:
        raise PredictionError(
            f"{path}:{lines.line_num} is not CSV ({error}); correct the line"
        ) from None
    if not {"hardware", "gpus"} <= {*head} or len({*head}) < len(head):
        raise PredictionError(
            f"{path} has no columns hardware and gpus, or one of them twice; give a CSV with a "
            f"header, one configuration a row, of the columns {', '.join(CONFIGURATION)}"
        )
    for number, row in rows:
        if len(row) != len(head):
            raise PredictionError(
                f"{path}:{number} has {len(row)} values for {len(head)} columns; quote what holds "
                "a comma"
            )
    if not rows:
        raise PredictionError(f"{path} has no row; give one configuration a row")
    return [dict(zip(head, row, strict=True)) for _, row in rows]


def predict_row(row: Mapping[str, str], constants: Constants) -> dict[str, str]:
    """Columns added to a row; empty values and a reason where it cannot be predicted."""
    try:
        job, best, most = fastest(row, constants)
    except Refused as refused:
        fits_nowhere = "false" if isinstance(refused, Impossible) else ""
        return dict.fromkeys(ADDED, "") | {"reason": str(refused), "fits": fits_nowhere}
    return answer_of(job, best, content()["band"][kind_of(job, constants)], most)


def fastest(row: Mapping[str, str], constants: Constants) -> tuple[Job, Prediction, float]:
    """The fastest of a row's jobs that fits, and the ratio by which the answer reaches above it."""
    options = [(job, predict(job, constants)) for job in jobs_of(row)]
    fitting = [one for one in options if fits(*one)] or options
    job, best = min(fitting, key=lambda one: one[1].seconds)
    slowest = max(prediction.seconds for _, prediction in fitting)
    return job, best, min(RANGE, slowest / best.seconds) if len(options) > 1 else 1.0


def answer_of(
    job: Job, best: Prediction, band: Sequence[float], most: float = 1.0
) -> dict[str, str]:
    """The values of the added columns; the answer is a range of `most` above `best`."""
    middle = math.sqrt(most)
    seconds = best.seconds
    values = [seconds * middle, seconds * band[0], seconds * most * band[1]]
    values += [getattr(best, part) * middle for part in PARTS]
    values.append(best.gibibytes)
    whether = str(fits(job, best)).lower() if job.device_gib else ""
    return dict(zip(ADDED, [*(f"{value:.6g}" for value in values), whether, ""], strict=True))


def fits(job: Job, prediction: Prediction) -> bool:
    """True where the largest rank has room on its device, or that memory is not stated."""
    return not job.device_gib or prediction.gibibytes <= USABLE * job.device_gib


def kind_of(job: Job, constants: Constants) -> str:
    """Name of the band: of a known implementation or not, and whether a tensor axis meets nodes.

    It does (`crossing`) where it or the pipeline around it has ranks on several of them: each layer
    waits for collectives, and a pipeline alone sends once a stage.
    """
    known = constants.knows(f"{job.framework} {job.note}")
    crossing = job.tp > 1 and any(job.crosses)
    return f"{'known' if known else 'unknown'} {'crossing' if crossing else 'inner'}"


SCALED = ("gpus", "dp", "accum", "global_batch")
FAMILY = tuple(name for name in CONFIGURATION if name not in SCALED)
LEAST, MOST = 0.2, 5.0
"""Scale of a device's own time; a base beyond it is no measurement of the same thing."""


def families(rows: Sequence[Mapping[str, str]]) -> Iterator[list[int]]:
    """Places of the rows that are alike but for `SCALED`, the smallest world first."""
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
        return math.inf


def predict_from_base(
    rows: Sequence[Mapping[str, str]], constants: Constants
) -> list[dict[str, str]]:
    """Columns added to each row, larger worlds from the smallest of their family: `--base`.

    What a device does by itself is scaled by what the base measured over what was predicted of it;
    communication is as predicted. Of the base alone the measured step is read, the one case in
    which a measurement is. `base` names the world a row is from, empty for a base itself.
    """
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


def write(rows: Iterable[Mapping[str, str]], out: Path) -> None:
    """Write rows as CSV, with the columns of the first row in their order."""
    rows = list(rows)
    text = io.StringIO()
    names = list(rows[0]) if rows else list(ADDED)
    writer = csv.DictWriter(text, names, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    write_text(out, text.getvalue())
