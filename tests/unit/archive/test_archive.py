"""An archive: all in and the same bytes each time, all back, and anything else is one line."""

import shutil
import stat
import zipfile
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.archive.layout import EXPECTED, ROOT, sources
from pipeline.archive.pack import contents, write_zip
from pipeline.archive.unpack import unpack
from pipeline.errors import ArchiveError
from pipeline.study.study import Study
from tests.fake_records import EMULATED, make_study
from tests.unit.archive.conftest import finished_study, repack


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
def test_no_symlink_is_followed_out_of_the_checkout(checkout, results, tmp_path, name) -> None:
    (tmp_path / "private").write_text("secret")
    (checkout / name).unlink(missing_ok=True)
    (checkout / name).symlink_to(tmp_path / "private")
    with pytest.raises(ArchiveError, match=f"{name} is or lies below a symlink to .*private"):
        contents(results)


RUN = "runs/single/n1/r0/run.json"


def refused(archive: Path, into: Path, match: str) -> None:
    """One line, and nothing is left in the folder, not even a hidden file."""
    with pytest.raises(ArchiveError, match=match) as caught:
        unpack(archive, into)
    assert "\n" not in str(caught.value) and archive.name in str(caught.value)
    assert not into.exists()


def test_the_records_come_back_with_their_bytes(results, archive, tmp_path) -> None:
    folder = unpack(archive, tmp_path / "into")
    assert folder == tmp_path / "into" / "fake"
    for path in [results / "study.json", *results.glob("runs/*/*/*/*")]:
        assert (folder / path.relative_to(results)).read_bytes() == path.read_bytes()
    names = {path.name for path in folder.iterdir()}
    assert names == {"study.json", "runs", "tokens", "archive.json", "SHA256SUMS"}


def test_the_yardstick_of_a_study_comes_back(tmp_path: Path) -> None:
    results = finished_study(tmp_path / "fake", cluster=EMULATED | {"yardstick": True})
    write_zip(contents(results), tmp_path / "fake.zip")
    folder = unpack(tmp_path / "fake.zip", tmp_path / "into")
    assert (folder / "yardstick.json").read_bytes() == (results / "yardstick.json").read_bytes()


def test_unpacked_again_it_replaces_what_was_rebuilt(archive: Path, tmp_path: Path) -> None:
    folder = unpack(archive, tmp_path / "into")
    (folder / "metrics").mkdir()
    assert unpack(archive, tmp_path / "into") == folder
    assert not (folder / "metrics").exists()
    assert [path.name for path in (tmp_path / "into").iterdir()] == ["fake"]


def test_it_never_replaces_what_did_not_come_from_an_archive(results: Path, archive: Path) -> None:
    before = sorted(results.rglob("*"))
    with pytest.raises(ArchiveError, match="was not unpacked from an archive"):
        unpack(archive, results.parent)
    assert sorted(results.rglob("*")) == before


def test_any_changed_byte_of_a_file_is_found(archive: Path, tmp_path: Path) -> None:
    content = archive.read_bytes()
    with zipfile.ZipFile(archive) as opened:
        entries = [
            (e.header_offset, len(e.filename), e.compress_size)
            for e in opened.infolist()
            if e.file_size
        ]
    for offset, name_length, size in entries[:: len(entries) // 12]:
        place = offset + 30 + name_length + size // 2
        changed = archive.with_name("changed.zip")
        changed.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        refused(changed, tmp_path / "into", "damaged")


def test_a_link_a_second_entry_and_a_bomb(archive: Path, tmp_path: Path, monkeypatch) -> None:
    """More archives that are refused are in `tests/hostile/test_foreign.py`."""
    whole = archive.read_bytes()
    repack(archive, lambda members: members.pop("study.json"))
    entry = zipfile.ZipInfo("study.json")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(archive, "a") as opened:
        opened.writestr(entry, "/etc/passwd")
    refused(archive, tmp_path / "into", r"has in study\.json a link")
    archive.write_bytes(whole)
    with zipfile.ZipFile(archive, "a") as opened, pytest.warns(UserWarning, match="Duplicate"):
        opened.writestr("study.json", "{}")
    refused(archive, tmp_path / "into", r"holds study\.json twice")
    archive.write_bytes(whole)
    monkeypatch.setattr("pipeline.archive.layout.MAX_BYTES", 1 << 20)
    repack(archive, lambda members: members.update({"report.html": b"0" * (2 << 20)}))
    refused(archive, tmp_path / "into", "unpacks to")


def test_a_bad_archive_leaves_what_an_earlier_one_gave(archive: Path, tmp_path: Path) -> None:
    folder = unpack(archive, tmp_path / "into")
    before = sorted(folder.rglob("*"))
    repack(archive, lambda m: m.update({RUN: m[RUN].replace(b'"measured"', b'"guessed"')}))
    with pytest.raises(ArchiveError):
        unpack(archive, tmp_path / "into")
    assert sorted(folder.rglob("*")) == before


def test_products_of_an_earlier_version_are_named_and_not_compared(
    results: Path, archive: Path, tmp_path: Path, capsys
) -> None:
    folder = unpack(archive, tmp_path / "into")
    shutil.copytree(results, folder, dirs_exist_ok=True)
    sums = folder / "SHA256SUMS"
    sums.write_text(f"{sums.read_text()}{'0' * 64}  paper/paper.html\n")
    assert main(["verify", "--results", str(folder)]) == 0
    assert "this version does not make them: paper/paper.html" in capsys.readouterr().out
