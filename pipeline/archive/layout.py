"""The files of an archive, by their names in it; nothing else is packed or accepted."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline import figures, tables
from pipeline.claims.load import files_of
from pipeline.study.study import Study

ROOT = Path(__file__).parents[2]
ARCHIVE_FILE, SUMS_FILE, CRATE_FILE = "archive.json", "SHA256SUMS", "ro-crate-metadata.json"
README_FILE = "README.md"
STUDY_FILE, MANIFEST_FILE, REPORT_FILE = "study.json", "tokens/manifest.json", "report.html"
YARDSTICK_FILE = "yardstick.json"
"""Speed of the undisturbed machine, of a study that counts CPU seconds by it."""

METRICS_FILE, VERDICTS_FILE = "metrics/metrics.parquet", "claims/verdicts.json"
LOCK_FILE, IMAGE_FILE = "environment/requirements.lock", "environment/image.json"
WORKFLOW_FILE = "source/Snakefile"
RUN_FILES = ("spec.json", "run.json", "steps.jsonl")
PAPER_FILES = ("paper/paper.pdf", "paper/paper.tex")

# More than any study that is trained by this project leaves; a guard against zip bombs.
MAX_BYTES = 4 << 30

MAX_FILES = 100_000
"""Ten times the files of a study of `pipeline.study.expansion.MAX_RUNS` runs, nearly."""

_SOURCES = ("Snakefile", "from_archive.smk", "workflow/rules/*.smk", "workflow/schemas/*.yaml",
            "paper/*.*")  # fmt: skip
_RECORD = r"runs/[a-z0-9][a-z0-9-]*/n\d+/[rpt]\d+/(spec\.json|run\.json|steps\.jsonl)"
_PRODUCT = (
    r"metrics/metrics\.parquet|claims/verdicts\.json|figures/\w+\.(pdf|svg|png)"
    r"|tables/\w+\.(tex|md|csv|html)|paper/paper\.(pdf|tex|html)"
)
_SOURCE = (
    r"source/(Snakefile|from_archive\.smk|workflow/rules/\w+\.smk|workflow/schemas/[\w.]+\.yaml"
    r"|workflow/config/[\w-]+/[\w-]+\.yaml|paper/\w+\.\w+)"
)
# In archives of before runs in real time emulation.json has what a bench had measured: ignored.
_SINGLE = "|".join(
    re.escape(name)
    for name in (ARCHIVE_FILE, SUMS_FILE, CRATE_FILE, README_FILE, STUDY_FILE, MANIFEST_FILE,
                 "emulation.json", YARDSTICK_FILE, REPORT_FILE, LOCK_FILE, IMAGE_FILE)
)  # fmt: skip
EXPECTED = re.compile(f"{_SINGLE}|{_RECORD}|{_PRODUCT}|{_SOURCE}", re.ASCII)
PRODUCT = re.compile(_PRODUCT, re.ASCII)


def is_needed(name: str) -> bool:
    """True where a rebuild starts from this file; all others it makes anew or takes from here."""
    single = (ARCHIVE_FILE, SUMS_FILE, STUDY_FILE, MANIFEST_FILE, YARDSTICK_FILE)
    return name in single or name.startswith("runs/")


def is_noted(name: str) -> bool:
    """True where a file's stage notes it; metrics and verdicts are made anew instead."""
    made_anew = (METRICS_FILE, VERDICTS_FILE)
    return name == REPORT_FILE or (name not in made_anew and bool(PRODUCT.fullmatch(name)))


def products(study: Study) -> list[str]:
    """Files of a finished study besides its records, by their names below results/<study>."""
    drawn, tabled = figures.catalogue.shown(study), tables.catalogue.shown(study)
    return [
        METRICS_FILE,
        *([VERDICTS_FILE] if study.claims else []),
        *(f"figures/{name}.{kind}" for name in drawn for kind in ("pdf", "svg", "png")),
        *(f"tables/{name}.{kind}" for name in tabled for kind in ("tex", "md", "csv")),
        *PAPER_FILES,
    ]


def sources(study: Study) -> dict[str, Path]:
    """Name in the archive -> file of this checkout: workflow, claims, manuscript and lock.

    What an editor leaves beside them has a name that no archive has.
    """
    paths = [path for pattern in _SOURCES for path in ROOT.glob(pattern)]
    paths += files_of(study)
    named = {f"source/{path.relative_to(ROOT).as_posix()}": path for path in paths}
    known = {name: path for name, path in named.items() if EXPECTED.fullmatch(name)}
    return {**known, LOCK_FILE: ROOT / "envs" / "requirements.lock"}
