"""Open an archive that anyone may have made, and lay its records where results are rebuilt.

First its names and sizes are checked, then its checksums. Only what `layout.EXPECTED` names is
accepted, and only what a rebuild needs is written, so nothing in an archive can choose where it
goes. All is checked in a folder of its own before that takes its place, so that a bad archive
leaves what was there before.
"""

from __future__ import annotations

import fcntl
import hashlib
import lzma
import os
import re
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import mkdtemp

from pipeline.archive import layout
from pipeline.documents import MAX_MADE_BYTES, read_document, read_text
from pipeline.errors import ArchiveError, SamestepError
from pipeline.files import made_folder, open_regular, sha256_of_file
from pipeline.metrics.collect import collect_every, run_folder
from pipeline.metrics.emulation import load_uncertainty
from pipeline.records import RunRecord
from pipeline.schemas import AGAIN, validate
from pipeline.study.load import load_study
from pipeline.study.real_time import every_run

_PREFIX = ".unpack."
_BLOCK = 1 << 20
_ENCRYPTED = 0x1
_AGAIN, _RETRAIN = AGAIN["archive"], AGAIN["record"]
_AS_IT_WAS = f"{_AGAIN}, or give it as `make archive` packed it"
_DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError,
            RuntimeError, ValueError)  # fmt: skip
"""Errors of zipfile for bytes that are no sound zip file."""


def unpack(archive: Path, into: Path) -> Path:
    """The folder <into>/<study> with the archive's records, replacing one of an earlier archive.

    Raises ArchiveError in one line, and leaves `into` as it was, where the archive is no good.
    """
    with made_folder(into), _work_folder(into) as place:
        fresh = place / "study"
        extract(archive, fresh)
        try:
            study = check_records(fresh)
        except (SamestepError, ValueError, RecursionError) as error:
            # the fault is the archive's, not that of a folder which is about to go
            text = " ".join(str(error).split()).replace(f"{fresh}{os.sep}", "")
            # nor can a run of it be repeated here
            text = text.replace("delete the folder and ", "").replace(_RETRAIN, _AGAIN)
            if _AGAIN not in text:
                text = f"{text}; {_AGAIN}"
            raise ArchiveError(f"{archive}: {text}") from None
        final = into / study
        if final.exists() and not (final / layout.SUMS_FILE).is_file():
            raise ArchiveError(f"{final} was not unpacked from an archive; move it away first")
        if final.exists():
            os.replace(final, place / "old")
        os.replace(fresh, final)
    return final


@contextmanager
def _work_folder(into: Path) -> Iterator[Path]:
    """A folder inside `into`, gone afterwards; so are those of earlier calls that were killed.

    The kernel's lock on `into`, which ends with its process, tells these from one that works.
    """
    lock = os.open(into, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in into.glob(f"{_PREFIX}*"):
            shutil.rmtree(left, ignore_errors=True)
        place = Path(mkdtemp(dir=into, prefix=_PREFIX))
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)
    finally:
        os.close(lock)


def extract(archive: Path, folder: Path) -> None:
    """Check every file of `archive` and write those that a rebuild needs below `folder`.

    Raises ArchiveError naming the archive and the file that is damaged, missing or not expected.
    """
    try:
        with open_regular(archive) as stream, zipfile.ZipFile(stream) as opened:
            entries = _checked_entries(opened, archive)
            sums = _checksums(opened, entries, archive)
            for name, total in sums.items():
                target = folder / name if layout.is_needed(name) else None
                if _copy(opened, entries[name], target, archive) != total:
                    raise ArchiveError(
                        f"{archive}: {name} is not the file that its {layout.SUMS_FILE} states; "
                        + _AGAIN
                    )
            _copy(opened, entries[layout.SUMS_FILE], folder / layout.SUMS_FILE, archive)
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
    facts = read_document(folder / layout.ARCHIVE_FILE, "", ArchiveError, _AGAIN)
    validate(facts, "archive", folder / layout.ARCHIVE_FILE)
    content = read_document(folder / layout.STUDY_FILE, "", ArchiveError, _AGAIN)
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
    known = {run_folder(folder / "runs", spec) for spec in every_run(study)}
    for run in sorted({*(folder / "runs").glob("*/*/*")} - known):
        raise ArchiveError(
            f"the record {run.relative_to(folder)} belongs to no run of its study; {_AGAIN}"
        )
    records = collect_every(study, folder / "runs")
    if not len(records) == facts["num_runs"] == facts["num_recorded"]:
        raise ArchiveError(
            f"{layout.ARCHIVE_FILE} states {facts['num_recorded']} records of {facts['num_runs']} "
            f"runs, its study has {len(records)}; {_AGAIN}"
        )
    check_inputs(records, folder)
    return study.name


def check_inputs(records: Sequence[RunRecord], results: Path) -> None:
    """Raise ArchiveError where a spec or the manifest is missing or not what the runs had."""
    manifest = results / layout.MANIFEST_FILE
    files = [results / "runs" / record.spec.run_id.partition("/")[2] for record in records]
    for path in (manifest, *(f / name for f in files for name in ("spec.json", "steps.jsonl"))):
        if not path.is_file():
            raise ArchiveError(f"{path} does not exist; it belongs to the records, bring it back")
    content = read_document(manifest, "", ArchiveError, "it must be that of the runs")
    validate(content, "manifest", manifest)
    tokens = sha256_of_file(manifest)
    for record, folder in zip(records, files, strict=True):
        run_id, spec = record.spec.run_id, folder / "spec.json"
        if read_text(spec, "", ArchiveError) != record.spec.to_json():
            raise ArchiveError(
                f"{spec} is not the spec in run.json beside it; train {run_id} again"
            )
        trained_on = record.run["data"]["manifest_sha256"]
        if trained_on != tokens:
            raise ArchiveError(
                f"{run_id} was trained on tokens {trained_on[:12]}..., {manifest} is "
                f"{tokens[:12]}...; train it again or bring its manifest back"
            )


def _checked_entries(opened: zipfile.ZipFile, archive: Path) -> dict[str, zipfile.ZipInfo]:
    """Entries by name; raises ArchiveError unless each is an expected, plain, single file."""
    entries: dict[str, zipfile.ZipInfo] = {}
    if len(opened.infolist()) > layout.MAX_FILES:
        raise ArchiveError(f"{archive} holds over {layout.MAX_FILES} files; {_AS_IT_WAS}")
    for entry in opened.infolist():
        name = entry.orig_filename
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if not layout.EXPECTED.fullmatch(name):
            raise ArchiveError(
                f"{archive} holds {name[:80]!r}, which no archive of a study does; {_AS_IT_WAS}"
            )
        if kind not in (0, stat.S_IFREG) or entry.flag_bits & _ENCRYPTED:
            raise ArchiveError(
                f"{archive}: {name} is a link, a device or encrypted, not a file; {_AS_IT_WAS}"
            )
        if name in entries:
            raise ArchiveError(f"{archive} holds {name} twice; {_AGAIN}")
        entries[name] = entry
    total = sum(entry.file_size for entry in entries.values())
    if total > layout.MAX_BYTES:
        raise ArchiveError(
            f"{archive} unpacks to {total / 2**30:.1f} GiB, over the {layout.MAX_BYTES >> 30} GiB "
            f"of an archive; {_AS_IT_WAS}"
        )
    return entries


def _checksums(
    opened: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo], archive: Path
) -> dict[str, str]:
    """Name -> SHA-256 of all files but the sums; raises ArchiveError where they do not match."""
    if layout.SUMS_FILE not in entries:
        raise ArchiveError(f"{archive} lacks {layout.SUMS_FILE}; {_AS_IT_WAS}")
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


def _copy(
    opened: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path | None, archive: Path
) -> str:
    """SHA-256 of an entry's content, written to `target` where one is given.

    zipfile reads no more than the entry's stated size and checks its CRC-32; it does not always
    name the file that is damaged.
    """
    digest = hashlib.sha256()
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with opened.open(entry) as source, target.open("xb") if target else nullcontext() as sink:
            while block := source.read(_BLOCK):
                digest.update(block)
                if sink is not None:
                    sink.write(block)
    except _DAMAGED as error:
        reason = " ".join(str(error).split())[:120]
        fault = f"{archive}: its {entry.filename} is damaged ({reason}); {_AGAIN}"
        raise ArchiveError(fault) from None
    return digest.hexdigest()


_LINE = re.compile(r"([0-9a-f]{64})  (\S+)", re.ASCII)


def parse_sums(text: str, where: str) -> dict[str, str]:
    """Name -> SHA-256 in hex; raises ArchiveError naming the line that is none."""
    sums: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None or match[2] in sums:
            raise ArchiveError(
                f"{where}:{number}: {line[:80]!r} is not a checksum and a name of its own; {_AGAIN}"
            )
        sums[match[2]] = match[1]
    return sums
