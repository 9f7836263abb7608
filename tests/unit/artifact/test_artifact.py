"""Description, checklist, badges and SBOM: what they say of records, of the lock and of doubt."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from pipeline import schemas
from pipeline.__main__ import main
from pipeline.artifact import badges, sbom
from pipeline.artifact.build import LICENCE, duration, needs, per_claim, render, size, targets
from pipeline.errors import SamestepError
from pipeline.metrics.select import seconds_of_runs
from pipeline.paper.numbers import collect
from pipeline.study.study import Study
from tests.fake_records import make_study, make_table, write_records, write_table

SUM, OTHER = "ab" * 32, "cd" * 32
LOCK = f"""# made by pip-compile
packaging==0.1 \\
    --hash=sha256:{SUM} \\
    --hash=sha256:{OTHER}
    # via horovod
jinja2==3.1.6 \\
    --hash=sha256:{OTHER}
torch==9.9
"""
IMAGE = {"image_digest": f"sha256:{SUM}", "versions": {"torch": "2.1", "cuda": None, "unmet": []}}
MANIFEST = {"num_tokens": 2_345_678, "num_documents": 812, "dtype": "uint16"}
VERSIONS = {"python": "3.11.7", "horovod": "0.28.1", "samestep": "0.1.0"}


def bill(image: Any = None) -> dict[str, Any]:
    return sbom.document("fake", LOCK, "2026-01-02T00:00:00Z", VERSIONS, image)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(repeats=2)


@pytest.fixture(scope="module")
def numbers(table: pd.DataFrame) -> dict[str, Any]:
    study = Study.of(make_study(repeats=2))
    return collect(study, table) | needs(study, table, MANIFEST)


def test_times_and_sizes_are_sums_over_the_records(
    numbers: dict[str, Any], table: pd.DataFrame
) -> None:
    found = numbers["appendix"]
    assert (found["total"], found["elapsed"], found["profiled"]) == ("16 minutes",) * 2 + ("",)
    assert found["tokens"]["size"] == "4.7 MB" and found["tokens"]["count"] == "2,345,678"
    sizes = table.loc[table["metric"] == "record_bytes", "value"]
    assert len(sizes) == 32 and found["records"] == size(sizes.sum())
    assert found["kick"] == {"time": "30 seconds", "fits": True}
    profiled = {"repeats": 2, "profile": {"steps": 8}}
    more = needs(Study.of(make_study(**profiled)), make_table(**profiled), None)["appendix"]
    told = [more[name] for name in ("total", "profiled", "elapsed", "tokens")]
    assert told == ["16 minutes", "8.0 minutes", "24 minutes", {}]
    assert yaml.safe_load(Path("CITATION.cff").read_text())["license"] == LICENCE


def test_two_digits_are_enough_to_plan_with() -> None:
    times = [duration(seconds) for seconds in (1, 119, 120, 5400, 36_000)]
    assert times == ["1 second", "119 seconds", "2.0 minutes", "90 minutes", "10 hours"]
    assert [size(count) for count in (1_500, 2.34e6, 1.2e9)] == ["1.5 kB", "2.3 MB", "1.2 GB"]


def test_the_sbom_holds_the_lock_and_fits_the_schema() -> None:
    found = bill()
    schemas.validate(found, "sbom", "sbom.spdx.json")
    named = {one["name"]: one for one in found["packages"]}
    assert list(named) == ["samestep", "packaging", "jinja2", "torch", "python", "horovod"]
    assert named["packaging"]["comment"].endswith(f"{SUM} {OTHER}")
    assert named["torch"]["externalRefs"][0]["referenceLocator"] == "pkg:pypi/torch@9.9"
    assert "comment" not in named["torch"]
    ids = [one["SPDXID"] for one in found["packages"]]
    assert len(set(ids)) == len(ids)
    assert {one["relatedSpdxElement"] for one in found["relationships"]} == set(ids[1:])
    assert bill() == found


def test_a_licence_is_said_of_the_installed_version_alone() -> None:
    named = {one["name"]: one["licenseDeclared"] for one in bill()["packages"]}
    assert named["packaging"] == named["torch"] == sbom.NO_ASSERTION
    assert sbom.licence_of("no-such-package", "1") == sbom.NO_ASSERTION
    real = sbom.pinned(Path("envs/requirements.lock").read_text(encoding="utf-8"))
    rich = next(one for one in real if one.name == "rich")
    assert sbom.licence_of(rich.name, rich.version) == "MIT"


def test_an_image_has_its_digest_and_what_is_in_it() -> None:
    found = bill(IMAGE)
    schemas.validate(found, "sbom", "sbom.spdx.json")
    named = {one["name"]: one.get("versionInfo") for one in found["packages"]}
    assert named["samestep-image"] == IMAGE["image_digest"] and named["image-torch"] == "2.1"
    assert "image-cuda" not in named
    assert found["documentNamespace"] != bill()["documentNamespace"]


def test_a_lock_that_pins_nothing_is_refused() -> None:
    with pytest.raises(SamestepError, match="pins no package"):
        sbom.pinned("# empty\n")


@pytest.mark.parametrize(
    ("cited", "met", "grounds"),
    [
        ("title: x\n", False, "names no DOI"),
        ("doi: 10.5281/zenodo.0000000\n", False, "placeholder"),
        ("doi: 10.5072/made.up\n", False, "placeholder"),
        ("doi: to come\n", False, "placeholder or none"),
        ("doi: 10.5281/zenodo.7654321\n", True, "was not looked up"),
        ("identifiers: [{type: doi, value: 10.5281/zenodo.7654321}]\n", True, "7654321"),
        ("date-released: 2026-01-01\ndoi: 10.5281/zenodo.7654321\n", True, "7654321"),
    ],
)
def test_a_placeholder_is_no_deposit(
    cited: str, met: bool, grounds: str, numbers: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "CITATION.cff").write_text(cited)
    first = badges.checks(tmp_path, numbers, ["a" * 40])[0]
    assert (first.badge, first.met) == ("available", met)
    assert grounds in first.grounds


@pytest.mark.parametrize(
    "cited", ["- a\n", "identifiers: 10.5281/x\n", "a: [\n", "identifiers: {a: 1}\n"]
)
def test_a_citation_file_that_is_none_is_named(
    cited: str, numbers: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "CITATION.cff").write_text(cited)
    with pytest.raises(SamestepError, match="is no citation file"):
        badges.checks(tmp_path, numbers, ["a" * 40])


def test_what_lacks_for_a_badge_is_named(numbers: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "README.md").touch()
    found = badges.checks(tmp_path, numbers, ["a" * 40, "b" * 40])
    unmet = {one.asks.partition(":")[0]: one.grounds for one in found if not one.met}
    assert unmet["documented"].startswith("missing: LICENSE, CITATION.cff")
    assert "consistent" in unmet and "the environment as an image that the records name" in unmet
    # No file can tell who ran it, so this is never met.
    assert found[-1].badge == "reproduced" and not found[-1].met
    dirty = badges.checks(tmp_path, numbers, [f"{'a' * 40} (with uncommitted changes)"])
    assert not next(one for one in dirty if one.asks.startswith("consistent")).met


def test_a_claim_has_the_command_time_memory_and_disk_of_its_runs(table: pd.DataFrame) -> None:
    seconds = seconds_of_runs(table)
    runs = [f"fake/{cell}/n2/r{repeat}" for cell in ("dps", "horovod") for repeat in (0, 1)]
    verdict = {"id": "a", "sentence": "It is.", "verdict": "undecided", "effect": None,
               "runs": runs}  # fmt: skip
    untested = verdict | {"id": "b", "runs": []}
    [found] = per_claim(table, [verdict, untested], "fake", "snakemake")
    assert found["runs"] == 4 and set(seconds["seconds"]) == {30.0}
    assert found["time"] == "2.0 minutes" and found["memory"].endswith("B")
    assert found["command"] == "snakemake results/fake/runs/{dps,horovod}/n2/{r0,r1}/run.json"


def test_targets_are_exactly_the_runs() -> None:
    runs = ["s/a/n1/r0", "s/a/n1/r1", "s/b/n2/r0", "s/c/n2/r0", "s/c/n4/p0"]
    words = " ".join(targets(runs, "s"))
    spelled = subprocess.run(["bash", "-c", f"echo {words}"], capture_output=True, text=True)
    assert sorted(spelled.stdout.split()) == sorted(
        f"results/s/runs/{run.partition('/')[2]}/run.json" for run in runs
    )


def answers(numbers: dict[str, Any]) -> dict[str, str]:
    text = render(numbers, experiments=[], commits=[], checks=[])
    table = text.partition("(NeurIPS)")[2].partition("## Badges")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {row[0].removeprefix("| "): row[1] for row in rows[1:]}


def test_the_checklist_answers_what_records_know_and_leaves_the_rest(
    numbers: dict[str, Any],
) -> None:
    found = answers(numbers)
    assert len(found) == 16
    assert found["Statistical significance"] == found["Compute resources"] == "Yes"
    assert found["Code of ethics"] == found["Open access to data and code"] == "for the authors"
    other = numbers | {"appendix": numbers["appendix"] | {"data_licence": "it does not record"}}
    assert answers(other)["Licences of existing assets"] == "No"
    assert (
        answers(numbers | {"runs": {"any_finished": False, "planned": "1 run"}})[
            "Claims match the results"
        ]
        == "NA"
    )


def test_the_command_writes_both_files_and_prints_what_is_unmet(
    table: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["artifact", "--results", str(tmp_path)]) == 2
    assert "run the study with make paper first" in capsys.readouterr().err
    (tmp_path / "metrics").mkdir()
    write_table(table, tmp_path / "metrics")
    (tmp_path / "study.json").write_text(json.dumps(make_study(repeats=2)))
    write_records(tmp_path / "runs", make_study(repeats=2))
    assert main(["artifact", "--results", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "unmet  available" in said and "unmet  reproduced" in said
    text = (tmp_path / "artifact" / "artifact.md").read_text(encoding="utf-8")
    assert "Time to analyse: not recorded" in text and "## Paper checklist (NeurIPS)" in text
    found = json.loads((tmp_path / "artifact" / "sbom.spdx.json").read_text(encoding="utf-8"))
    schemas.validate(found, "sbom", "sbom.spdx.json")
    (tmp_path / "runs/dps/n2/r1/run.json").unlink()
    assert main(["artifact", "--results", str(tmp_path)]) == 2
    assert "runs/dps/n2/r1/run.json does not exist" in capsys.readouterr().err
