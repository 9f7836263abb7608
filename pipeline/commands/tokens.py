"""`python -m pipeline tokens`: the corpus of a study to token shards and their manifest."""

from __future__ import annotations

import argparse

from pipeline import options
from pipeline.documents import read_made
from pipeline.errors import CorpusError
from pipeline.machine.control_groups import usable_cores

SUMMARY = "turn a corpus into token shards and a manifest"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the stage."""
    parser.add_argument(
        "--spec", type=options.path, required=True, help="JSON file of a tokens spec"
    )
    parser.add_argument(
        "--out", type=options.new_folder, required=True, help="folder for shards and manifest"
    )
    parser.add_argument(
        "--num-proc",
        type=options.count(1, 4096),
        default=len(usable_cores()),
        help="processes that read and encode; the result does not depend on it",
    )


def run(args: argparse.Namespace) -> int:
    """Make the tokens and say in one line what they are."""
    from pipeline.corpus.build import TokensSpec, build

    spec = TokensSpec.from_dict(read_made(args.spec, "tokens spec", CorpusError, "snakemake"))
    manifest = build(spec, args.out, args.num_proc)
    print(
        f"tokens: {manifest.num_documents} documents, {manifest.num_characters} characters, "
        f"{manifest.num_tokens} tokens, vocabulary {manifest.vocab_size} -> {args.out}"
    )
    return 0
