"""`python -m pipeline tokens`: the corpus of a study to token shards and their manifest."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pipeline.errors import CorpusError
from pipeline.machine.control_groups import usable_cores

SUMMARY = "turn a corpus into token shards and a manifest"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the stage."""
    parser.add_argument("--spec", type=Path, required=True, help="JSON file of a tokens spec")
    parser.add_argument("--out", type=Path, required=True, help="folder for shards and manifest")
    parser.add_argument(
        "--num-proc",
        type=int,
        default=len(usable_cores()),
        help="processes that read and encode; the result does not depend on it",
    )


def run(args: argparse.Namespace) -> int:
    """Make the tokens and say in one line what they are."""
    from pipeline.corpus.build import TokensSpec, build

    if args.num_proc < 1:
        raise CorpusError(f"--num-proc {args.num_proc} is not at least 1; give a positive number")
    manifest = build(TokensSpec.from_dict(_read(args.spec)), args.out, args.num_proc)
    print(
        f"tokens: {manifest.num_documents} documents, {manifest.num_characters} characters, "
        f"{manifest.num_tokens} tokens, vocabulary {manifest.vocab_size} -> {args.out}"
    )
    return 0


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorpusError(
            f"{path}: {' '.join(str(error).split())}; expected the JSON file of a tokens spec"
        ) from None
