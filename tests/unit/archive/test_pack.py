"""Packing: everything in, the same bytes each time, and nothing unfinished or inconsistent."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.archive.layout import EXPECTED, ROOT, products, sources
from pipeline.archive.pack import contents, write_zip
from pipeline.archive.unpack import check_records, extract
from pipeline.errors import ArchiveError, RecordError
from pipeline.study.study import Study
from tests.fake_records import make_study
from tests.unit.archive.conftest import finished_study


def test_it_holds_records_results_environment_and_sources(archive: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        names = opened.namelist()
        facts = json.loads(opened.read("archive.json"))
        study = json.loads(opened.read("study.json"))
    assert set(products(Study.of(study))) < set(names)
    for name in (
        "runs/single/n1/r0/steps.jsonl",
        "runs/dps/n1/r0/run.json",
        "tokens/manifest.json",
        "environment/requirements.lock",
        "source/Snakefile",
        "source/paper/manuscript.md",
        "source/workflow/rules/metrics.smk",
        "ro-crate-metadata.json",
        "README.md",
    ):
        assert name in names  # fmt: skip
    assert all(EXPECTED.fullmatch(name) for name in names)
    assert facts["study"] == "fake" and facts["num_runs"] == facts["num_recorded"] == 2
    assert set(facts) >= {"git_commit", "git_dirty", "samestep"}


def test_packed_again_later_it_has_the_same_bytes(results: Path, archive: Path) -> None:
    again = archive.with_name("again.zip")
    for path in results.rglob("*"):
        path.touch()
        path.chmod(0o700)
    write_zip(contents(results), again)
    assert again.read_bytes() == archive.read_bytes()


@pytest.mark.parametrize(
    "name", ["runs/single/n1/r0/run.json", "figures/speedup.svg", "paper/paper.pdf"]
)
def test_an_unfinished_study_is_refused(results: Path, name: str) -> None:
    (results / name).unlink()
    with pytest.raises(ArchiveError, match=r"'fake' is unfinished: .*" + name):
        contents(results)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what an archive has of this checkout, in place of it."""
    copy = tmp_path / "checkout"
    for path in sources(Study.of(make_study())).values():
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    monkeypatch.setattr("pipeline.archive.layout.ROOT", copy)
    return copy


def test_what_an_editor_leaves_is_no_source(checkout: Path, results: Path) -> None:
    """An archive with a name that `unpack` refuses would be of no use."""
    for name in ("paper/manuscript.md~", "paper/my-notes.txt", "workflow/rules/.#train.smk"):
        (checkout / name).write_text("mine")
    assert all(EXPECTED.fullmatch(name) for name in contents(results))


@pytest.mark.parametrize("name", ["Snakefile", "paper/notes.md", "envs/requirements.lock"])
def test_no_symlink_is_followed_out_of_the_checkout(
    checkout: Path, results: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "private").write_text("secret")
    (checkout / name).unlink(missing_ok=True)
    (checkout / name).symlink_to(tmp_path / "private")
    with pytest.raises(ArchiveError, match=f"{name} is or lies below a symlink to .*private"):
        contents(results)


def test_too_much_for_one_archive(results: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("pipeline.archive.layout.MAX_BYTES", 100)
    with pytest.raises(ArchiveError, match="holds at most"):
        write_zip(contents(results), tmp_path / "big.zip")
    assert not (tmp_path / "big.zip").exists()


def test_a_study_file_names_results_and_archive(results: Path, tmp_path: Path, monkeypatch) -> None:
    assert results == tmp_path / "results" / "fake"
    (tmp_path / "my study.yaml").write_text("study: fake\n")
    monkeypatch.chdir(tmp_path)
    assert main(["archive", "--study", "my study.yaml"]) == 0
    assert (tmp_path / "archives" / "fake.zip").is_file()


def test_profiled_runs_are_packed_and_taken_up_again(tmp_path: Path) -> None:
    results = finished_study(tmp_path / "fake", profile={"steps": 8})
    write_zip(contents(results), tmp_path / "fake.zip")
    extract(tmp_path / "fake.zip", tmp_path / "again")
    assert (tmp_path / "again/runs/single/n1/p0/steps.jsonl").is_file()
    assert check_records(tmp_path / "again") == "fake"
    (tmp_path / "again/runs/single/n1/p0/run.json").unlink()
    with pytest.raises(RecordError, match=r"single/n1/p0/run\.json does not exist"):
        check_records(tmp_path / "again")
    (results / "runs/dps/n1/p0/run.json").unlink()
    with pytest.raises(ArchiveError, match=r"unfinished: .*dps/n1/p0/run\.json"):
        contents(results)
