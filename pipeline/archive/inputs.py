"""Do the specs and the token manifest beside the records belong to them?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.archive.layout import MANIFEST_FILE
from pipeline.documents import read_document, read_text
from pipeline.errors import ArchiveError
from pipeline.files import sha256_of_file
from pipeline.records import RunRecord
from pipeline.schemas import validate


def check_inputs(records: Sequence[RunRecord], results: Path) -> None:
    """Raise ArchiveError where a spec or the manifest is missing or not what the runs had."""
    manifest = results / MANIFEST_FILE
    _exists(manifest)
    fix = "it must be that of the runs"
    content = read_document(manifest, "", ArchiveError, fix)
    validate(content, "manifest", manifest)
    tokens = sha256_of_file(manifest)
    for record in records:
        run_id = record.spec.run_id
        spec = results / "runs" / run_id.partition("/")[2] / "spec.json"
        _exists(spec)
        _exists(spec.with_name("steps.jsonl"))
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


def _exists(path: Path) -> None:
    if not path.is_file():
        raise ArchiveError(f"{path} does not exist; it belongs to the records, bring it back")
