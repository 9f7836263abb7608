"""Runs of the default study's cells on some of this machine's cores, by turns."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.emulated.cpu_seconds import Tally
from bench.emulated.undisturbed import Machine
from pipeline.emulation import dilation
from pipeline.expansion import expand, tokens_spec
from pipeline.memory import num_parameters
from pipeline.metrics.runs import load_run
from pipeline.records import RunRecord, read_record
from pipeline.spec import LinkSpec, RunSpec
from pipeline.study import load_study
from pipeline.training import preloaded
from pipeline.training.emulated_ranks import ENDLESS_STEPS
from pipeline.training.processes import die_with_parent

ROOT = Path(__file__).resolve().parents[2]
STUDY = ROOT / "workflow/config/smoke.yaml"


@dataclass(frozen=True)
class Variant:
    """A run on so many cores of this machine, in time dilated by `factor`."""

    spec: RunSpec
    factor: float
    cores: int


@dataclass(frozen=True)
class Taken:
    """Of one run: median of its timed steps, each that of its slowest rank, in dilated time.

    `cpu_seconds` is the median CPU time of a rank's timed step, in the machine's own seconds.
    """

    seconds: float
    cpu_seconds: float


class Runs:
    """Runs of the default study, with tokens made once."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count, self.machine, self.tally = folder, 0, Machine(), Tally()
        self.servers: dict[tuple[int, ...], str] = {}
        self.study = load_study(STUDY)
        spec = folder / "tokens.json"
        spec.write_text(json.dumps(tokens_spec(self.study)), encoding="utf-8")
        self.any = self.spec("dps", 2, 1000.0)
        self.num_parameters = num_parameters(self.any.model)
        self._pipeline("tokens", f"--spec={spec}", f"--out={folder}/tokens", "--num-proc=2")

    def in_turn(self, repeats: int, variants: Sequence[Variant]) -> list[list[Taken]]:
        """What each variant took in each repeat; every repeat has all, in an order of its own."""
        room = max(variant.cores for variant in variants)
        found: list[list[Taken]] = [[] for _ in variants]
        for repeat in range(repeats):
            for place in order(repeat, len(variants)):
                run = partial(self.taken, variants[place], room)
                found[place].append(self.machine.undisturbed(run))
        return found

    def taken(self, variant: Variant, room: int) -> Taken:
        """Run it on the first of `room` cores; its steps are counted in `tally`.

        A run that other work on the machine kept from its rate is made again.
        """
        for _ in range(3):
            record = self._run(variant, room)
            if record.status == "ok" and "emulation" in record.run["execution"]:
                break
        else:
            run = record.run
            raise SystemExit(f"{run['run_id']}: {record.status}: {run['reason']}")
        if (factor := record.run["execution"]["emulation"]["dilation"]) != variant.factor:
            raise SystemExit(f"{record.spec.run_id}: dilated by {factor:g}, not {variant.factor:g}")
        self.tally.add(record)
        seconds = statistics.median(load_run(record, {}).timed_seconds)
        cpu = [step.cpu_seconds for step in record.steps if step.timed and step.cpu_seconds]
        return Taken(float(seconds), statistics.median(cpu))

    def _run(self, variant: Variant, room: int) -> RunRecord:
        """A run on the first cores; where it leaves some free, the same runs there, unmeasured."""
        spec, cores = variant.spec, variant.cores
        own = sorted(os.sched_getaffinity(0))[:room]
        others = [own[i : i + cores] for i in range(cores, len(own) - cores + 1, cores)]
        endless = replace(spec, workload=replace(spec.workload, steps=ENDLESS_STEPS))
        fillers = [self._start(replace(variant, spec=endless), place)[0] for place in others]
        try:
            process, out = self._start(variant, own[:cores])
            if process.wait() != 0:
                raise SystemExit(f"{spec.run_id} failed; see above")
        finally:
            for filler in fillers:
                filler.terminate()
                filler.wait()
        return read_record(out)

    def _start(
        self, variant: Variant, cores: Sequence[int]
    ) -> tuple[subprocess.Popen[bytes], Path]:
        self.count += 1
        out = self.folder / f"run{self.count}"
        out.mkdir()
        (out / "spec.json").write_text(variant.spec.to_json(), encoding="utf-8")
        arguments = [f"--spec={out}/spec.json", f"--tokens={self.folder}/tokens", f"--out={out}"]
        # A lock there lets one timed run at a time on a machine; these share it on purpose.
        (temporary := self.folder / f"cores{cores[0]}").mkdir(exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline", "train", *arguments],
            cwd=ROOT,
            env=os.environ
            | {
                "TMPDIR": str(temporary),
                preloaded.VARIABLE: self._server(tuple(cores)),
                dilation.LEAST: f"{variant.factor:g}",
            },
            preexec_fn=partial(_settle_in, cores),
            stdout=subprocess.DEVNULL,
        )
        return process, out

    def _server(self, cores: tuple[int, ...]) -> str:
        """What has torch loaded and forks the runs of these cores, as in a study; its socket."""
        if cores not in self.servers:
            before = os.sched_getaffinity(0)
            os.sched_setaffinity(0, cores)
            preloaded.start(self.any)
            os.sched_setaffinity(0, before)
            self.servers[cores] = os.environ.pop(preloaded.VARIABLE)
        return self.servers[cores]

    def spec(self, cell: str, nodes: int, rate: float, *, profile: bool = False) -> RunSpec:
        """A run of the study's `cell` on so many nodes, with links of `rate` Mbit/s."""
        found = next(run for run in expand(self.study) if run.cell == cell)
        world = replace(found.world, nodes=nodes, link=LinkSpec("bench", rate))
        return replace(found, world=world, profile=profile)

    def _pipeline(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "pipeline", *arguments]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def _settle_in(cores: Sequence[int]) -> None:
    """In the child: an unmeasured run has no last step, and must not outlive the bench."""
    die_with_parent()
    os.sched_setaffinity(0, cores)


def order(repeat: int, count: int) -> list[int]:
    """The order of `count` variants in a repeat: each is as often early as late, in both ways."""
    turned = [(repeat // 2 + place) % count for place in range(count)]
    return turned[::-1] if repeat % 2 else turned
