"""`python -m pipeline paper --study --metrics --figures --tables --generated --out`.

`--verdicts` too, where the study names claims, `--manifest` for the size of the tokens, and
`--validation` for how far emulated nodes may be trusted.
"""

from __future__ import annotations

import argparse
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipeline import options

SUMMARY = "the manuscript with all its generated parts as PDF and LaTeX"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the stage."""
    parser.add_argument("--study", type=options.study, required=True, help=options.STUDY)
    parser.add_argument("--metrics", type=options.path, required=True, help="metrics.parquet")
    parser.add_argument(
        "--figures", type=options.folder, required=True, help="folder of the figures"
    )
    parser.add_argument("--tables", type=options.folder, required=True, help="folder of the tables")
    parser.add_argument(
        "--verdicts", type=options.path, help="verdicts.json, where the study has claims"
    )
    parser.add_argument(
        "--manifest", type=options.path, help="manifest.json of the tokens, for their size"
    )
    parser.add_argument(
        "--validation", type=options.path, help="emulation.json that `make bench` wrote"
    )
    parser.add_argument(
        "--generated", type=options.new_folder, required=True, help="folder for numbers and copies"
    )
    parser.add_argument(
        "--out", type=options.new_folder, required=True, help="folder for paper.{pdf,tex}"
    )


def run(args: argparse.Namespace) -> int:
    """Collect the numbers, fill the manuscript, write both formats."""
    from pipeline import schemas
    from pipeline.claims.write import read_verdicts
    from pipeline.files import write_text
    from pipeline.metrics import table
    from pipeline.metrics.emulation import load_validation
    from pipeline.metrics.printed import printable_markdown
    from pipeline.paper import export
    from pipeline.paper.manuscript import SOURCES, render
    from pipeline.paper.numbers import collect
    from pipeline.study.load import load_study

    generated, out = args.generated, args.out
    study = load_study(args.study)
    verdicts = read_verdicts(args.verdicts, study.name) if args.verdicts else []
    manifest = (
        schemas.read(args.manifest, "manifest", "python -m pipeline tokens")
        if args.manifest
        else None
    )
    validation = load_validation(args.validation) if args.validation else None
    frame = table.read(args.metrics, study.name)
    numbers = collect(study, frame, verdicts, manifest, validation)
    _copy(args.figures, generated / "figures", (".svg", ".pdf"))
    _copy(args.tables, generated / "tables", (".md", ".tex"))
    write_text(generated / "numbers.json", json.dumps(numbers, indent=1, ensure_ascii=False) + "\n")
    # Read back, so that the text can hold nothing that is not in the file.
    stored = json.loads((generated / "numbers.json").read_text(encoding="utf-8"))
    source = (SOURCES / "manuscript.md").read_text(encoding="utf-8")
    text = render(source, stored, generated / "tables")
    write_text(generated / export.MANUSCRIPT, text)
    write_text(generated / export.PRINTED, printable_markdown(text, frame))
    with ThreadPoolExecutor() as pool:
        writing = [
            pool.submit(export.write_pdf, generated, out / "paper.pdf", stored["date"]),
            pool.submit(export.write_latex, generated, out / "paper.tex", args.figures),
        ]
    for one in writing:
        one.result()
    return 0


def _copy(source: Path, target: Path, suffixes: tuple[str, ...]) -> None:
    """Make `target` hold exactly the files of `source` with these suffixes."""
    from pipeline.files import atomic_path

    shutil.rmtree(target, ignore_errors=True)
    for path in sorted(source.iterdir()):
        if path.suffix in suffixes and not path.name.startswith("."):
            with atomic_path(target / path.name) as temporary:
                shutil.copyfile(path, temporary)
