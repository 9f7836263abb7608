"""A finished study of synthetic records; its figures, tables and paper are stand-ins."""

import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.archive.layout import (
    MANIFEST_FILE,
    METRICS_FILE,
    STUDY_FILE,
    SUMS_FILE,
    YARDSTICK_FILE,
    is_noted,
    products,
)
from pipeline.archive.pack import contents, write_zip
from pipeline.files import note_made, sha256_of_file, write_text
from pipeline.metrics import table
from pipeline.metrics.build import build
from pipeline.metrics.emulation import load_uncertainty
from pipeline.records import RunRecord
from pipeline.study.expansion import every_run
from pipeline.study.study import Study
from tests.fake_bench import make_yardstick
from tests.fake_records import a_cell, make_manifest, make_record, make_study, put_record

Members = dict[str, bytes]

CELLS = [a_cell("single", "single"), a_cell("dps", precision="apex_o1")]


def finished_study(results: Path, **changes: Any) -> Path:
    """Write a study with one finished and one unsupported run below `results`."""
    study = make_study(**{"cells": CELLS, "repeats": 1, **changes})
    study["cluster"] = study["cluster"] | {"nodes": [1]}
    write_text(results / STUDY_FILE, json.dumps(study, sort_keys=True) + "\n")
    write_text(results / MANIFEST_FILE, json.dumps(make_manifest()))
    tokens = sha256_of_file(results / MANIFEST_FILE)
    for spec in every_run(Study.of(study)):
        failure = ("unsupported", "no CUDA device") if spec.cell == "dps" else None
        record = make_record(spec, failure)
        run = {**record.run, "data": {**record.run["data"], "manifest_sha256": tokens}}
        folder = results / "runs" / spec.folder
        put_record(folder, RunRecord(run, record.steps))
        write_text(folder / "spec.json", spec.to_json())
    for name in products(Study.of(study)):
        write_text(results / name, f"stand-in for {name}\n")
    yardstick = results / YARDSTICK_FILE if study["cluster"].get("yardstick") else None
    if yardstick:
        write_text(yardstick, json.dumps(make_yardstick([0.01, 0.011], [0.02, 0.021])))
    made = build(Study.of(study), results / "runs", load_uncertainty(yardstick))
    table.write(made, results / METRICS_FILE)
    noted = (results / name for name in products(Study.of(study)) if is_noted(name))
    note_made(noted, results / METRICS_FILE)
    return results


def repack(
    archive: Path,
    change: Callable[[Members], object],
    *,
    summed: bool = True,
    method: int = zipfile.ZIP_DEFLATED,
) -> None:
    """Pack an archive again with other members, by default with the sums that they have."""
    with zipfile.ZipFile(archive) as opened:
        members = {name: opened.read(name) for name in opened.namelist()}
    change(members)
    if summed:
        members[SUMS_FILE] = "".join(
            f"{hashlib.sha256(content).hexdigest()}  {name}\n"
            for name, content in members.items()
            if name != SUMS_FILE and not name.endswith("/")
        ).encode()
    with zipfile.ZipFile(archive, "w", method) as opened:
        for name, content in members.items():
            opened.writestr(name, content)


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished study and its archive, made once and copied for each test."""
    folder = tmp_path_factory.mktemp("packed")
    finished_study(folder / "fake")
    write_zip(contents(folder / "fake"), folder / "fake.zip")
    return folder


@pytest.fixture
def results(packed: Path, tmp_path: Path) -> Path:
    """Folder of a finished study."""
    return Path(shutil.copytree(packed / "fake", tmp_path / "results" / "fake"))


@pytest.fixture
def archive(packed: Path, tmp_path: Path) -> Path:
    """Its archive."""
    return Path(shutil.copy(packed / "fake.zip", tmp_path))
