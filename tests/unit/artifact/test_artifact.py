"""Description, checklist and badges: what they say of records and of doubt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from pipeline.__main__ import main
from pipeline.archive.layout import MANIFEST_FILE, METRICS_FILE, STUDY_FILE
from pipeline.artifact.description import badges, duration, needs, per_claim, size
from pipeline.files import sha256_of_file, write_text
from pipeline.metrics.results import Results
from pipeline.paper.numbers import collect
from pipeline.records import find_records, read_record
from pipeline.study.study import Study
from tests.fake_records import edit_record, make_manifest, make_study, make_table, write_records


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2)


@pytest.fixture(scope="module")
def numbers(table: pd.DataFrame) -> dict[str, Any]:
    return collect(Study.of(make_study(repeats=2)), Results(table)) | needs(Results(table), "text")


def test_times_and_sizes_are_sums_over_the_records(
    numbers: dict[str, Any], table: pd.DataFrame
) -> None:
    times = [numbers[name] for name in ("total", "profiled", "elapsed", "kick_seconds")]
    assert times == ["16 minutes", "none", "16 minutes", 30.0]
    sizes = table.loc[table["metric"] == "record_bytes", "value"]
    assert len(sizes) == 32 and numbers["records"] == size(sizes.sum())
    assert "does not record" in numbers["data_licence"]
    more = needs(Results(make_table(repeats=2, profile={"steps": 8})), "python-docs")
    told = [more[name] for name in ("total", "profiled", "elapsed")]
    assert told == ["16 minutes", "8.0 minutes", "24 minutes"] and "PSF" in more["data_licence"]
    assert yaml.safe_load(Path("CITATION.cff").read_text())["license"] == "Apache-2.0"


def test_two_digits_are_enough_to_plan_with() -> None:
    times = [duration(seconds) for seconds in (1, 119, 120, 5400, 36_000)]
    assert times == ["1 second", "119 seconds", "2.0 minutes", "90 minutes", "10 hours"]
    shown = [size(count) for count in (1_500, 2.34e6, 1.2e9, float("nan"))]
    assert shown == ["1.5 kB", "2.3 MB", "1.2 GB", "not recorded"]


@pytest.mark.parametrize(
    ("cited", "met", "grounds"),
    [
        ("title: x\n", False, "names no DOI"),
        ("doi: 10.5281/zenodo.0000000\n", False, "placeholder"),
        ("doi: 10.5072/made.up\n", False, "placeholder"),
        ("doi: to come\n", False, "names no DOI"),
        ("references:\n- type: article\n  doi: 10.1093/other.work\n", False, "names no DOI"),
        ("doi: 10.5281/zenodo.7654321\n", True, "was not looked up"),
        ("identifiers:\n  - type: doi\n    value: 10.5281/zenodo.7654321\n", True, "7654321"),
    ],
)
def test_a_placeholder_is_no_deposit(
    cited: str, met: bool, grounds: str, numbers: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "CITATION.cff").write_text(cited)
    badge, _, is_met, said = badges(tmp_path, numbers, ["a" * 40])[0]
    assert (badge, is_met) == ("available", met) and grounds in said


def test_what_lacks_for_a_badge_is_named(numbers: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "README.md").touch()
    found = badges(tmp_path, numbers, ["a" * 40, "b" * 40])
    unmet = {asks.partition(":")[0]: grounds for _, asks, met, grounds in found if not met}
    assert unmet["documented"].startswith("missing: LICENSE, CITATION.cff")
    assert "consistent" in unmet and "the environment as an image that the records name" in unmet
    # No file can tell who ran it, so this is never met.
    assert found[-1][0] == "reproduced" and not found[-1][2]
    dirty = badges(tmp_path, numbers, [f"{'a' * 40} (with uncommitted changes)"])
    assert not next(met for _, asks, met, _ in dirty if asks.startswith("consistent"))


def test_a_claim_has_the_time_memory_and_disk_of_its_runs(table: pd.DataFrame) -> None:
    runs = [f"fake/{cell}/n2/r{repeat}" for cell in ("dps", "horovod") for repeat in (0, 1)]
    verdict = {"id": "a", "verdict": "undecided", "effect": None, "runs": runs}
    [found] = per_claim(Results(table), [verdict, verdict | {"id": "b", "runs": []}])
    assert found[:4] == ("a", "undecided", "4", "2.0 minutes") and found[4].endswith("B")


def test_the_command_writes_the_description_and_what_is_unmet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["artifact", "--results", str(tmp_path)]) == 2
    assert "run the study with make paper first" in capsys.readouterr().err
    manifest, study = tmp_path / MANIFEST_FILE, tmp_path / STUDY_FILE
    write_text(manifest, json.dumps(make_manifest()))
    write_text(study, json.dumps(make_study(repeats=2)))
    runs = write_records(tmp_path / "runs", make_study(repeats=2))
    tokens = sha256_of_file(manifest)
    for folder in find_records(runs):
        edit_record(folder, lambda run: run["data"].update(manifest_sha256=tokens))
        write_text(folder / "spec.json", read_record(folder).spec.to_json())
    words = ("metrics", "--study", study, "--runs", runs, "--out", tmp_path / METRICS_FILE)
    assert main([*map(str, words)]) == 0
    capsys.readouterr()
    assert main(["artifact", "--results", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "unmet  available" in said and "unmet  reproduced" in said
    text = (tmp_path / "artifact" / "artifact.md").read_text(encoding="utf-8")
    assert "Time to analyse: not recorded" in text
    _, _, checklist = text.partition("(NeurIPS)")
    rows = [line.split(" | ") for line in checklist.splitlines() if line.startswith("| ")]
    answers = {row[0].removeprefix("| "): row[1] for row in rows}
    assert answers["Statistical significance"] == answers["Compute resources"] == "Yes"
    manifest.write_text(manifest.read_text().replace('"num_documents": 1', '"num_documents": 2'))
    assert main(["artifact", "--results", str(tmp_path)]) == 2
    assert "bring its manifest back" in capsys.readouterr().err
