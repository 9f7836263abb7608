"""A study is run, archived, and rebuilt in another folder from the archive alone, without torch."""

import json
import re
import zipfile
from pathlib import Path

import pytest

from pipeline.archive.layout import PRODUCT
from tests.workflow.crate_validator import environment, issues
from tests.workflow.project import Project, make_project

# What only the person who publishes an archive can say, or what would need an address on the web.
UNKNOWN_HERE = ("agent that is a Person", "`author`", "`publisher`", "have a url", "absolute URI",
                "Bioschemas ComputationalWorkflow profile")  # fmt: skip


@pytest.fixture(scope="module")
def archive(finished: Project) -> Path:
    done = finished.make("archive", "STUDY=tiny.yaml")
    assert done.returncode == 0, done.stderr
    assert "archives/tiny.zip: " in done.stdout
    return finished.folder / "archives" / "tiny.zip"


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Another checkout that knows neither the study nor its text, nor has torch or Horovod."""
    project = make_project(tmp_path_factory.mktemp("second"))
    project.study.unlink()
    (project.folder / "text.txt").unlink()
    for name in ("torch", "horovod"):
        (project.folder / f"{name}.py").write_text(f"raise ImportError('{name} is blocked')\n")
    return project


@pytest.fixture(scope="module")
def rebuilt(elsewhere: Project, archive: Path) -> Path:
    given = archive.with_name('it\'s a "tiny" $study `of` ü.zip')
    given.write_bytes(archive.read_bytes())
    done = elsewhere.make("paper", f"FROM={given}")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "every one byte-identical to the archive" in done.stdout
    return elsewhere.folder / "results" / "from_archive" / "tiny"


def test_torch_is_blocked_where_it_is_said_to_be(elsewhere: Project) -> None:
    done = elsewhere.call(".venv/bin/python", "-c", "import torch")
    assert "torch is blocked" in done.stderr


def test_everything_rebuilt_has_the_same_bytes(finished: Project, rebuilt: Path) -> None:
    first = {p.relative_to(finished.results).as_posix() for p in finished.results.rglob("*.*")}
    products = {name for name in first if PRODUCT.fullmatch(name)}
    assert {"paper/paper.pdf", "metrics/metrics.parquet", "claims/verdicts.json"} < products
    assert len(products) > 40
    for name in products:
        assert (rebuilt / name).read_bytes() == (finished.results / name).read_bytes(), name
    # No archive holds logs, of which the page shows the ends.
    assert "No log: the run folder holds no log.txt." in (rebuilt / "report.html").read_text()


def test_nothing_else_was_made(elsewhere: Project, rebuilt: Path) -> None:
    assert [path.name for path in (elsewhere.folder / "results").iterdir()] == ["from_archive"]
    assert not list(rebuilt.glob("tokens/*.bin"))


def test_make_fails_where_what_was_rebuilt_is_not_the_archive_s(archive, tmp_path) -> None:
    """The workflow's script is one that draws nothing but an empty paper."""
    project = make_project(tmp_path)
    script = "mkdir results/from_archive/tiny/paper; >results/from_archive/tiny/paper/paper.pdf"
    (project.folder / "envs/run_workflow.sh").write_text(f"{script}\n")
    done = project.make("paper", f"FROM={archive}")
    assert done.returncode != 0
    assert re.search(r"(\d+) of \1 rebuilt files differ from the archive", done.stderr)


def test_the_crate_describes_every_file_and_run(archive: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        names = set(opened.namelist())
        graph = json.loads(opened.read("ro-crate-metadata.json"))["@graph"]
    by_id = {entity["@id"]: entity for entity in graph}
    assert len(by_id) == len(graph)
    parts = {part["@id"] for part in by_id["./"]["hasPart"]}
    assert parts == names - {"ro-crate-metadata.json", "SHA256SUMS"} and parts < set(by_id)
    failed = by_id["#run-apex/n1/r0"]
    assert failed["actionStatus"].endswith("FailedActionStatus") and "CUDA" in failed["error"]
    assert by_id["#run-dps/n2/r0"]["actionStatus"].endswith("CompletedActionStatus")


def test_the_public_validator_accepts_the_crate(archive: Path) -> None:
    try:
        environment()
    except RuntimeError as error:
        pytest.skip(str(error))
    found = issues(archive, "provenance-run-crate-0.5")
    assert [line for severity, line in found if severity != "RECOMMENDED"] == []
    assert [line for _, line in found if not any(known in line for known in UNKNOWN_HERE)] == []
    assert len(found) > 2, "what is known to be missing is found"
