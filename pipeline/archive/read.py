"""Open an archive that anyone may have made: first its names and sizes, then its checksums.

Only what `layout.EXPECTED` names is accepted, and only what a rebuild needs is written, so nothing
in an archive can choose where it goes.
"""

from __future__ import annotations

import hashlib
import lzma
import re
import stat
import zipfile
import zlib
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pipeline.archive import layout
from pipeline.archive.inputs import check_inputs
from pipeline.documents import MAX_MADE_BYTES, read_document
from pipeline.errors import ArchiveError, SamestepError
from pipeline.files import open_regular
from pipeline.metrics.collect import collect_every
from pipeline.metrics.emulation import load_uncertainty
from pipeline.schemas import validate
from pipeline.study.load import load_study
from pipeline.study.real_time import every_run

_BLOCK = 1 << 20
_ENCRYPTED = 0x1
_AGAIN = "fetch the archive again"
_DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError,
            RuntimeError, ValueError)  # fmt: skip
"""What zipfile raises for bytes that are no sound zip file."""


def extract(archive: Path, folder: Path) -> None:
    """Check every file of `archive` and write those that a rebuild needs below `folder`.

    Raises ArchiveError naming the archive and the file that is damaged, missing or not expected.
    """
    try:
        with open_regular(archive) as stream, zipfile.ZipFile(stream) as opened:
            entries = _checked_entries(opened, archive)
            sums = _checksums(opened, entries, archive)
            first = (layout.ARCHIVE_FILE, layout.STUDY_FILE)
            for name in (*first, *(sums.keys() - {*first})):
                total = sums[name]
                target = folder / name if layout.is_needed(name) else None
                if _member(opened, entries[name], target, archive) != total:
                    raise ArchiveError(
                        f"{archive}: {name} is not the file that its {layout.SUMS_FILE} states; "
                        + _AGAIN
                    )
                if name == layout.STUDY_FILE and not _are_of(folder / name, sums, archive):
                    return
            _copy(opened, entries[layout.SUMS_FILE], folder / layout.SUMS_FILE)
    except FileNotFoundError:
        raise ArchiveError(f"there is no archive {archive}; `make archive` writes one") from None
    except _DAMAGED as error:
        reason = " ".join(str(error).split())[:120]
        raise ArchiveError(
            f"{archive} is no zip file, or damaged or cut short ({reason}); {_AGAIN}"
        ) from None
    except OSError as error:
        raise ArchiveError(
            f"could not unpack {archive}: {error.strerror or error}; give a zip file, free space "
            "or fix the permissions"
        ) from error


def check_records(folder: Path) -> str:
    """Validate study, records, specs and manifest below `folder`; returns the study's name.

    Raises SamestepError naming the file and what is wrong with it.
    """
    facts = _json(folder / layout.ARCHIVE_FILE)
    validate(facts, "archive", folder / layout.ARCHIVE_FILE)
    if facts["num_recorded"] < facts["num_runs"]:
        raise ArchiveError(
            f"it is partial, with {facts['num_recorded']} of {facts['num_runs']} runs, and no "
            "results can be rebuilt from it; finish the study and pack it again"
        )
    content = _json(folder / layout.STUDY_FILE)
    if isinstance(content, dict) and "extends" in content:
        raise ArchiveError(f"{layout.STUDY_FILE} extends another study; {_AGAIN}")
    study = load_study(folder / layout.STUDY_FILE)
    if study.cluster.yardstick:
        load_uncertainty(folder / layout.YARDSTICK_FILE)
    if study.name != facts["study"]:
        raise ArchiveError(
            f"{layout.ARCHIVE_FILE} is of study {facts['study']!r}, {layout.STUDY_FILE} is "
            f"{study.name!r}; {_AGAIN}"
        )
    records = collect_every(study, folder / "runs")
    if not len(records) == facts["num_runs"] == facts["num_recorded"]:
        raise ArchiveError(
            f"{layout.ARCHIVE_FILE} states {facts['num_recorded']} records of {facts['num_runs']} "
            f"runs, its study has {len(records)}; {_AGAIN}"
        )
    known = {record.spec.run_id.partition("/")[2] for record in records}
    found = {p.parent.relative_to(folder / "runs").as_posix() for p in folder.glob("runs/*/*/*/*")}
    if found - known:
        raise ArchiveError(
            f"the record runs/{min(found - known)} belongs to no run of its study; {_AGAIN}"
        )
    check_inputs(records, folder)
    return study.name


def _checked_entries(opened: zipfile.ZipFile, archive: Path) -> dict[str, zipfile.ZipInfo]:
    """Entries by name; raises ArchiveError unless each is an expected, plain, single file."""
    found: dict[str, zipfile.ZipInfo] = {}
    if len(opened.infolist()) > layout.MAX_FILES:
        raise ArchiveError(f"{archive} holds over {layout.MAX_FILES} files; it is not one of ours")
    for entry in opened.infolist():
        name = entry.orig_filename
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if not layout.EXPECTED.fullmatch(name):
            raise ArchiveError(f"{archive} holds {name[:80]!r}, which no archive of a study does")
        if kind not in (0, stat.S_IFREG) or entry.flag_bits & _ENCRYPTED:
            raise ArchiveError(f"{archive}: {name} is a link, a device or encrypted, not a file")
        if name in found:
            raise ArchiveError(f"{archive} holds {name} twice; {_AGAIN}")
        found[name] = entry
    total = sum(entry.file_size for entry in found.values())
    if total > layout.MAX_BYTES:
        raise ArchiveError(
            f"{archive} unpacks to {total / 2**30:.1f} GiB, over the {layout.MAX_BYTES >> 30} GiB "
            "of an archive; it is not one of ours"
        )
    return found


def _checksums(
    opened: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo], archive: Path
) -> dict[str, str]:
    """Name -> SHA-256 of all files but the sums; raises ArchiveError where they do not match."""
    if layout.SUMS_FILE not in entries:
        raise ArchiveError(f"{archive} lacks {layout.SUMS_FILE}; it is not an archive of a study")
    if entries[layout.SUMS_FILE].file_size > MAX_MADE_BYTES:
        raise ArchiveError(f"{archive}: its {layout.SUMS_FILE} is too large; {_AGAIN}")
    text = opened.read(entries[layout.SUMS_FILE]).decode("utf-8")
    sums = parse_sums(text, f"{archive}: {layout.SUMS_FILE}")
    present = set(entries) - {layout.SUMS_FILE}
    required = {layout.ARCHIVE_FILE, layout.STUDY_FILE, layout.MANIFEST_FILE, layout.CRATE_FILE}
    missing = (set(sums) | required) - present
    if missing:
        raise ArchiveError(f"{archive} lacks {min(missing)}; {_AGAIN}")
    unlisted = present - set(sums)
    if unlisted:
        raise ArchiveError(
            f"{archive} holds {min(unlisted)}, which its {layout.SUMS_FILE} does not list; {_AGAIN}"
        )
    return sums


def _are_of(study_file: Path, names: Iterable[str], archive: Path) -> bool:
    """Whether the study is good, of which `check_records` says more; raises for others' records."""
    try:
        study = load_study(study_file)
    except (SamestepError, ValueError, RecursionError):
        return False
    known = {spec.run_id.partition("/")[2] for spec in every_run(study)}
    for name in names:
        if name.startswith("runs/") and name[5:].rpartition("/")[0] not in known:
            raise ArchiveError(
                f"{archive}: the record {name.rpartition('/')[0]} belongs to no run of its study; "
                + _AGAIN
            )
    return True


def _member(
    opened: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path | None, archive: Path
) -> str:
    """`_copy`, which names the file that is damaged; zipfile does not always."""
    try:
        return _copy(opened, entry, target)
    except _DAMAGED as error:
        reason = " ".join(str(error).split())[:120]
        raise ArchiveError(
            f"{archive}: its {entry.filename} is damaged ({reason}); {_AGAIN}"
        ) from None


def _copy(opened: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path | None) -> str:
    """SHA-256 of an entry's content, written to `target` where one is given.

    zipfile reads no more than the entry's stated size and checks its CRC-32.
    """
    digest = hashlib.sha256()
    with ExitStack() as files:
        source = files.enter_context(opened.open(entry))
        sink = None
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            sink = files.enter_context(target.open("xb"))
        while block := source.read(_BLOCK):
            digest.update(block)
            if sink is not None:
                sink.write(block)
    return digest.hexdigest()


def _json(path: Path) -> Any:
    return read_document(path, "", ArchiveError, _AGAIN)


_LINE = re.compile(r"([0-9a-f]{64})  (\S+)", re.ASCII)


def parse_sums(text: str, where: str) -> dict[str, str]:
    """Name -> SHA-256 in hex; raises ArchiveError naming the line that is none."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None or match[2] in found:
            raise ArchiveError(
                f"{where}:{number}: {line[:80]!r} is not a checksum and a name of its own; "
                "fetch the archive again"
            )
        found[match[2]] = match[1]
    return found
