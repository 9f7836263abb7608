"""Changes of a study's text since its tokens were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.corpus.manifest import MANIFEST_FILE
from pipeline.corpus.sources import source_of
from pipeline.documents import read_made
from pipeline.errors import CorpusError, SamestepError
from pipeline.files import sha256_of_file


def contents(paths: Sequence[str]) -> list[dict[str, Any]]:
    """Size in bytes and SHA-256 of each of these files."""
    return [{"bytes": Path(path).stat().st_size, "sha256": sha256_of_file(Path(path))}
            for path in paths]  # fmt: skip


def changed(corpus: Mapping[str, Any], tokens: Path) -> list[str] | None:
    """Sources of text that are another than when the shards in the folder `tokens` were made.

    None where there are no shards, or shards of other sources: they are to be made. A file that is
    gone is not needed any more, and is no change; nor is one whose hash an earlier version of this
    project did not note.
    """
    try:
        made = read_made(tokens / MANIFEST_FILE, "manifest", CorpusError, "tokens")["source"]
    except (SamestepError, KeyError, TypeError):
        return None
    now = source_of(corpus).describe()
    if made.get("source") == now["source"] == "python-docs" and made != now:
        return [f"python-docs of CPython {now['python']}"]
    if any(made.get(key) != value for key, value in now.items()):
        return None
    pairs = zip(corpus.get("paths", []), made.get("contents", []), strict=False)
    return [path for path, was in pairs if Path(path).is_file() and contents([path]) != [was]]
