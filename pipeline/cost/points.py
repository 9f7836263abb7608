"""Files of points: a CSV of configurations is read, and written with predictions of each row.

No measured column is read, but `step_s` by `predict_from_base`. Where layout or micro-batch are not
published, all that are possible are predicted: the answer is the fastest that fits, and a range
above it.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.cost.constants import Constants, content, profile_name
from pipeline.cost.job import (
    CONFIGURATION,
    EMPTY,
    REFUSED,
    Impossible,
    Job,
    Refused,
    jobs_of,
    number_of,
)
from pipeline.cost.predict import PARTS, Prediction, predict
from pipeline.documents import MAX_MADE_BYTES, read_text
from pipeline.errors import PredictionError
from pipeline.files import write_text

ADDED = (
    "step_s_pred", "step_s_low", "step_s_high", *(f"{part}_s_pred" for part in PARTS),
    "mem_gib_pred", *(f"{axis}_pred" for axis in ("dp", "tp", "pp", "micro")), "fits", "reason",
)  # fmt: skip
RANGE = 1.15
"""Ratio of the ends of the answer where a layout or a micro-batch is not published."""
USABLE = 0.94
"""Share of a device's memory that a process can have; the driver and libraries keep the rest."""


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV; raises PredictionError on one without the columns `hardware` and `gpus`.

    And where a row is not as long as the header: a comma too many moves all values after it.
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


def unread(row: Mapping[str, str], *, base: bool) -> list[str]:
    """Columns of a file that no prediction reads."""
    return [name for name in row if name not in (*CONFIGURATION, *REFUSED, *["step_s"] * base)]


def predict_row(
    row: Mapping[str, str], constants: Constants, scale: float | None = None
) -> dict[str, str]:
    """Columns added to a row; empty values and a reason where it cannot be predicted.

    `scale`: factor on what a device does by itself, from a measured smaller world.
    """
    try:
        job, best, most = fastest(row, constants)
    except Refused as refused:
        fits_nowhere = "false" if isinstance(refused, Impossible) else ""
        return dict.fromkeys(ADDED, "") | {"reason": str(refused), "fits": fits_nowhere}
    if scale is None:
        return answer_of(job, best, band_of(job, constants), most)
    best = replace(best.scaled(scale), communication=best.communication)
    return answer_of(job, best, content()["band"]["base"], most)


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
    middle, seconds = math.sqrt(most), best.seconds
    values = [seconds * middle, seconds * band[0], seconds * most * band[1]]
    values += [getattr(best, part) * middle for part in PARTS]
    values.append(best.gibibytes)
    layout = map(str, (job.dp, job.tp, job.pp, job.micro))
    whether = str(fits(job, best)).lower() if job.device_gib else ""
    texts = (*(f"{value:.6g}" for value in values), *layout, whether, "")
    return dict(zip(ADDED, texts, strict=True))


def fits(job: Job, prediction: Prediction) -> bool:
    """True where the largest rank has room on its device, or that memory is not stated."""
    return not job.device_gib or prediction.gibibytes <= USABLE * job.device_gib


def kind_of(job: Job, constants: Constants) -> str:
    """Name of the band: of a known implementation or not, and whether a tensor axis meets nodes.

    It does (`crossing`) where it or the pipeline around it has ranks on several of them: each layer
    waits for collectives, and a pipeline alone sends once a stage.
    """
    # Of our own steps those of one device alone were measured.
    measured = job.gpus == 1 or "samestep" not in job.framework.lower()
    known = measured and constants.knows(f"{job.framework} {job.note}")
    crossing = job.tp > 1 and any(job.crosses)
    return f"{'known' if known else 'unknown'} {'crossing' if crossing else 'inner'}"


def band_of(job: Job, constants: Constants) -> tuple[float, float]:
    """Ratios measured / predicted between which nine tenths of steps of its kind lie."""
    low, high = content()["band"][kind_of(job, constants)]
    return low, high


SCALED = ("gpus", "dp", "accum", "global_batch")
FAMILY = tuple(name for name in CONFIGURATION if name not in (*SCALED, "note"))
LEAST, MOST = 0.2, 20.0
"""Scale of a device's own time; a base beyond it is in other units, or no measurement of it."""


def family_of(row: Mapping[str, str]) -> tuple[str, ...]:
    """Values that rows share which differ in `SCALED` alone; of a `note` those the model reads.

    Also whether the factors of its batch contradict it: such a row tells nothing of one that is
    sound.
    """
    note = row.get("note", "").lower()
    meant = re.findall(r"optimiser states over \w+|hsdp|hybrid shard|async tp", note)
    profile = profile_name(f"{row.get('framework', '')} {note}")
    try:
        micro, accum, dp, batch = (
            number_of(row, name) for name in ("micro", "accum", "dp", "global_batch")
        )
        sound = not (micro and accum and dp and batch) or 0.99 < micro * accum * dp / batch < 1.01
    except Refused:
        sound = False
    return (*(row.get(name, "") for name in FAMILY), profile, str(sound), *meant)


def families(rows: Sequence[Mapping[str, str]]) -> Iterator[list[int]]:
    """Places of the rows that are alike but for `SCALED`, the smallest world first."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(family_of(row), []).append(place)
    for places in groups.values():
        yield sorted(places, key=lambda place: _gpus(rows[place]))


def _gpus(row: Mapping[str, str]) -> float:
    try:
        return float(row["gpus"])
    except ValueError:
        return math.inf


def predict_from_base(
    rows: Sequence[Mapping[str, str]],
    constants: Constants,
    warn: Callable[[str], None] = lambda text: None,
) -> list[dict[str, str]]:
    """Columns added to each row, larger worlds from the smallest of their family: `--base`.

    The base is the smallest world whose `step_s`, the one measurement that is read, is there and
    can be; `warn` is told of those passed over. What a device does by itself is scaled by what the
    base measured over what was predicted of it; communication is as predicted. `base` names the
    world a row is from, empty where it is predicted without one.
    """
    values_of: list[dict[str, str]] = [{} for _ in rows]
    for places in families(rows):
        timed = [n for n in places if rows[n].get("step_s", "").strip().lower() not in EMPTY]
        base, scale = math.inf, None
        for place in timed:
            world = _gpus(rows[place])
            if not (larger := sum(_gpus(rows[n]) > world for n in places)):
                break
            try:
                base, scale = world, _scale(rows[place], constants)
                break
            except Refused as refused:
                named = f"row {place + 1} of {rows[place]['gpus']} GPUs is no base of {larger}"
                warn(f"{named} larger worlds: {refused}")
        for place in places:
            by = scale if _gpus(rows[place]) > base else None
            answer = predict_row(rows[place], constants, by)
            is_scaled = by is not None and not answer["reason"]
            values_of[place] = answer | {"base": f"{base:g}" if is_scaled else ""}
    return values_of


def _scale(base: Mapping[str, str], constants: Constants) -> float:
    """Measured over predicted seconds of what a device of the base does by itself.

    Raises Refused where that is no measurement of the same thing, or nothing can be predicted.
    """
    measured = number_of(base, "step_s") or 0.0
    _, step, _ = fastest(base, constants)
    own = step.seconds - step.communication
    scale = (measured - step.communication) / own
    if not LEAST <= scale <= MOST:
        ends = (step.communication + end * own for end in (LEAST, MOST))
        raise Refused(
            f"its step_s is {measured:.4g}, predicted are {step.seconds:.4g}; expected "
            + " to ".join(f"{end:.4g}" for end in ends)
        )
    return scale


def write(rows: Sequence[Mapping[str, str]], out: Path) -> None:
    """Write rows, all of the same columns, as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(out, text.getvalue())
