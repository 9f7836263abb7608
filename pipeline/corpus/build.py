"""A corpus section and a tokeniser section to a folder of token shards, in order and atomically."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

from pipeline.corpus.manifest import (
    MANIFEST_FILE,
    SCHEMA_VERSION,
    TOKENIZER_FILE,
    Manifest,
    smallest_dtype,
    write_shards,
)
from pipeline.corpus.sources import Source, source_of
from pipeline.documents import read_made
from pipeline.errors import CorpusError, SamestepError
from pipeline.files import made_folder, sha256_of_file

_WORK_PREFIX = ".work-"
SETTINGS_FILE = "tokenizer_config.json"
"""Beside a tokeniser that exists: names its end-of-text token."""


def build(spec: Mapping[str, Any], folder: Path, num_threads: int) -> Manifest:
    """Make `folder`: shards and tokenizer.json, then manifest.json last.

    `spec` is that of `pipeline.study.expansion.tokens_spec`. What an earlier run left is removed
    first. Raises CorpusError, leaving no final name behind.
    """
    from unittest import mock  # asyncio comes with it, and `check` makes no tokens

    source = source_of(spec["corpus"])
    _check_kept(spec, folder)
    tokenizer = spec["tokenizer"]
    is_fetched = tokenizer["kind"] == "pretrained" and not Path(tokenizer["name"]).is_dir()
    offline = source.is_local and not is_fetched
    try:
        with made_folder(folder):
            # The manifest first: without it nothing counts as whole.
            for name in (MANIFEST_FILE, TOKENIZER_FILE):
                (folder / name).unlink(missing_ok=True)
            for shard in folder.glob("shard-*.bin"):
                shard.unlink()
            for left in folder.glob(f"{_WORK_PREFIX}*"):
                shutil.rmtree(left, ignore_errors=True)
            with (
                # Beside the result, hence on the same disk.
                tempfile.TemporaryDirectory(
                    prefix=_WORK_PREFIX, dir=folder, ignore_cleanup_errors=True
                ) as name,
                mock.patch.dict(os.environ, _settings(work := Path(name), offline, num_threads)),
            ):
                manifest = _make(spec, source, work, num_threads)
                manifest.write(work)
                names = [TOKENIZER_FILE, *(shard.file for shard in manifest.shards), MANIFEST_FILE]
                for name in names:
                    (work / name).replace(folder / name)
    except OSError as error:
        raise CorpusError(
            f"could not write tokens below {folder} ({error.strerror or error}); "
            "free disk space or fix the permissions"
        ) from error
    return manifest


def _settings(work: Path, offline: bool, num_threads: int) -> dict[str, str]:
    """Environment: caches below `work`, no torch in the process, no network where none is needed.

    The libraries read most of these variables when they are first imported, so they are set before
    `datasets` or `tokenizers` is.
    """
    return {
        # Without this `datasets` searches for torch, which costs seconds and hundreds of megabytes.
        **dict.fromkeys(("USE_TORCH", "USE_TF", "USE_JAX"), "0"),
        # Absolute, since `datasets` keeps its cache's name for as long as the process lives.
        "HF_DATASETS_CACHE": str(work.resolve() / "datasets"),
        "HF_MODULES_CACHE": str(work.resolve() / "modules"),
        "HF_HUB_CACHE": str(work.resolve() / "hub"),
        "HF_XET_CACHE": str(work.resolve() / "xet"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        # What it says of each of its attempts; how they ended is in the error.
        "HF_HUB_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "true" if num_threads > 1 else "false",
        "RAYON_NUM_THREADS": str(num_threads),
        **(dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"), "1") if offline else {}),
    }


def _make(spec: Mapping[str, Any], source: Source, work: Path, num_threads: int) -> Manifest:
    """Everything but the final names: shards and tokeniser lie in `work`."""
    # Imported here, when the environment is set, which libraries read once.
    from pipeline.corpus.encode import encode
    from pipeline.corpus.text_store import store_text
    from pipeline.corpus.tokenisers import make_tokeniser

    store = store_text(source, work / "text.arrow")
    tokeniser = make_tokeniser(spec["tokenizer"], store, work / "hub")
    tokeniser.check_fits(spec["model_vocab_size"])
    tokeniser.tokenizer.save(str(work / TOKENIZER_FILE))
    dtype = smallest_dtype(tokeniser.vocab_size)
    shards = write_shards(work, dtype, encode(store, tokeniser, dtype, num_threads))
    num_tokens = sum(shard.num_tokens for shard in shards)
    if num_tokens < spec["min_tokens"]:
        raise CorpusError(
            f"the corpus has {num_tokens} tokens; expected at least {spec['min_tokens']}, one "
            f"batch of sequences of {spec['context']} and one more; lower workload.global_batch or "
            "model.context, or use a larger corpus"
        )
    noted = {
        part: {"contents": contents(paths)} if paths else {}
        for part, paths in local_files(spec["corpus"], spec["tokenizer"]).items()
    }
    return Manifest(
        schema_version=SCHEMA_VERSION,
        source=source.describe() | noted["source"],
        tokenizer={
            **tokeniser.description,
            **noted["tokenizer"],
            "separator": tokeniser.separator,
            "sha256": sha256_of_file(work / TOKENIZER_FILE),
        },
        num_documents=store.num_documents,
        num_characters=store.num_characters,
        text_sha256=store.text_sha256,
        num_tokens=num_tokens,
        vocab_size=tokeniser.vocab_size,
        separator_id=tokeniser.separator_id,
        dtype=dtype,
        shards=tuple(shards),
        versions={
            "python": platform.python_version(),
            "datasets": version("datasets"),
            "tokenizers": version("tokenizers"),
        },
    )


def _check_kept(spec: Mapping[str, Any], folder: Path) -> None:
    """Raise CorpusError where what is read lies where `build` removes what was made before."""
    for path in map(Path, chain(*local_files(spec["corpus"], spec["tokenizer"]).values())):
        is_inside = False
        # What can be no path, or may not be read, is refused where it is read.
        with suppress(OSError, ValueError, RuntimeError):
            is_inside = path.exists() and path.resolve().parent == folder.resolve()
        if is_inside:
            raise CorpusError(
                f"{path} lies in {folder}, where the tokens are made, and would be removed first; "
                "give another folder"
            )


def local_files(corpus: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> dict[str, list[str]]:
    """Part of a manifest -> files of this machine that it is made from, in a fixed order."""
    text, tokens = list(corpus.get("paths", [])), Path(str(tokenizer.get("name", "")))
    if corpus["source"] == "hub" and (folder := Path(corpus["name"])).is_dir():
        visible = (one for one in folder.rglob("*") if "/." not in f"/{one.relative_to(folder)}")
        text = sorted(str(path) for path in visible if path.is_file())
    is_folder = tokenizer["kind"] == "pretrained" and tokens.is_dir()
    read = [tokens / TOKENIZER_FILE, tokens / SETTINGS_FILE] if is_folder else []
    return {"source": text, "tokenizer": [str(path) for path in read if path.is_file()]}


def contents(paths: Sequence[str]) -> list[dict[str, Any]]:
    """Size in bytes and SHA-256 of each of these files."""
    return [{"bytes": Path(path).stat().st_size, "sha256": sha256_of_file(Path(path))}
            for path in paths]  # fmt: skip


def changed(
    corpus: Mapping[str, Any], tokenizer: Mapping[str, Any], tokens: Path
) -> list[str] | None:
    """Files of text or tokeniser that have changed since the shards in `tokens` were made.

    None where there are no shards, or shards of other sources: they are to be made. A file that is
    gone, or has no hash there, as in earlier versions, is no change.
    """
    try:
        manifest = read_made(tokens / MANIFEST_FILE, "manifest", CorpusError, "tokens")
        made, kind = manifest["source"], manifest["tokenizer"]["kind"]
    except (SamestepError, KeyError, TypeError):
        return None
    now = source_of(corpus).describe()
    if made.get("source") == now["source"] == "python-docs" and made != now:
        return [f"python-docs of CPython {now['python']}"]
    if kind != tokenizer["kind"] or any(made.get(key) != value for key, value in now.items()):
        return None
    others = []
    for part, paths in local_files(corpus, tokenizer).items():
        was = manifest[part].get("contents", [])
        if was and paths and len(paths) != len(was):  # a folder has other files
            others.append(f"the folder of {paths[0]}")
        pairs = zip(paths, was, strict=False)
        others += [p for p, one in pairs if Path(p).is_file() and contents([p]) != [one]]
    return others
