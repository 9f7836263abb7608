"""How far may emulated nodes be trusted? Four checks, each a ratio with its interval.

    python -m bench.emulation --out bench/results/emulation.json [--quick]

a  dilated on one core against undilated on two: step time of every strategy at two link rates
b  bus bandwidth of an all-reduce over the rate that the links are set to
c  8 dilated nodes on 2 cores against 8 undilated ones on 16, where the machine has 16
d  a link twice as slow lengthens the step by what a ring all-reduce costs

Runs of a pair alternate, so that drift of the machine hits both alike. A run that leaves cores free
has the same run beside it there: two busy cores slow one another, and that is not what is asked.
The model is larger than that of the default study, so that a step takes some tenths of a second and
what another program on the machine takes now and then weighs less.

On a virtual machine the host may give the cores to others meanwhile. A run, or an all-reduce, while
it took more than MOST_STOLEN of them is made again, whatever it measured, up to ATTEMPTS times.
Each result says how many of its figures were taken all the same, and how many were dropped.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil

from pipeline.emulation import links, probes
from pipeline.emulation.available import why_not
from pipeline.emulation.awake import awake
from pipeline.emulation.dilation import dilate, places
from pipeline.emulation.nodes import Nodes, enter_private_network
from pipeline.emulation.shares import make_shares
from pipeline.expansion import expand, tokens_spec
from pipeline.memory import num_parameters
from pipeline.metrics.statistics import Interval, repeats_interval
from pipeline.spec import LinkSpec, RunSpec
from pipeline.study import load_study
from pipeline.training import preloaded
from pipeline.training.machine import hardware, provenance

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[1]
CELLS = ("single", "sps", "dps", "horovod", "dps-amp", "horovod-amp")
RATES = (200.0, 1000.0)
MODEL = {"num_layers": 2, "width": 192, "num_heads": 6}
WORK = {"global_batch": 16, "steps": 24, "untimed_steps": 2}
MOST_STOLEN, ATTEMPTS, PAUSE_SECONDS = 0.05, 4, 3.0
"""Of all cores' time; how often a disturbed figure is made at most, and how long between."""

BUCKETS, BUCKET_SECONDS = 16, 0.06
"""Under way at once, as those of DDP are: a ring alone leaves its link idle at both ends, for one
part in 2 (n - 1) + 1. Seconds are of the link's rate: 7.5 MB at 1 Gbit/s."""

PORT = 29501
WIRE = 1448 / 1514
"""Bytes of a gradient in a full Ethernet frame, of those that the link counts."""


def main() -> int:
    """Run the checks and write them; 1 where nodes cannot be emulated here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="one strategy, two repeats")
    args = parser.parse_args()
    if (reason := why_not()) is not None:
        print(f"error: no emulated nodes here: {reason}", file=sys.stderr)
        return 1
    repeats = 2 if args.quick else args.repeats
    cells = ("dps",) if args.quick else CELLS
    with tempfile.TemporaryDirectory(prefix="samestep-") as folder:
        bench = Bench(Path(folder))
        result = {
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "hardware": hardware(),
            "git_commit": provenance()["git_commit"],
            "repeats": repeats,
            "num_parameters": bench.num_parameters,
            "dilated_over_undilated": [
                bench.dilated(cell, rate, repeats) for rate in RATES for cell in cells
            ],
            "bandwidth": [bandwidth(n, r, repeats) for r in (100.0, 1000.0) for n in (2, 4, 8)],
            "eight_nodes": bench.eight(repeats),
            "twice_as_slow": [bench.slower(nodes, repeats) for nodes in (2, 4)],
        }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"-> {args.out}")
    return 0


class Machine:
    """What the host takes of this machine while something is measured."""

    def __init__(self) -> None:
        self.disturbed, self.dropped = 0, 0

    def undisturbed(self, measure: Callable[[], T]) -> T:
        """What `measure` gives while the host takes little, or the last one of some attempts."""
        for attempt in range(ATTEMPTS):
            start, before = time.monotonic(), psutil.cpu_times().steal
            found = measure()
            passed = (time.monotonic() - start) * (os.cpu_count() or 1)
            if (psutil.cpu_times().steal - before) / passed <= MOST_STOLEN:
                return found
            if attempt < ATTEMPTS - 1:
                self.dropped += 1
                time.sleep(PAUSE_SECONDS)
        self.disturbed += 1
        return found

    def told(self) -> dict[str, int]:
        """How many figures were disturbed since the last call, and how many dropped for it."""
        said = {"disturbed": self.disturbed, "dropped": self.dropped}
        self.disturbed, self.dropped = 0, 0
        return said


class Bench:
    """Runs of the default study's model, with tokens made once."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count, self.machine = folder, 0, Machine()
        self.servers: dict[tuple[int, ...], str] = {}
        self.study = load_study(ROOT / "workflow/config/smoke.yaml")
        spec = folder / "tokens.json"
        spec.write_text(json.dumps(tokens_spec(self.study)), encoding="utf-8")
        self.num_parameters = num_parameters(self._spec("dps", 2, RATES[0]).model)
        self._pipeline("tokens", f"--spec={spec}", f"--out={folder}/tokens", "--num-proc=2")

    def dilated(self, cell: str, rate: float, repeats: int) -> dict[str, Any]:
        """Check a: two nodes (one for `single`), on one core over on two."""
        nodes = 1 if cell == "single" else 2
        spec = self._spec(cell, nodes, rate)
        shown = self._ratio(repeats, (spec, 1), (spec, 2))
        return _say("a", {"cell": cell, "rate_mbits": rate, **_interval(shown, self.machine)})

    def eight(self, repeats: int) -> dict[str, Any]:
        """Check c."""
        cores = len(os.sched_getaffinity(0))
        if cores < 16:
            return {"not_run": f"needs 16 cores, this machine has {cores}"}
        spec = self._spec("dps", 8, 1000.0)
        shown = self._ratio(repeats, (spec, 2), (spec, 16))
        return _say("c", _interval(shown, self.machine))

    def slower(self, nodes: int, repeats: int) -> dict[str, Any]:
        """Check d: the longer step over the time that the ring's bytes take more."""
        fast, slow = (self._spec("dps", nodes, rate) for rate in (200.0, 100.0))
        quick, long = self._pairs(repeats, (fast, 2), (slow, 2))
        wire_bits = 2 * (nodes - 1) / nodes * 4 * self.num_parameters * 8 / WIRE
        foretold = wire_bits / 100e6 - wire_bits / 200e6
        shown = _interval_of([(b - a) / foretold for a, b in zip(quick, long, strict=True)])
        about = {"nodes": nodes, "foretold_seconds": foretold}
        return _say("d", {**about, **_interval(shown, self.machine)})

    def _ratio(self, repeats: int, *pair: tuple[RunSpec, int]) -> Interval:
        """Median over the pairs of the first's step time over the second's, run side by side."""
        first, second = self._pairs(repeats, *pair)
        return _interval_of([a / b for a, b in zip(first, second, strict=True)])

    def _pairs(self, repeats: int, *pair: tuple[RunSpec, int]) -> list[list[float]]:
        """Median step time of each repeat of each of a pair, run in turn."""
        found: list[list[float]] = [[] for _ in pair]
        for repeat in range(repeats):
            for which in (0, 1) if repeat % 2 == 0 else (1, 0):
                seconds = self.machine.undisturbed(partial(self._train, *pair[which]))
                found[which].append(statistics.median(seconds))
        return found

    def _train(self, spec: RunSpec, cores: int) -> list[float]:
        """Time of each timed step, that of its slowest rank, on so many cores of this machine.

        A run that other work on the machine kept from its rate is made again.
        """
        for _ in range(3):
            record, out = self._run(spec, cores)
            if record["status"] == "ok" and record["execution"]["network"] == "emulated":
                break
        else:
            raise SystemExit(f"{spec.run_id}: {record['status']}: {record['reason']}")
        slowest: dict[int, float] = {}
        for line in (out / "steps.jsonl").read_text(encoding="utf-8").splitlines():
            step = json.loads(line)
            if step["timed"]:
                slowest[step["step"]] = max(slowest.get(step["step"], 0.0), step["seconds"])
        return list(slowest.values())

    def _run(self, spec: RunSpec, cores: int) -> tuple[dict[str, Any], Path]:
        """A run on the first cores; where it leaves some free, the same runs there, unmeasured."""
        own = sorted(os.sched_getaffinity(0))
        others = [own[i : i + cores] for i in range(cores, len(own) - cores + 1, cores)]
        longer = replace(spec, workload=replace(spec.workload, steps=10 * spec.workload.steps))
        fillers = [self._start(longer, place)[0] for place in others]
        try:
            process, out = self._start(spec, own[:cores])
            if process.wait() != 0:
                raise SystemExit(f"{spec.run_id} failed; see above")
        finally:
            for filler in fillers:
                filler.terminate()
                filler.wait()
        return json.loads((out / "run.json").read_text(encoding="utf-8")), out

    def _start(self, spec: RunSpec, cores: Sequence[int]) -> tuple[subprocess.Popen[bytes], Path]:
        self.count += 1
        out = self.folder / f"run{self.count}"
        out.mkdir()
        (out / "spec.json").write_text(spec.to_json(), encoding="utf-8")
        arguments = [f"--spec={out}/spec.json", f"--tokens={self.folder}/tokens", f"--out={out}"]
        own = tuple(cores)
        # A lock there lets one timed run at a time on a machine; these share it on purpose.
        (temporary := self.folder / f"cores{cores[0]}").mkdir(exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline", "train", *arguments],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(temporary), preloaded.VARIABLE: self._server(own)},
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
            stdout=subprocess.DEVNULL,
        )
        return process, out

    def _server(self, cores: tuple[int, ...]) -> str:
        """What has torch loaded and forks the runs of these cores, as in a study; its socket."""
        if cores not in self.servers:
            before = os.sched_getaffinity(0)
            os.sched_setaffinity(0, cores)
            preloaded.start(self._spec("dps", 2, RATES[0]))
            os.sched_setaffinity(0, before)
            self.servers[cores] = os.environ.pop(preloaded.VARIABLE)
        return self.servers[cores]

    def _spec(self, cell: str, nodes: int, rate: float) -> RunSpec:
        names = (cell, f"{cell}-1gbit")
        found = next(run for run in expand(self.study) if run.cell in names)
        return replace(
            found,
            world=replace(found.world, nodes=nodes, link=LinkSpec("bench", rate)),
            model=replace(found.model, **MODEL),
            workload=replace(found.workload, **WORK),
        )

    def _pipeline(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "pipeline", *arguments]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def bandwidth(nodes: int, rate: float, repeats: int) -> dict[str, Any]:
    """Check b: 2 (n - 1) / n x bytes / seconds of torch's all-reduce over Gloo, over the rate."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        machine = Machine()
        reached = _all_reduce(nodes, rate, repeats, machine)
        os.write(write, json.dumps([reached, machine.told()]).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        reached, told = json.load(stream)
    os.waitpid(child, 0)
    shown = _interval_of([bits / (rate * 1e6) for bits in reached])
    return _say("b", {"nodes": nodes, "rate_mbits": rate, **_interval(shown), **told})


def _all_reduce(nodes: int, rate: float, repeats: int, machine: Machine) -> list[float]:
    import torch
    import torch.distributed as dist

    cores = sorted(os.sched_getaffinity(0))
    dilation = dilate(nodes, 1, len(cores))
    enter_private_network()
    world = Nodes(nodes, 1, LinkSpec("bench", rate), dilation.factor)
    shares = make_shares(dilation.share, places(nodes, 1, cores))

    @contextmanager
    def node(place: int) -> Iterator[None]:
        world.enter(0, place)
        os.environ.update(
            RANK=str(place), WORLD_SIZE=str(nodes), MASTER_ADDR=links.address(0, 0),
            MASTER_PORT=str(PORT), GLOO_SOCKET_IFNAME=links.INTERFACE, OMP_NUM_THREADS="1",
        )  # fmt: skip
        with shares.of(place):
            yield

    def probe(wait_for_all: Any) -> float:
        dist.init_process_group("gloo")
        buckets = [torch.zeros(round(BUCKET_SECONDS * rate * 1e6 / 32)) for _ in range(BUCKETS)]
        dist.all_reduce(buckets[0])
        wait_for_all()
        start = time.perf_counter()
        for work in [dist.all_reduce(bucket, async_op=True) for bucket in buckets]:
            work.wait()
        seconds = (time.perf_counter() - start) / dilation.factor
        bits = 2 * (nodes - 1) / nodes * 32 * sum(bucket.numel() for bucket in buckets)
        dist.barrier()
        time.sleep(0.2)
        return bits / seconds

    # The slowest rank's; all of them wait for one another.
    with closing(shares), awake(cores, shares.idle):
        once = partial(probes.measure, [probe] * nodes, node)
        return [min(machine.undisturbed(once)) for _ in range(repeats)]


def _interval_of(values: Sequence[float]) -> Interval:
    """The median of one figure a repeat, with its rank interval."""
    import numpy as np

    return repeats_interval([np.asarray([value]) for value in values])


def _interval(shown: Interval, machine: Machine | None = None) -> dict[str, Any]:
    found = {key: getattr(shown, key) for key in ("value", "low", "high", "n", "how")}
    return found | (machine.told() if machine else {})


def _say(check: str, found: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps({"check": check, **found}), file=sys.stderr)
    return found


if __name__ == "__main__":
    sys.exit(main())
