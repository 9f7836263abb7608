"""A corpus section and a tokeniser section to a folder of token shards, in order and atomically."""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.corpus.changes import contents
from pipeline.corpus.environment import settings
from pipeline.corpus.manifest import MANIFEST_FILE, SCHEMA_VERSION, TOKENIZER_FILE, Manifest, Shard
from pipeline.corpus.shards import ShardWriter, smallest_dtype
from pipeline.corpus.sources import Source, source_of
from pipeline.errors import CorpusError
from pipeline.files import made_folder, sha256_of_file
from pipeline.schemas import describe, first_error

if TYPE_CHECKING:
    from pipeline.corpus.text_store import Survey
    from pipeline.corpus.tokenisers import Tokeniser

_WORK_PREFIX = ".work-"


@dataclass(frozen=True)
class TokensSpec:
    """What `tokens` makes: the study's sections and the limits that its model and batch set.

    `min_tokens` is global_batch * context + 1, the least that one batch needs.
    """

    corpus: Mapping[str, Any]
    tokenizer: Mapping[str, Any]
    context: int
    model_vocab_size: int
    min_tokens: int

    @classmethod
    def from_dict(cls, data: Any) -> TokensSpec:
        """Raises CorpusError naming the key, value and rule."""
        error = first_error(data, "tokens")
        if error is not None:
            raise CorpusError(f"tokens spec {describe(error)}; run snakemake, which writes it")
        return cls(**data)


def build(spec: TokensSpec, folder: Path, num_proc: int) -> Manifest:
    """Make `folder`: shards and tokenizer.json, then manifest.json last.

    What an earlier run left is removed first. Raises CorpusError, leaving no final name behind.
    """
    source = source_of(spec.corpus)
    _check_kept(spec, folder)
    offline = source.is_local and not _is_remote(spec.tokenizer)
    try:
        with made_folder(folder):
            _clean(folder)
            with _work_folder(folder) as work, settings(work, offline=offline, num_proc=num_proc):
                manifest = _make(spec, source, work, num_proc)
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


def _make(spec: TokensSpec, source: Source, work: Path, num_proc: int) -> Manifest:
    """Everything but the final names: shards and tokeniser lie in `work`."""
    # Imported here, when the environment is set, because `datasets` reads it once.
    import datasets

    from pipeline.corpus.encode import encode
    from pipeline.corpus.text_store import store_text
    from pipeline.corpus.tokenisers import make_tokeniser

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    store = store_text(source, work / "text", num_proc)
    survey = store.survey()
    tokeniser = make_tokeniser(spec.tokenizer, store, survey, work / "hub")
    tokeniser.check_fits(spec.model_vocab_size)
    tokeniser.tokenizer.save(str(work / TOKENIZER_FILE))
    dtype = smallest_dtype(tokeniser.vocab_size)
    with ShardWriter(work, dtype) as writer:
        encode(store, tokeniser, dtype, writer, work, num_proc)
    manifest = _describe(spec, source, survey, tokeniser, work, tuple(writer.shards))
    _check_enough(manifest.num_tokens, spec)
    return manifest


def _describe(
    spec: TokensSpec,
    source: Source,
    survey: Survey,
    tokeniser: Tokeniser,
    work: Path,
    shards: tuple[Shard, ...],
) -> Manifest:
    """The manifest of what lies in `work`."""
    paths = spec.corpus.get("paths", [])
    return Manifest(
        schema_version=SCHEMA_VERSION,
        source=source.describe() | ({"contents": contents(paths)} if paths else {}),
        tokenizer={
            **tokeniser.description,
            "separator": tokeniser.separator,
            "sha256": sha256_of_file(work / TOKENIZER_FILE),
        },
        num_documents=survey.num_documents,
        num_characters=survey.num_characters,
        num_tokens=sum(shard.num_tokens for shard in shards),
        vocab_size=tokeniser.vocab_size,
        separator_id=tokeniser.separator_id,
        dtype=smallest_dtype(tokeniser.vocab_size),
        text_sha256=survey.text_sha256,
        shards=shards,
        versions={
            "python": platform.python_version(),
            "datasets": version("datasets"),
            "tokenizers": version("tokenizers"),
        },
    )


def _check_enough(num_tokens: int, spec: TokensSpec) -> None:
    if num_tokens < spec.min_tokens:
        raise CorpusError(
            f"the corpus has {num_tokens} tokens; expected at least {spec.min_tokens}, one batch "
            f"of sequences of {spec.context} and one more; lower workload.global_batch or "
            "model.context, or use a larger corpus"
        )


def _check_kept(spec: TokensSpec, folder: Path) -> None:
    """Raise CorpusError where what is read lies where `_clean` removes what was made before."""
    read = [Path(path) for path in spec.corpus.get("paths", ())]
    if spec.tokenizer.get("kind") == "pretrained":
        read.append(Path(str(spec.tokenizer["name"])) / TOKENIZER_FILE)
    for path in read:
        try:
            is_inside = path.exists() and path.resolve().parent == folder.resolve()
        except (OSError, ValueError, RuntimeError):  # it is refused where it is read
            continue
        if is_inside:
            raise CorpusError(
                f"{path} lies in {folder}, where the tokens are made, and would be removed first; "
                "give another folder"
            )


def _is_remote(tokenizer: Mapping[str, Any]) -> bool:
    return tokenizer.get("kind") == "pretrained" and not Path(str(tokenizer.get("name"))).is_dir()


def _clean(folder: Path) -> None:
    """Remove what an earlier run made, the manifest first: without it nothing counts as whole."""
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    (folder / TOKENIZER_FILE).unlink(missing_ok=True)
    for shard in folder.glob("shard-*.bin"):
        shard.unlink()
    for work in folder.glob(f"{_WORK_PREFIX}*"):
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _work_folder(folder: Path) -> Iterator[Path]:
    """A folder beside the result, hence on the same disk, that is gone afterwards."""
    with tempfile.TemporaryDirectory(
        prefix=_WORK_PREFIX, dir=folder, ignore_cleanup_errors=True
    ) as work:
        yield Path(work)
