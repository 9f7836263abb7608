"""The archive of a study: what goes into it, checked first, and a zip of nothing but its bytes."""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pipeline
from pipeline.archive import layout
from pipeline.archive.crate import metadata
from pipeline.archive.unpack import check_inputs
from pipeline.claims.judge import judge_all
from pipeline.claims.load import files_of, load_claims
from pipeline.claims.worlds import Evidence
from pipeline.claims.write import write_verdicts
from pipeline.errors import ArchiveError, LaunchError
from pipeline.files import atomic_path, is_made_of
from pipeline.machine.image import locked_digest
from pipeline.machine.source import provenance
from pipeline.metrics import table
from pipeline.metrics.build import build, read_all
from pipeline.metrics.emulation import load_uncertainty
from pipeline.metrics.results import Results
from pipeline.records import RunRecord
from pipeline.schemas import validate
from pipeline.study.expansion import every_run
from pipeline.study.load import load_study
from pipeline.study.study import Study
from pipeline.text import markdown

# The first moment that a zip can state: an archive says when its runs were, not when it was packed.
_MOMENT = (1980, 1, 1, 0, 0, 0)
_UNIX, _REGULAR_FILE = 3, 0o100644
_README = """\
# {title}

Study `{study}`, {num_runs} runs, packed by {code}.

- `runs/<cell>/n<nodes>/r<repeat>/`: the raw records, `p<repeat>` those of profiled runs,
  `t<repeat>` those of runs in real time; `study.json`: what was asked for
- `metrics/`, `claims/`, `figures/`, `tables/`, `paper/`: made from the records
- `environment/`, `source/`: locked packages, workflow and manuscript that made them
- `sha256sum --check SHA256SUMS` checks all; `ro-crate-metadata.json` describes all

In a checkout of that commit this makes the results again and compares their bytes:

    make paper FROM=archive.zip
"""


def contents(results: Path) -> dict[str, Path | bytes]:
    """Name in the archive -> file or bytes, all but the checksums.

    Raises ArchiveError where the study is unfinished, RecordError where a record is unfit.
    """
    study = load_study(results / layout.STUDY_FILE)
    made = layout.products(study)
    files = [results / "runs" / spec.folder / "run.json" for spec in every_run(study)]
    files += [results / name for name in made]
    if absent := [path for path in files if not path.is_file()]:
        raise ArchiveError(
            f"study {study.name!r} is unfinished: {absent[0]} does not exist ({len(absent)} "
            f"{'file is' if len(absent) == 1 else 'files are'} missing); run `make paper`"
        )
    records = check_made(study, results)
    optional = (layout.REPORT_FILE, layout.YARDSTICK_FILE)
    kept = [layout.STUDY_FILE, layout.MANIFEST_FILE, *made]
    kept += [name for name in optional if (results / name).is_file()]
    for record in records:
        kept += [f"runs/{record.spec.folder}/{name}" for name in layout.RUN_FILES]
    parts: dict[str, Path | bytes] = {name: _inside(results, results / name) for name in kept}
    # A product is what a stage has made of the metrics that are there, and was not edited since.
    for path in (results / name for name in kept if layout.is_noted(name)):
        if not is_made_of(path, results / layout.METRICS_FILE):
            raise ArchiveError(
                f"{path} is not what a stage has made of these metrics, but was changed or copied "
                "since; remove it and run `make paper`"
            )
    parts |= {name: _inside(layout.ROOT, path) for name, path in layout.sources(study).items()}
    parts |= _image(records)
    facts = {
        "schema_version": 1,
        "study": study.name,
        "num_runs": len(records),
        "num_recorded": len(records),
        "samestep": pipeline.__version__,
        **provenance(),
    }
    validate(facts, "archive", layout.ARCHIVE_FILE)
    parts[layout.ARCHIVE_FILE] = _json(facts)
    code = f"Samestep {facts['samestep']}, commit {facts['git_commit'] or 'unknown'}"
    code += ", changed since" if facts["git_dirty"] else ""
    readme = _README.format(title=markdown(study.title).strip(), code=code, **facts)
    parts[layout.README_FILE] = readme.encode()
    parts[layout.CRATE_FILE] = _json(metadata(study, records, facts, sorted(parts)))
    return parts


def _inside(folder: Path, path: Path) -> Path:
    """The path of a file below the folder; raises ArchiveError where a symlink leads elsewhere."""
    if path.resolve() != folder.resolve() / path.relative_to(folder):
        raise ArchiveError(
            f"{path} is or lies below a symlink to {path.resolve()}, and an archive holds no file "
            "from elsewhere; put the file itself in its place"
        )
    return path


def check_made(study: Study, results: Path) -> list[RunRecord]:
    """The records; raises ArchiveError unless tokens, metrics and verdicts are theirs.

    RecordError where a record is missing or unfit.
    """
    records = read_all(study, every_run(study), results / "runs")
    check_inputs(records, results)
    with TemporaryDirectory() as folder:
        anew = Path(folder)
        yardstick = results / layout.YARDSTICK_FILE if study.cluster.yardstick else None
        made_anew = build(study, results / "runs", load_uncertainty(yardstick))
        table.write(made_anew, anew / layout.METRICS_FILE)
        if study.claims:
            evidence = Evidence(study, Results.read(anew / layout.METRICS_FILE))
            verdicts = judge_all(load_claims(*files_of(study)), evidence)
            write_verdicts(study.name, verdicts, anew / layout.VERDICTS_FILE)
        for path in sorted(path for path in anew.rglob("*") if path.is_file()):
            packed = results / path.relative_to(anew)
            if not packed.is_file() or path.read_bytes() != packed.read_bytes():
                raise ArchiveError(
                    f"{packed} is not what these records and this code give; remove it and run "
                    "`make paper`"
                )
    return records


def _image(records: Sequence[RunRecord]) -> dict[str, Path]:
    """The facts of the container image, where the runs were inside the one that lies here."""
    used = {record.run["provenance"]["image_digest"] for record in records} - {None}
    if not used:
        return {}
    image = layout.ROOT / "images" / "samestep.sif"
    with suppress(LaunchError):
        if used == {locked_digest(image)}:
            return {layout.IMAGE_FILE: image.with_suffix(".json")}
    print(
        f"the runs were inside image {', '.join(sorted(used))}, which images/samestep.json does "
        "not describe: its facts are not packed",
        file=sys.stderr,
    )
    return {}


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def write_zip(parts: Mapping[str, Path | bytes], final: Path) -> None:
    """Write the files by their names and, last, SHA256SUMS; equal files give equal bytes.

    Raises ArchiveError when they are more than an archive may hold.
    """
    total = sum(len(p) if isinstance(p, bytes) else p.stat().st_size for p in parts.values())
    if total > layout.MAX_BYTES:
        raise ArchiveError(
            f"the files of the study are {total / 2**30:.1f} GiB, an archive holds at most "
            f"{layout.MAX_BYTES >> 30} GiB; split the study"
        )

    def add(name: str, content: bytes) -> str:
        entry = zipfile.ZipInfo(name, _MOMENT)
        entry.create_system, entry.external_attr = _UNIX, _REGULAR_FILE << 16
        archive.writestr(entry, content, zipfile.ZIP_DEFLATED, compresslevel=6)
        return f"{hashlib.sha256(content).hexdigest()}  {name}\n"

    with atomic_path(final) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        sums = [
            add(name, part if isinstance(part, bytes) else part.read_bytes())
            for name, part in sorted(parts.items())
        ]
        add(layout.SUMS_FILE, "".join(sums).encode())
