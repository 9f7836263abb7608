"""Read the records that a study expects: none missing, none invalid, none of another spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import RecordError
from pipeline.records import RunRecord, read_record
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study


def read_all(study: Study, specs: Sequence[RunSpec], runs: Path) -> list[RunRecord]:
    """The records of these runs of a study, in their order.

    Raises RecordError where one is missing, invalid, or that of another training. All are read
    before it is raised, so that it lists all that is wrong.
    """
    folders = [runs / spec.folder for spec in specs]
    if missing := [folder for folder in folders if not (folder / "run.json").is_file()]:
        raise RecordError(
            f"{missing[0] / 'run.json'} does not exist ({len(missing)} of {len(specs)} runs are "
            f"missing); run the training of study {study.name!r} first"
        )
    records, faults = [], []
    for spec, folder in zip(specs, folders, strict=True):
        try:
            record = read_record(folder)
        except RecordError as error:
            faults.append(str(error))
            continue
        records.append(record)
        if record.spec.identity() != spec.identity():
            asked, ran = (flat(one.training().to_dict()) for one in (spec, record.spec))
            differ = (key for key in sorted({*asked, *ran}) if asked.get(key) != ran.get(key))
            key = next(differ, "*")
            faults.append(
                f"{folder / 'run.json'} at $.spec.{key} is {ran.get(key)!r}, the study says "
                f"{asked.get(key)!r}: the run was made from another version of the study; delete "
                "the folder and run the training again"
            )
    if faults:
        more = f" (and {len(faults) - 1} more: {'; '.join(faults[1:4])})" if faults[1:] else ""
        raise RecordError(
            f"{len(faults)} of {len(specs)} records cannot be used: {faults[0]}{more}"
        )
    return records


def flat(value: Mapping[str, Any], at: str = "", depth: int = 99) -> dict[str, Any]:
    """The values of mappings within mappings by their path, such as `world.nodes`."""
    values: dict[str, Any] = {}
    for key, part in value.items():
        inner = isinstance(part, Mapping) and depth > 1
        values |= flat(part, f"{at}{key}.", depth - 1) if inner else {f"{at}{key}": part}
    return values
