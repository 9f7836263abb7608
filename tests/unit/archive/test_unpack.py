"""Unpacking: what was packed comes back, and anything else is one line and no file."""

from __future__ import annotations

import shutil
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.archive import unpack as unpacking
from pipeline.archive.pack import contents, write_zip
from pipeline.archive.unpack import unpack
from pipeline.errors import ArchiveError
from tests.fake_records import EMULATED
from tests.unit.archive.conftest import finished_study, repack

RUN = "runs/single/n1/r0/run.json"


def refused(archive: Path, into: Path, match: str) -> None:
    """One line, and nothing is left in the folder, not even a hidden file."""
    with pytest.raises(ArchiveError, match=match) as caught:
        unpack(archive, into)
    assert "\n" not in str(caught.value) and archive.name in str(caught.value)
    assert not into.exists()


def test_the_records_come_back_with_their_bytes(
    results: Path, archive: Path, tmp_path: Path
) -> None:
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


def test_records_of_no_run_of_the_study_are_not_even_written(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be as many of them as a zip file holds."""
    more = {f"runs/a{n}/n1/r0/run.json": b"{}" for n in range(300)}
    repack(archive, lambda members: members.update(more))
    written, copy = list[str](), unpacking._copy

    def noted(opened: Any, entry: Any, target: Path | None) -> str:
        written.append(str(target))
        return copy(opened, entry, target)

    monkeypatch.setattr(unpacking, "_copy", noted)
    refused(archive, tmp_path / "into", r"runs/a\d+/n1/r0 belongs to no run of its study")
    assert written and not [path for path in written if "/runs/a" in path]


def test_a_bad_archive_leaves_what_an_earlier_one_gave(archive: Path, tmp_path: Path) -> None:
    folder = unpack(archive, tmp_path / "into")
    before = sorted(folder.rglob("*"))
    repack(archive, lambda m: m.update({RUN: m[RUN].replace(b'"measured"', b'"guessed"')}))
    with pytest.raises(ArchiveError):
        unpack(archive, tmp_path / "into")
    assert sorted(folder.rglob("*")) == before


def test_the_stages_unpack_and_verify(results: Path, archive: Path, tmp_path: Path, capsys) -> None:
    assert main(["unpack", "--archive", str(archive), "--into", str(tmp_path / "into")]) == 0
    folder = Path(capsys.readouterr().out.strip())
    for path in results.rglob("*.*"):
        (folder / path.relative_to(results)).parent.mkdir(parents=True, exist_ok=True)
        (folder / path.relative_to(results)).write_bytes(path.read_bytes())
    assert main(["verify", "--results", str(folder)]) == 0
    assert "every one byte-identical" in capsys.readouterr().out
    (folder / "paper/paper.pdf").write_bytes(b"other")
    (folder / "tables/status.md").unlink()
    assert main(["verify", "--results", str(folder)]) == 1
    said = capsys.readouterr().err
    assert "differ from the archive: tables/status.md and paper/paper.pdf" in said
    assert "the code is the same" in said


def test_products_of_an_earlier_version_are_named_and_not_compared(
    results: Path, archive: Path, tmp_path: Path, capsys
) -> None:
    folder = unpack(archive, tmp_path / "into")
    shutil.copytree(results, folder, dirs_exist_ok=True)
    sums = folder / "SHA256SUMS"
    sums.write_text(f"{sums.read_text()}{'0' * 64}  paper/paper.html\n")
    assert main(["verify", "--results", str(folder)]) == 0
    assert "this version does not make them: paper/paper.html" in capsys.readouterr().out
