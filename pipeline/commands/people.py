"""Commands that people type, in the order of a study."""

from __future__ import annotations

import argparse
import json
import shlex
from functools import partial
from pathlib import Path

from pipeline import options
from pipeline.commands import (
    SITE,
    STUDY,
    Command,
    arguments_of,
    command,
    flag,
    needed,
    one_of,
    option,
)
from pipeline.errors import ArchiveError, ComparisonError, StudyError
from pipeline.files import replace_marked, sha256_of_file, write_text

COMMANDS: dict[str, Command] = {}
enter = partial(command, COMMANDS)


@enter(
    one_of(
        option("--study", options.study, f"for this study alone: {options.STUDY}"),
        flag("--site", "hold workflow/site.yaml against its cluster"),
    )
)
def doctor(args: argparse.Namespace) -> None:
    """Examine this machine: what can run on it, and how to get what is missing.

    `python -m pipeline doctor --study smoke`; without a study for all shipped ones, and with
    `--site` for what the site file of a cluster asks for. Exit status 0 whatever is missing.
    """
    from pipeline.doctor import show

    show.show(show.of_site().items() if args.site else show.of_machine(args.study))


@enter(
    flag("--models", "which models each takes, and why not others"),
    option("--readme", options.file, "Markdown file whose marked tables are renewed"),
)
def strategies(args: argparse.Namespace) -> None:
    """Every strategy: what it is, its knobs, what it needs, splits and sends.

    `python -m pipeline strategies` prints Markdown; with `--models` which models each one takes.
    """
    from pipeline.strategies import models_table, sent_table, table

    make = {"models": models_table} if args.models else {"strategies": table, "sent": sent_table}
    if args.readme:
        for name, one in make.items():
            replace_marked(args.readme, name, one())
    else:
        print("\n\n".join(one() for one in make.values()))


@enter(STUDY)
def check(args: argparse.Namespace) -> None:
    """Check a study file and the files of its corpus, and print where its results lie.

    `python -m pipeline check --study smoke`; `make paper` asks first. Snakemake reads a study file
    with a reader of its own, before any rule of ours: `check` says in one line what is wrong
    with the file.
    """
    from pipeline.accept import accept_to_run
    from pipeline.study.load import load_points, results_folder

    if load_points(args.study) is None:
        accept_to_run(options.loaded(args.study))
    print(results_folder(args.study, of_points=True))


@enter(arguments_of("pipeline.commands.plan"))
def plan(args: argparse.Namespace) -> None:
    """Predict the needs of a study: memory of every cell, runs, time and GPU hours.

    `python -m pipeline plan --study smoke --device-memory 16GiB`, or the layouts of a GPT of any
    size on a cluster with `--model`. Nothing is started and no torch is loaded.
    """
    from pipeline.commands import plan

    plan.run(args)


@enter(STUDY, needed("--out", options.new_file, "JSON file to write"))
def calibrate(args: argparse.Namespace) -> None:
    """Measure single operators and collectives of this machine, from which steps are predicted.

    `python -m pipeline calibrate --study smoke --out calibration.json` takes under a minute for two
    nodes. No step of a training is timed (docs/planner.md).
    """
    from pipeline.launch.calibrate import measured
    from pipeline.machine import inherited
    from pipeline.machine.limits import usable_cores
    from pipeline.schemas import validate

    study = options.loaded(args.study)
    inherited.begin(study.environment)
    made = measured(study, usable_cores())
    validate(made, "calibration", args.out)
    write_text(args.out, json.dumps(made, indent=1) + "\n")
    print(
        f"calibrate: {len(made['operators'])} operators, {len(made['collectives'])} times of "
        f"collectives, {1e6 * made['host_seconds']:.0f} us of the host for an operator, memory "
        f"{made['memory_bytes_per_second'] / 1e9:.1f} GB/s -> {args.out}"
    )


@enter(arguments_of("pipeline.commands.predict"))
def predict(args: argparse.Namespace) -> None:
    """Predict step time and memory of training configurations, on hardware that is not here.

    `python -m pipeline predict --points pipeline/reference/points/torchtitan.csv --out p.csv`, or
    the errors of the model on every published point with `--score` (docs/planner.md).
    """
    from pipeline.commands import predict

    predict.run(args)


@enter(
    one_of(
        option("--run", options.path, "folder of a profiled run, runs/<cell>/n<nodes>/p0"),
        option("--study", options.study, f"predict its cells: {options.STUDY}"),
        required=True,
    ),
    option("--calibration", options.file, "with --study: what `calibrate` has written"),
    needed("--out", options.new_folder, "folder; a file for each rank"),
)
def trace(args: argparse.Namespace) -> None:
    """Write Chakra execution traces of a profiled run, or of the predicted steps of a study.

    `python -m pipeline trace --run results/smoke/runs/dps/n4/p0 --out traces` writes a file for
    each rank, which simulators of networks replay; with `--study` and `--calibration` in a folder
    for each cell and number of nodes (docs/planner.md).
    """
    from pipeline.errors import PredictionError, RecordError
    from pipeline.planner import chakra, here
    from pipeline.records import RUN_FILE, read_record
    from pipeline.resolved import first_runs

    if args.run:
        options.check_mode(args, "--run", "run out")
        if not (args.run / RUN_FILE).is_file():
            raise RecordError(
                f"{args.run} holds no record; give the folder of a profiled run, as "
                "results/smoke/runs/dps/n2/p0"
            )
        record = read_record(args.run)
        layout, steps = chakra.of_record(record)
        count = chakra.write(args.out, layout, steps, record.spec.run_id, "measured")
        print(f"{args.out}: {len(steps)} ranks, {count} nodes")
        return
    if args.calibration is None:
        raise PredictionError("--study needs --calibration, which `calibrate` writes; give it")
    calibration = here.Calibration.read(args.calibration, study := options.loaded(args.study))
    for run in first_runs(study):
        place = f"{run.spec.cell}/n{run.spec.world.nodes}"
        try:
            layout, steps = chakra.of_prediction(run, here.predict(run, calibration))
            count = chakra.write(args.out / place, layout, steps, run.spec.run_id, "predicted")
            print(f"{args.out / place}: {len(steps)} ranks, {count} nodes")
        except (RecordError, StudyError) as reason:
            print(f"{place}: no trace, {reason}")


@enter(
    option("logs", options.path, "of one training each", nargs="+", metavar="LOG"),
    option("--set", str, "columns that a log does not print", metavar="NAME=VALUE,..."),
    needed("--out", options.new_file, "CSV to write, a row for each log"),
)
def logs(args: argparse.Namespace) -> None:
    """Read logs of Megatron-LM and torchtitan as points that were measured elsewhere.

    `python -m pipeline logs megatron.log --set hardware=A100,device_gib=80 --out points.csv` writes
    a CSV for `predict --points`: configuration, step time, memory, loss (docs/archive.md).
    """
    from pipeline.cost import logs, points

    given = logs.assigned(args.set or "")
    rows = [logs.read(path, given) for path in args.logs]
    points.write(rows, args.out)
    for row in rows:
        print(logs.shown(row))
    print(args.out)


@enter(arguments_of("pipeline.commands.placements"))
def placements(args: argparse.Namespace) -> None:
    """Placements of the tensors of an annotated cell on its mesh.

    `python -m pipeline placements --study layouts --cell annotated` prints a table of parameters
    and of every module's output, an axis per column, for one cell on the most nodes that it has. No
    rank is started: the ranks are imitated by one process. `--devices 8,2048` prints the seconds
    that it takes on so many devices, where one axis of the cell has size 0.
    """
    from pipeline.commands import placements

    placements.run(args)


@enter(STUDY, option("--image", options.path, "container image that the ranks run in"), SITE)
def commands(args: argparse.Namespace) -> None:
    """Print the commands that the runs of a study start.

    `python -m pipeline commands --study smoke`: for every cell and node count the commands of the
    first repeat as `train` starts them from the host; what a start decides (FIRST_NODE and PORT
    where the nodes meet, its TOKEN) is left open. Where Snakemake has entered the image for a run
    on one machine, the part up to the image falls away.
    """
    from pipeline.launch.slurm.request import command_lines
    from pipeline.machine.site import Site, load_site

    site = load_site(args.site) if args.site else Site()
    # All before the first is printed: an image may be missing.
    print("\n".join([*command_lines(options.loaded(args.study), site, args.image)]))


@enter(STUDY)
def allocate(args: argparse.Namespace) -> None:
    """Print the commands that send a study to SLURM, an allocation for each number of nodes.

    `python -m pipeline allocate --study cluster-check`; a pipe to `sh` sends them.
    All runs on so many nodes go one after another inside; what sbatch is asked for stands in
    workflow/site.yaml.
    """
    from pipeline.accept import accept_to_run
    from pipeline.launch.slurm.request import allocation, request
    from pipeline.machine.site import load_site
    from pipeline.resolved import runs_of
    from pipeline.study.expansion import planned_order

    study, site = options.loaded(args.study), load_site()
    accept_to_run(study)
    requests = [request(run, site) for run in runs_of(study, planned_order)]
    for nodes in sorted({one.nodes for one in requests}):
        words = allocation(site, nodes, [one for one in requests if one.nodes == nodes])
        script = ("workflow/profiles/allocation/job.sh", f"runs_on_{nodes}")
        print(shlex.join([*words, *script, "--configfile", str(args.study)]))


@enter(STUDY)
def watch(args: argparse.Namespace) -> None:
    """Show how far a study is while it runs: runs done, the last one's step time, time left.

    `python -m pipeline watch --study smoke` reads `results/<study>` and nothing else, so it also
    watches a study that a cluster makes. It ends when all runs have ended, or at Control-C; without
    a terminal it prints once.
    """
    from pipeline.study.load import results_folder
    from pipeline.watch import Watched, watch

    watch(Watched(options.loaded(args.study), results_folder(args.study)))


@enter(
    option("one", options.folder, "results of a study, or one of its runs", metavar="A"),
    option("other", options.folder, "what to hold against A", metavar="B"),
    option("--losses", options.tolerance,
           "losses and gradient norms must be equal bit for bit, or within this (default: bit)",
           default=0.0, metavar="bit|RELATIVE"),
    option("--times", str,
           "interval: no step-time ratio's interval may lie over 0.05 off 1 (default: ignore)",
           choices=("ignore", "interval")),
    option("--out", options.new_folder, "folder for compare.md"),
)  # fmt: skip
def compare(args: argparse.Namespace) -> int:
    """Hold two result sets against one another, or two runs of one model in two layouts.

    `python -m pipeline compare results/smoke other/results/smoke --out results/compared` for two
    folders results/<study>: losses, times, environment. Of two runs, `results/smoke/runs/dps/n2/p0`
    and another, from which step on they part, and in which blocks of the model. Exit status 0:
    equal within what was asked for; 1: they differ.
    """
    from pipeline.compare import layouts, sets
    from pipeline.records import RUN_FILE

    pair = (args.one, args.other)
    if args.one.resolve() == args.other.resolve():
        raise ComparisonError(f"A and B are both {args.one}; give two folders")
    is_run = [(folder / RUN_FILE).is_file() for folder in pair]
    if is_run[0] != is_run[1]:
        run, other = pair if is_run[0] else pair[::-1]
        raise ComparisonError(
            f"{run} is one run and {other} is not; give two runs, or the folders of two studies"
        )
    if all(is_run):
        of_sets = argparse.Namespace(out=args.out, times=args.times)
        options.check_mode(of_sets, "two runs", "losses")
        lines, is_equal = layouts.parting(pair, args.losses)
    else:
        lines, is_equal = sets.compare(pair, args.losses, args.times == "interval", args.out)
        lines += [f"table: {args.out / 'compare.md'}"] if args.out else []
    print("\n".join(lines))
    return 0 if is_equal else 1


@enter(
    option("--results", options.folder, "results"),
    option("--out", options.new_file, "page to write, and a CSV; results/index.html"),
    flag("--list", "print the studies on claims that run here"),
    option("--readme", options.file, "Markdown file whose table of studies is renewed"),
)
def index(args: argparse.Namespace) -> None:
    """Every shipped claim of every publication, with its verdict in the studies that ran.

    `python -m pipeline index` reads results/*/claims/verdicts.json and writes results/index.html.
    """
    from pipeline.page import index

    if args.list:
        options.check_mode(args, "--list", "list")
        print("\n".join(index.studies_here()))
        return
    if args.readme:
        options.check_mode(args, "--readme", "readme")
        replace_marked(args.readme, "studies", index.studies_table())
        return
    results = args.results or Path("results")
    out = args.out or results / "index.html"
    entries = index.write(results, out)
    counts = index.counts(entries)
    each = ", ".join(f"{number} {word}" for word, number in counts.items() if number)
    print(f"{out}: {len(entries)} claims on {sum(counts.values())} effects, {each}")


@enter(
    one_of(
        option("--study", options.study, options.STUDY),
        option("--results", options.folder, "folder results/<study>"),
        required=True,
    ),
    option("--out", options.new_file, "zip file to write; archives/<study>.zip"),
)
def archive(args: argparse.Namespace) -> None:
    """A finished study with all that belongs to it as one file, a Workflow Run RO-Crate.

    `python -m pipeline archive --study smoke` packs results/<study> into archives/<study>.zip.
    """
    from pipeline.archive.layout import STUDY_FILE
    from pipeline.archive.pack import contents, write_zip
    from pipeline.study.load import load_study, results_folder

    results = args.results or results_folder(args.study)
    if not (results / STUDY_FILE).is_file():
        raise ArchiveError(f"there is no {results / STUDY_FILE}; run the study with make paper")
    out = args.out or Path("archives", f"{load_study(results / STUDY_FILE).name}.zip")
    parts = contents(results)
    write_zip(parts, out)
    size = out.stat().st_size / 1e6
    print(f"{out}: {len(parts) + 1} files, {size:.1f} MB, sha256 {sha256_of_file(out)}")


@enter(needed("--results", options.folder, "results/from_archive/<study>"))
def verify(args: argparse.Namespace) -> int:
    """Compare results that were rebuilt from an archive with the bytes that it states.

    `python -m pipeline verify --results results/from_archive/smoke` exits with 1 and names what
    differs, and probably why, if not.
    """
    from pipeline.archive.unpack import verify

    return verify(args.results)
