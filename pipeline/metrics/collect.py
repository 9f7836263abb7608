"""Read the records that a study expects: none missing, none invalid, none of another spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import RecordError
from pipeline.records import RunRecord, read_record
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study


def run_folder(runs: Path, spec: RunSpec) -> Path:
    """Folder of a run below the study's `runs` folder."""
    return runs / spec.run_id.partition("/")[2]


def read_all(study: Study, specs: Sequence[RunSpec], runs: Path) -> list[RunRecord]:
    """The records of these runs of a study, in their order.

    Raises RecordError where one is missing, invalid, or that of another training. All are read
    before it is raised, so that it lists all that is wrong.
    """
    missing = [
        run_folder(runs, s) for s in specs if not (run_folder(runs, s) / "run.json").is_file()
    ]
    if missing:
        raise RecordError(
            f"{missing[0] / 'run.json'} does not exist ({len(missing)} of {len(specs)} runs are "
            f"missing); run the training of study {study.name!r} first"
        )
    records, faults = [], []
    for spec in specs:
        folder = run_folder(runs, spec)
        try:
            record = read_record(folder)
        except RecordError as error:
            faults.append(str(error))
            continue
        records.append(record)
        if record.spec.identity() != spec.identity():
            key = _first_difference(spec.training().to_dict(), record.spec.training().to_dict())
            faults.append(
                f"{folder / 'run.json'} at $.spec.{key}: the run was made from another version of "
                "the study; delete the folder and run the training again"
            )
    if faults:
        more = f" (and {len(faults) - 1} more: {'; '.join(faults[1:4])})" if faults[1:] else ""
        raise RecordError(
            f"{len(faults)} of {len(specs)} records cannot be used: {faults[0]}{more}"
        )
    return records


def _first_difference(expected: Mapping[str, Any], actual: Mapping[str, Any], at: str = "") -> str:
    for key in sorted({*expected, *actual}):
        one, other = expected.get(key), actual.get(key)
        if one == other:
            continue
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            return _first_difference(one, other, f"{at}{key}.")
        return f"{at}{key} is {other!r}, the study says {one!r}"
    return f"{at}*"
