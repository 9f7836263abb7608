"""Cost of a run besides its steps: from the start of its stage to its record, less the steps.

    python -m bench.overhead --out bench/results/overhead.json

A run of one tiny layer and three steps is made again and again, in every setting in turn: on the
loopback, and on 1 to 8 emulated nodes, as a workflow makes it (`forked`: stage, launchers and ranks
are forks of loaded processes) and by itself (`alone`). Seconds of the wall clock depend on what
else the machine does; CPU seconds, of all processes of the run, and counts do so less. The parts
are those of the forked runs, a part within another one is counted in both.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.files import write_text
from pipeline.launch import fork_server, preloaded
from pipeline.machine import inherited
from pipeline.study.expansion import expand, tokens_spec
from pipeline.study.link import LinkSpec
from pipeline.study.load import load_study
from pipeline.study.spec import ModelSpec, RunSpec

ROOT = Path(__file__).resolve().parents[1]
STUDY = ROOT / "workflow/config/smoke/study.yaml"
MODEL = ModelSpec("gpt2", num_layers=1, width=16, num_heads=2, context=16, vocab_size=1024)
STEPS = 3
MARKS = "SAMESTEP_BENCH_MARKS"
"""Environment variable: the file to which the parts of a run are written."""

PARTS = {
    "network tried": ("pipeline.launch.torchrun", "why_not"),
    "tokens checked": ("pipeline.launch.run", "check_tokens"),
    "launchers followed": ("pipeline.launch.run", "follow"),
    "nodes made": ("pipeline.launch.emulated.build", "Nodes"),
    "nodes measured": ("pipeline.launch.emulated.build", "measure"),
    "ranks followed": ("pipeline.launch.emulated.build", "follow"),
    "rank 0": ("pipeline.training.worker", "train"),
    "rank 0 at its end": ("pipeline.training.worker", "_summary"),
    "rank 0's peak": ("pipeline.training.peak", "measured_flops_per_second"),
    "record made": ("pipeline.launch.run", "make_record"),
    "record written": ("pipeline.launch.run", "write_record"),
}
"""Part of a run -> the module and the name that does it."""

SERVERS: dict[str, tuple[Callable[[], fork_server.Work], str, tuple[str, ...]]] = {
    "stage": (preloaded.load_stages, preloaded.STAGES, ()),
    "ranks": (preloaded.load_ranks, preloaded.variable(1), inherited.THREADS),
}
"""Process that forks for a workflow: its modules, the variable that names it, its settings."""


def main() -> int:
    """Measure, print and write; `--serve` is for this bench's own processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="JSON file of the results")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="two repeats of two settings")
    parser.add_argument("--serve", nargs=2, metavar=("SERVER", "NAME"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(*args.serve)
    if args.out is None:
        parser.error("--out is missing")
    from pipeline.machine.facts import hardware

    places = [("loopback", 1), ("loopback", 2), *(("emulated", n) for n in (1, 2, 4, 8))]
    settings = [(place, forked) for place in places for forked in (True, False)]
    if args.quick:
        settings = [(("loopback", 1), True), (("loopback", 1), False)]
    repeats = 2 if args.quick else args.repeats
    with tempfile.TemporaryDirectory(prefix="samestep-overhead-") as folder:
        measured = measure(Path(folder), settings, repeats)
    about = {"cpu_model": hardware()["cpu_model"], "num_cores": os.cpu_count(), "steps": STEPS}
    result = {**about, "repeats": repeats, "settings": [summary(runs) for runs in measured]}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(args.out, json.dumps(result, indent=1) + "\n")
    for setting in result["settings"]:
        print(json.dumps({k: v for k, v in setting.items() if k != "parts"}))
    return 0


def measure(folder: Path, settings: list[Any], repeats: int) -> list[list[dict[str, Any]]]:
    """Every setting once in each repeat, after one run of each that is not counted."""
    study = load_study(STUDY)
    write_text(folder / "tokens.json", json.dumps(tokens_spec(study)))
    stage("tokens", f"--spec={folder}/tokens.json", f"--out={folder}/tokens", "--num-proc=2")
    results: list[list[dict[str, Any]]] = [[] for _ in settings]
    base = expand(study)[0]
    with served():
        for repeat in range(repeats + 1):
            for ((network, nodes), forked), runs in zip(settings, results, strict=True):
                taken = run(folder, spec_of(base, network, nodes), forked=forked)
                if repeat:
                    runs.append(taken)
    return results


def spec_of(base: RunSpec, network: str, nodes: int) -> RunSpec:
    """A run of DDP that does next to nothing, at the speed and dilation of its own nodes."""
    link = LinkSpec("bench", 1000) if network == "emulated" else None
    cores, threads = (1, None) if link else (None, 1)
    world = replace(
        base.world,
        nodes=nodes,
        network=network,
        link=link,
        cores_per_node=cores,
        threads_per_rank=threads,
        yardstick=None,
        dilated_for=None,
    )
    work = replace(base.workload, steps=STEPS, untimed_steps=1, global_batch=8)
    strategy = "ddp" if nodes > 1 else "single"
    return replace(base, strategy=strategy, world=world, workload=work, model=MODEL)


def run(folder: Path, spec: RunSpec, *, forked: bool) -> dict[str, Any]:
    """Seconds of one run, by the wall clock, besides its steps, and of its parts."""
    out, marks = folder / "run", folder / "marks"
    subprocess.run(["rm", "-rf", str(out), str(marks)], check=True)
    out.mkdir()
    write_text(out / "spec.json", spec.to_json())
    hidden = {} if forked else {variable: "" for _, variable, _ in SERVERS.values()}
    begun = time.perf_counter()
    words = [f"--spec={out}/spec.json", f"--tokens={folder}/tokens", f"--out={out}"]
    stage("train", *words, **hidden, **{MARKS: str(marks)})
    wall = time.perf_counter() - begun
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    if record["status"] != "ok":
        raise SystemExit(f"{record['run_id']}: {record['status']}: {record['reason']}")
    lines = map(json.loads, (out / "steps.jsonl").read_text(encoding="utf-8").splitlines())
    dilation = record["execution"].get("emulation", {}).get("dilation", 1)
    steps = dilation * sum(line["seconds"] for line in lines if line["rank"] == 0)
    return {
        "setting": f"{spec.world.network} {spec.world.nodes} {'forked' if forked else 'alone'}",
        "network": record["execution"]["network"],
        "overhead_seconds": wall - steps,
        "step_seconds": steps,
        "parts": parts_of(marks),
    }


def parts_of(marks: Path) -> dict[str, dict[str, float]]:
    """Part -> wall and CPU seconds, where it was done."""
    if not marks.is_file():
        return {}
    totals: dict[str, dict[str, float]] = {}
    for line in marks.read_text(encoding="utf-8").splitlines():
        name, *numbers = line.split("\t")
        so_far = totals.setdefault(name, {"seconds": 0.0, "cpu_seconds": 0.0})
        for key, number in zip(so_far, map(float, numbers), strict=True):
            so_far[key] += number
    return totals


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and quartiles of the overhead, medians of the parts."""
    overhead = [one["overhead_seconds"] for one in runs]
    quartiles = statistics.quantiles(overhead, n=4, method="inclusive")
    names = list(dict.fromkeys(name for one in runs for name in one["parts"]))
    none = {"seconds": 0.0, "cpu_seconds": 0.0}
    return {
        "setting": runs[0]["setting"],
        "network": runs[0]["network"],
        "overhead_seconds": statistics.median(overhead),
        "quartiles": [quartiles[0], quartiles[2]],
        "step_seconds": statistics.median(one["step_seconds"] for one in runs),
        "parts": {
            name: {
                key: statistics.median(one["parts"].get(name, none)[key] for one in runs)
                for key in none
            }
            for name in names
        },
    }


def stage(*words: str, **environment: str) -> None:
    """`python -m pipeline WORDS`; what it says is shown only where it fails."""
    command = [sys.executable, "-m", "pipeline", *words]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words[:1])} failed: {done.stderr[-2000:]}")


@contextmanager
def served() -> Iterator[None]:
    """Both processes that fork what a workflow asks of them, with their parts timed."""
    running = []
    for server, (_, variable, alike) in SERVERS.items():
        name = f"samestep-bench-{os.getpid()}-{server}"
        environment = os.environ | dict.fromkeys(alike, "1")
        command = [sys.executable, "-m", "bench.overhead", "--serve", server, name]
        running.append(subprocess.Popen(command, cwd=ROOT, env=environment))
        os.environ[variable] = name
    time.sleep(1)  # until both listen; who asks then waits until they have loaded
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def serve(server: str, name: str) -> None:
    """Serve as `preloaded` does, with the parts of a run timed; never returns."""
    loaded, _, alike = SERVERS[server]

    def load() -> fork_server.Work:
        work = loaded()
        for part, (owner, attribute) in PARTS.items():
            if owner in sys.modules or server == "ranks":
                time_part(part, importlib.import_module(owner), attribute)
        return work

    fork_server.serve(name, load, alike)


def time_part(part: str, owner: Any, attribute: str) -> None:
    """Replace a function by one that also writes how long it took; of ranks, rank 0 alone."""
    original: Callable[..., Any] = getattr(owner, attribute)

    @functools.wraps(original)
    def timed(*args: Any, **options: Any) -> Any:
        wall, cpu = time.perf_counter(), _cpu_seconds()
        try:
            return original(*args, **options)
        finally:
            if MARKS in os.environ and os.environ.get("RANK", "0") == "0":
                spent = time.perf_counter() - wall, _cpu_seconds() - cpu
                with Path(os.environ[MARKS]).open("a", encoding="utf-8") as marks:
                    marks.write("\t".join([part, *(f"{number:.6f}" for number in spent)]) + "\n")

    setattr(owner, attribute, timed)


def _cpu_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    sys.exit(main())
