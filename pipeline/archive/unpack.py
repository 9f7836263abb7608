"""Open an archive that anyone may have made, and compare what was rebuilt from it.

First its names and sizes are checked, then its checksums. Only what `layout.EXPECTED` names is
accepted, what no rebuild needs is not written, and a record of no run of its study is refused, so
nothing in an archive can choose where it goes. All is checked in a folder of its own before that
takes its place, so that a bad archive leaves what was there before.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import shutil
import stat
import sys
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from pipeline.archive import layout
from pipeline.documents import MAX_MADE_BYTES, read_document, read_text
from pipeline.errors import ArchiveError, SamestepError, without_fix
from pipeline.files import made_folder, open_regular, sha256_of_file
from pipeline.machine.source import provenance
from pipeline.metrics.build import read_all
from pipeline.metrics.emulation import load_uncertainty
from pipeline.records import RunRecord
from pipeline.schemas import AGAIN, read, validate
from pipeline.study.expansion import every_run
from pipeline.study.load import load_study
from pipeline.text import few

_ENCRYPTED = 0x1
_AGAIN = AGAIN["archive"]
_AS_IT_WAS = f"{_AGAIN}, or give it as `make archive` packed it"
_LINE = re.compile(r"([0-9a-f]{64})  (\S+)", re.ASCII)
_DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError,
            RuntimeError, ValueError)  # fmt: skip
"""Errors of zipfile for bytes that are no sound zip file."""


def unpack(archive: Path, into: Path) -> Path:
    """The folder <into>/<study> with the archive's records, replacing one of an earlier archive.

    Raises ArchiveError in one line, and leaves `into` as it was, where the archive is no good.
    """
    with made_folder(into), TemporaryDirectory(dir=into, prefix=".unpack.") as place:
        fresh = Path(place, "study")
        extract(archive, fresh)
        try:
            study = check_records(fresh)
        except (SamestepError, ValueError, RecursionError) as error:
            # The fault is the archive's, not that of a folder which is about to go, and no run of
            # it can be repeated here: in place of any other fix stands that of an archive.
            text = without_fix(error).replace(f"{fresh}{os.sep}", "")
            raise ArchiveError(f"{archive}: {text}; {_AGAIN}") from None
        final = into / study  # a name that the schema of studies allows, so below `into`
        if final.exists() and not (final / layout.SUMS_FILE).is_file():
            raise ArchiveError(f"{final} was not unpacked from an archive; move it away first")
        if final.exists():
            os.replace(final, Path(place, "old"))
        os.replace(fresh, final)
    return final


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
                if _copy(opened, entries[name], target) != total:
                    raise ArchiveError(
                        f"{archive}: {name} is not the file that its {layout.SUMS_FILE} states; "
                        + _AGAIN
                    )
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


def _checked_entries(opened: zipfile.ZipFile, archive: Path) -> dict[str, zipfile.ZipInfo]:
    """Entries by name; raises ArchiveError unless each is an expected, plain, single file."""
    entries: dict[str, zipfile.ZipInfo] = {}
    for entry in opened.infolist():
        # As it stands in the file: `filename` is cut at a NUL and may have other separators.
        name = entry.orig_filename
        # 0 where the archive was made on a system without such modes.
        kind = stat.S_IFMT(entry.external_attr >> 16)
        fault = None
        if not layout.EXPECTED.fullmatch(name):
            fault = f"holds {name[:80]!r}, which no archive of a study does"
        elif kind not in (0, stat.S_IFREG) or entry.flag_bits & _ENCRYPTED:
            fault = f"has in {name} a link, a device or what is encrypted, not a file"
        elif name in entries:
            fault = f"holds {name} twice"
        if fault is not None:
            raise ArchiveError(f"{archive} {fault}; {_AS_IT_WAS}")
        entries[name] = entry
    # What is stated is what is read: zipfile stops at the stated size of an entry.
    total = sum(entry.file_size for entry in entries.values())
    if total > layout.MAX_BYTES or len(entries) > layout.MAX_FILES:
        raise ArchiveError(
            f"{archive} unpacks to {total / 2**30:.1f} GiB in {len(entries)} files, over the "
            f"{layout.MAX_BYTES >> 30} GiB or {layout.MAX_FILES} files of an archive; {_AS_IT_WAS}"
        )
    return entries


def _checksums(
    opened: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo], archive: Path
) -> dict[str, str]:
    """Name -> SHA-256 of all files but the sums; raises ArchiveError where they do not match."""
    if (own := entries.get(layout.SUMS_FILE)) is None or own.file_size > MAX_MADE_BYTES:
        raise ArchiveError(f"{archive} lacks {layout.SUMS_FILE}, or it is too large; {_AS_IT_WAS}")
    sums = parse_sums(opened.read(own).decode("utf-8"), f"{archive}: {layout.SUMS_FILE}")
    present = set(entries) - {layout.SUMS_FILE}
    required = {layout.ARCHIVE_FILE, layout.STUDY_FILE, layout.MANIFEST_FILE, layout.CRATE_FILE}
    if missing := (set(sums) | required) - present:
        raise ArchiveError(f"{archive} lacks {min(missing)}; {_AGAIN}")
    if unlisted := present - set(sums):
        raise ArchiveError(
            f"{archive} holds {min(unlisted)}, which its {layout.SUMS_FILE} does not list; {_AGAIN}"
        )
    return sums


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


def _copy(opened: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path | None) -> str:
    """SHA-256 of an entry's content, written to `target` where one is given.

    zipfile reads no more than the entry's stated size and checks its CRC-32.
    """
    with opened.open(entry) as source:
        if target is None:
            return hashlib.file_digest(cast(zipfile.ZipExtFile, source), "sha256").hexdigest()
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as sink:
            shutil.copyfileobj(source, sink)
    return sha256_of_file(target)


def check_records(folder: Path) -> str:
    """Validate study, records, specs and manifest below `folder`; returns the study's name.

    Raises SamestepError naming the file and what is wrong with it.
    """
    facts = read(folder / layout.ARCHIVE_FILE, "archive", "make archive")
    content = read_document(folder / layout.STUDY_FILE, "", ArchiveError)
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
    specs = every_run(study)
    known = {folder / "runs" / spec.folder for spec in specs}
    if others := {path.parent for path in folder.glob("runs/*/*/*/*")} - known:
        run = min(others).relative_to(folder)
        raise ArchiveError(f"the record {run} belongs to no run of its study; {_AGAIN}")
    records = read_all(study, specs, folder / "runs")
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
    files = [results / "runs" / record.spec.folder for record in records]
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


def verify(results: Path) -> int:
    """Print whether the products below `results`, which `unpack` made, have the archived bytes.

    Exit status 1 where not, with what differs, and probably why.
    """
    sums = results / layout.SUMS_FILE
    fix = "give a folder that `python -m pipeline unpack` made"
    listed = parse_sums(read_text(sums, "", ArchiveError, fix, MAX_MADE_BYTES), str(sums))
    made = layout.products(load_study(results / layout.STUDY_FILE))
    # What it is rebuilt from has to be the archive's too: else equal products prove nothing.
    given = {name: total for name, total in listed.items() if layout.is_needed(name)}
    if changed := differing(given, results):
        fault = (
            f"{len(changed)} files that came from the archive were changed or removed since: "
            f"{few(changed)}; run `make paper FROM=archive.zip` again"
        )
    elif missing := [name for name in made if name not in listed]:
        fault = (
            f"the archive states no checksum of {len(missing)} products of its study "
            f"({few(missing)}), so they cannot be verified; pack it anew or use the commit that "
            "made it"
        )
    else:
        others = {name for name in listed if layout.PRODUCT.fullmatch(name)} - {*made}
        if others:
            print(f"not compared, as this version does not make them: {few(sorted(others))}")
        expected = {name: listed[name] for name in made}
        changed = differing(expected, results)
        if not changed:
            print(f"{len(expected)} files rebuilt, every one byte-identical to the archive")
            return 0
        if not any((results / name).is_file() for name in expected):
            raise ArchiveError(
                f"nothing was rebuilt below {results}; run `make paper FROM=archive.zip` first"
            )
        fault = (
            f"{len(changed)} of {len(expected)} rebuilt files differ from the archive: "
            f"{few(changed)}; {_reason(listed, results)}"
        )
    print(fault, file=sys.stderr)
    return 1


def differing(expected: Mapping[str, str], folder: Path) -> list[str]:
    """Names of `expected` (name -> SHA-256) that are missing below `folder` or are others."""
    return [
        name
        for name, total in expected.items()
        if not (folder / name).is_file() or sha256_of_file(folder / name) != total
    ]


def _reason(listed: Mapping[str, str], results: Path) -> str:
    """The difference of this checkout from the one that made the archive."""
    source = {name: total for name, total in listed.items() if name.startswith("source/")}
    inside = {name.removeprefix("source/"): total for name, total in source.items()}
    inside["envs/requirements.lock"] = listed.get(layout.LOCK_FILE, "")
    if changed := differing(inside, layout.ROOT):
        return f"this checkout has another {', '.join(changed)}"
    made = read(results / layout.ARCHIVE_FILE, "archive", "python -m pipeline unpack")
    here = provenance()["git_commit"]
    if made["git_commit"] != here:
        return f"the archive was made by commit {made['git_commit']}, this checkout is {here}"
    return f"the code is the same, so compare the installed versions with its {layout.LOCK_FILE}"
