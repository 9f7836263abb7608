"""Commands of the workflow and the Makefile, in the order of the flow."""

from __future__ import annotations

import argparse
import json
import os
import sys
from functools import partial
from pathlib import Path
from urllib.parse import quote

from pipeline import options
from pipeline.commands import SITE, STUDY, Command, arguments_of, command, needed, option
from pipeline.errors import ClaimError, CorpusError, StudyError
from pipeline.files import note_made, write_text

STAGES: dict[str, Command] = {}
enter = partial(command, STAGES)
METRICS = needed("--metrics", options.path, "metrics.parquet")
VERDICTS = option("--verdicts", options.path, "verdicts.json, where the study has claims")
FIGURES = needed("--figures", options.folder, "folder of the figures")
TABLES = needed("--tables", options.folder, "folder of the tables")
RUNS = needed("--runs", options.folder, "folder <cell>/n<nodes>/r<repeat>")


@enter(
    needed("--spec", options.path, "JSON file of a tokens spec"),
    needed("--out", options.new_folder, "folder for shards and manifest"),
    option("--num-proc", options.count(1, 4096), "threads that encode, by default one a core; the "
           "result does not depend on it"),
)  # fmt: skip
def tokens(args: argparse.Namespace) -> None:
    """Turn a corpus into token shards and a manifest.

    `python -m pipeline tokens --spec FILE --out DIR`
    """
    from pipeline.corpus.build import build
    from pipeline.documents import read_made
    from pipeline.machine.limits import usable_cores
    from pipeline.schemas import validate

    spec = read_made(args.spec, "tokens spec", CorpusError, "snakemake")
    validate(spec, "tokens", f"tokens spec {args.spec}", CorpusError)
    manifest = build(spec, args.out, args.num_proc or len(usable_cores()))
    print(
        f"tokens: {manifest.num_documents} documents, {manifest.num_characters} characters, "
        f"{manifest.num_tokens} tokens, vocabulary {manifest.vocab_size} -> {args.out}"
    )


@enter(
    STUDY,
    needed("--out", options.new_file, "JSON file to write"),
    option("--seconds", options.count(1, 3600),
           "of measuring; by default some for each precision and size of a micro-batch"),
)  # fmt: skip
def yardstick(args: argparse.Namespace) -> None:
    """Measure how fast this machine computes a study's passes when nothing disturbs them.

    `python -m pipeline yardstick --study FILE --out FILE`
    """
    from pipeline.launch.emulated.yardstick import measured
    from pipeline.machine import inherited
    from pipeline.machine.limits import usable_cores
    from pipeline.resolved import runs_of
    from pipeline.schemas import validate

    study = options.loaded(args.study)
    if not study.cluster.yardstick:
        raise StudyError(f"{args.study}: the study has no cluster.yardstick; nothing was measured")
    inherited.begin(study.environment)
    made = measured(runs_of(study), usable_cores(), args.seconds)
    validate(made, "yardstick", args.out)
    write_text(args.out, json.dumps(made, indent=1) + "\n")
    for one in made["passes"]:
        print(
            f"yardstick: {one['precision']}, {one['sequences']} sequences: forward pass "
            f"{1e3 * one['forward_seconds']:.2f} ms, step {1e3 * one['step_seconds']:.2f} ms"
        )
    print(f"-> {args.out}")


@enter(
    needed("--spec", options.path, "spec.json of the run"),
    needed("--tokens", options.path, "folder of token shards"),
    needed("--out", options.new_folder, "folder for the record"),
    option("--image", options.path, "container image that the ranks run in"),
    SITE,
    option("--yardstick", options.path, "what `yardstick` measured, where the study has it"),
    option("--attempt", options.count(1, 1000), "how often the run was started", default=1),
    option("scheduler", str,
           "what starts a process on each node of an allocation, such as srun with its options",
           nargs="*", metavar="-- COMMAND"),
)  # fmt: skip
def train(args: argparse.Namespace) -> int:
    """Train one run (cell x nodes x repeat) and write its validated record.

    `python -m pipeline train --spec spec.json --tokens DIR --out DIR` exits with 0 also when the
    record's status is not ok.
    """
    from pipeline.launch import preloaded

    # Each option in one word, so that no value looks like another.
    given = {name: value for name, value in vars(args).items() if value is not None}
    scheduler = given.pop("scheduler")
    words = ["train", *(f"--{name}={value}" for name, value in given.items()), "--", *scheduler]
    if (done := preloaded.ask_stage(words)) is not None:
        return done
    # A client of a waiting process needs none of the modules that the process has imported.
    from pipeline.launch.run import train
    from pipeline.launch.torchrun import RunPaths
    from pipeline.machine.site import load_site

    yardstick = args.yardstick and args.yardstick.resolve()
    paths = RunPaths(args.spec.resolve(), args.tokens.resolve(), args.out.resolve(), yardstick)
    site = load_site(args.site) if args.site else None
    record = train(paths, args.attempt, args.scheduler, args.image, site)
    run_id = record.run["run_id"]
    if record.status != "ok":
        print(f"{run_id}: {record.status}: {record.run['reason']}", file=sys.stderr)
    if stall := record.run["execution"].get("emulation", {}).get("stalled"):
        print(f"{run_id}: warning: stalled, kept in the data: {stall}", file=sys.stderr)
    return 0


@enter(needed("--site", options.path, "site file, workflow/site.yaml"))
def before(args: argparse.Namespace) -> None:
    """Print the lines that a cluster's site file runs first in each job, as one shell script.

    `python -m pipeline before --site workflow/site.yaml`: a line that fails ends the shell.
    """
    from pipeline.machine.site import load_site

    print(load_site(args.site).script(), end="")


@enter(
    STUDY,
    option(
        "--results",
        options.new_folder,
        "results that are rebuilt from their records, if not results/<study>; none is trained",
    ),
    option("workflow", str, "what to run", nargs="+", metavar="-- COMMAND"),
)
def follow(args: argparse.Namespace) -> int:
    """Run the workflow of a study with its log in a file and one line of progress.

    `python -m pipeline follow --study FILE -- COMMAND`: `make paper` starts Snakemake by it; the
    command gets `--configfile=FILE`. What Snakemake says goes to a file below `logs/workflow` in
    the results folder; words that somebody should know, and the end of it on failure, are printed.
    """
    from pipeline.study.load import load_points, results_folder
    from pipeline.watch import Watched, follow

    study = load_points(args.study) or options.loaded(args.study)
    watched = Watched(study, args.results or results_folder(args.study, of_points=True))
    words = [*args.workflow, f"--configfile={args.study}"]
    return follow(watched, words, retry=args.results is None)


@enter(
    STUDY,
    RUNS,
    needed("--out", options.new_file, "metrics.parquet to write"),
    option("--yardstick", options.file, "yardstick.json by which the runs counted"),
)
def metrics(args: argparse.Namespace) -> None:
    """Run records -> one validated tidy table (Parquet).

    `python -m pipeline metrics --study FILE --runs DIR --out metrics.parquet` prints each cell that
    is not ok or not equal, so that none hides.
    """
    from pipeline.metrics import table
    from pipeline.metrics.build import build
    from pipeline.metrics.emulation import load_uncertainty
    from pipeline.metrics.headline import warnings
    from pipeline.metrics.results import Results

    study = options.loaded(args.study)
    if args.yardstick and not study.cluster.yardstick:
        raise StudyError(f"--yardstick: the study {study.name} has none; leave the option out")
    frame = build(study, args.runs, load_uncertainty(args.yardstick))
    table.write(frame, args.out)
    for warning in warnings(Results(frame)):
        print(warning, file=sys.stderr)


@enter(arguments_of("pipeline.figures:catalogue", "{pdf,svg,png}"))
def figure(args: argparse.Namespace) -> None:
    """Figures as PDF, PNG and SVG, from the table of metrics.

    `python -m pipeline figure NAME ... --metrics FILE --out DIR`
    """
    from pipeline.figures.theme import draw_all
    from pipeline.metrics.results import Results

    draw_all(args.names, Results.read(args.metrics), args.out)
    _note(args)


@enter(arguments_of("pipeline.tables:catalogue", "{tex,md,csv}"))
def table(args: argparse.Namespace) -> None:
    """Tables as LaTeX, Markdown and CSV from the table of metrics.

    `python -m pipeline table NAME ... --metrics FILE --out DIR`
    """
    from pipeline.metrics.results import Results
    from pipeline.tables.write import write_table

    results = Results.read(args.metrics)
    for name in args.names:
        write_table(name, results, args.out)
    _note(args)


def _note(args: argparse.Namespace) -> None:
    """Note of which metrics these figures or tables were made."""
    note_made((path for name in args.names for path in args.out.glob(f"{name}.*")), args.metrics)


@enter(
    STUDY,
    METRICS,
    option(
        "--claims",
        options.path,
        "files of claims; without it those that the study names",
        nargs="+",
    ),
    needed("--out", options.new_file, "verdicts.json to write"),
    option("--readme", options.path, "Markdown file whose marked table is renewed"),
)
def claims(args: argparse.Namespace) -> None:
    """Verdicts on the published claims that a study names.

    `python -m pipeline claims --study FILE --metrics FILE --out verdicts.json`
    """
    from pipeline.claims.judge import judge_all
    from pipeline.claims.load import files_of, load_claims
    from pipeline.claims.worlds import Evidence
    from pipeline.claims.write import counted, update_readme, write_verdicts
    from pipeline.metrics.results import Results

    study = options.loaded(args.study)
    files = args.claims or files_of(study)
    if not files:
        raise ClaimError(f"study {study.name!r} names no claims; add the key `claims` to it")
    known = load_claims(*files)
    results = Results.read(args.metrics, study.name)
    verdicts = judge_all(known, Evidence(study, results))
    made = write_verdicts(study.name, verdicts, args.out)
    if args.readme:
        update_readme(args.readme, study.name, made, results)
    print(counted(made))


@enter(
    STUDY,
    METRICS,
    FIGURES,
    TABLES,
    VERDICTS,
    needed("--generated", options.new_folder, "folder for numbers and copies"),
    needed("--out", options.new_folder, "folder for paper.{pdf,tex}"),
)
def paper(args: argparse.Namespace) -> None:
    """The manuscript with all its generated parts as PDF and LaTeX.

    `python -m pipeline paper --study --metrics --figures --tables --generated --out`
    """
    from pipeline.claims.write import read_verdicts
    from pipeline.metrics.results import Results
    from pipeline.paper.export import write_paper
    from pipeline.paper.numbers import collect

    study = options.loaded(args.study)
    verdicts = read_verdicts(args.verdicts, study.name) if args.verdicts else []
    numbers = collect(study, Results.read(args.metrics, study.name), verdicts)
    write_paper(numbers, args.figures, args.tables, args.generated, args.out)
    note_made(args.out.glob("paper.*"), args.metrics)


@enter(
    STUDY,
    METRICS,
    VERDICTS,
    FIGURES,
    RUNS,
    needed("--out", options.new_file, "report.html to write"),
)
def page(args: argparse.Namespace) -> None:
    """One self-contained HTML page: verdicts, figures, tables and every run.

    `python -m pipeline page --study --metrics --figures --runs --out`
    """
    from pipeline.claims.write import read_verdicts
    from pipeline.metrics.results import Results
    from pipeline.page.page import render

    study = options.loaded(args.study)
    verdicts = read_verdicts(args.verdicts, study.name) if args.verdicts else []
    beside = quote(Path(os.path.relpath(args.runs, args.out.parent)).as_posix())
    results = Results.read(args.metrics, study.name)
    write_text(args.out, render(study, results, verdicts, args.figures, args.runs, beside))
    note_made([args.out], args.metrics)


@enter(
    STUDY,
    needed("--generated", options.new_folder, "folder for numbers and copies"),
    needed("--out", options.new_folder, "folder of the results"),
)
def points(args: argparse.Namespace) -> None:
    """Figure, tables, paper and page of a study of points that were measured elsewhere.

    `python -m pipeline points --study planner --generated DIR --out results/planner`
    """
    from pipeline.page.page import render_points
    from pipeline.paper.points import write
    from pipeline.study.load import load_points

    study = load_points(args.study)
    if study is None:
        raise StudyError(f"{args.study} has no points but cells; `make paper` runs it")
    numbers = write(study, args.generated, args.out)
    write_text(args.out / "report.html", render_points(numbers, args.out / "figures"))


@enter(
    needed("--archive", options.path, "zip file of `archive`"),
    needed("--into", options.new_folder, "folder of the study's folder"),
)
def unpack(args: argparse.Namespace) -> None:
    """Check an archive and lay its records where results are rebuilt from them.

    `python -m pipeline unpack --archive FILE --into results/from_archive` prints the new folder.
    """
    from pipeline.archive.unpack import unpack

    print(unpack(args.archive, args.into))
