"""Runs of the default study's cells in time dilated by several factors, in alternation."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.emulated.undisturbed import Machine
from pipeline.emulation import dilation
from pipeline.launch import preloaded
from pipeline.metrics.runs import load_run
from pipeline.models import num_parameters
from pipeline.records import RunRecord, read_record
from pipeline.resolved import resolve
from pipeline.study.expansion import expand, tokens_spec
from pipeline.study.link import LinkSpec
from pipeline.study.load import load_study
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study

ROOT = Path(__file__).resolve().parents[2]
STUDY = ROOT / "workflow/config/smoke/study.yaml"


@dataclass(frozen=True)
class Variant:
    """A run on this machine, in time dilated by `factor`, `beside` a program that computes."""

    spec: RunSpec
    factor: float
    beside: bool = False


PROGRAM = "import numpy; a = numpy.ones(1 << 22)\nwhile True: a.sort()"
"""A program that computes and goes through 32 MiB of memory, on one core, without end."""


@dataclass(frozen=True)
class Taken:
    """Times of one run: `seconds` is the median of its timed steps, each that of its slowest rank.

    `cpu_seconds` is the median over its timed steps of the most CPU time that a rank spent in one,
    in the machine's own seconds.
    """

    seconds: float
    cpu_seconds: float


class Runs:
    """Runs of the default study, with tokens made once; without its yardstick where that is off.

    `model` are sizes of its model that differ; `nodes` is the largest number of nodes.
    """

    def __init__(
        self,
        folder: Path,
        *,
        yardstick: bool = True,
        model: Mapping[str, int] | None = None,
        nodes: int = 2,
    ) -> None:
        self.folder, self.count, self.machine = folder, 0, Machine()
        self.study = self.study_of(model or {}, nodes)
        content = self.study.to_dict()
        if not yardstick:
            self.study = replace(self.study, cluster=replace(self.study.cluster, yardstick=None))
        study, spec = folder / "study.json", folder / "tokens.json"
        study.write_text(json.dumps(content), encoding="utf-8")
        spec.write_text(json.dumps(tokens_spec(self.study)), encoding="utf-8")
        self.any = self.spec("dps", 2, 1000.0)
        self.num_parameters = num_parameters(self.any.model)
        # It has torch loaded and forks the runs, as in a study.
        preloaded.start_ranks([resolve(self.any)])
        self._pipeline("tokens", f"--spec={spec}", f"--out={folder}/tokens", "--num-proc=2")
        if self.study.cluster.yardstick:
            self._pipeline("yardstick", f"--study={study}", f"--out={folder}/yardstick.json")

    @staticmethod
    def study_of(model: Mapping[str, int], nodes: int) -> Study:
        """The default study with these sizes of its model, on up to so many nodes."""
        content = load_study(STUDY).to_dict()
        content["cluster"]["nodes"] = sorted({1, nodes, *content["cluster"]["nodes"]})
        content["model"] |= model
        return Study.of(content)

    def in_turn(self, repeats: int, variants: Sequence[Variant]) -> list[list[Taken]]:
        """Times of each variant in each repeat; every repeat has all, in an order of its own."""
        rounds: list[list[Taken]] = [[] for _ in variants]
        for repeat in range(repeats):
            for place in order(repeat, len(variants)):
                run = partial(self.taken, variants[place])
                rounds[place].append(self.machine.undisturbed(run))
        return rounds

    def taken(self, variant: Variant) -> Taken:
        """Run it, again where other work on the machine kept it from its cores or its rate."""
        for _ in range(3):
            with other_program() if variant.beside else nullcontext():
                record = self._run(variant)
            if record.status == "ok" and "emulation" in record.run["execution"]:
                break
        else:
            run = record.run
            raise SystemExit(f"{run['run_id']}: {record.status}: {run['reason']}")
        if (factor := record.run["execution"]["emulation"]["dilation"]) != variant.factor:
            raise SystemExit(f"{record.spec.run_id}: dilated by {factor:g}, not {variant.factor:g}")
        seconds = statistics.median(load_run(record, {}).timed_seconds)
        most: dict[int, float] = {}
        for step in record.steps:
            if step.timed:
                most[step.step] = max(step.cpu_seconds or 0.0, most.get(step.step, 0.0))
        return Taken(float(seconds), statistics.median(most.values()))

    def _run(self, variant: Variant) -> RunRecord:
        self.count += 1
        out = self.folder / f"run{self.count}"
        out.mkdir()
        (out / "spec.json").write_text(variant.spec.to_json(), encoding="utf-8")
        os.environ[dilation.LEAST] = f"{variant.factor:g}"
        arguments = [f"--spec={out}/spec.json", f"--tokens={self.folder}/tokens", f"--out={out}"]
        if variant.spec.world.yardstick:
            arguments.append(f"--yardstick={self.folder}/yardstick.json")
        self._pipeline("train", *arguments)
        return read_record(out)

    def spec(self, cell: str, nodes: int, rate: float) -> RunSpec:
        """A run of the study's `cell` on so many nodes, with links of `rate` Mbit/s."""
        run = next(run for run in expand(self.study) if run.cell == cell)
        link = LinkSpec("bench", rate)
        world = replace(run.world, nodes=nodes, dilated_for=None, link=link)
        return replace(run, world=world)

    def _pipeline(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "pipeline", *arguments]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def other_program() -> Iterator[None]:
    """Another program at work on the machine."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM]) as program:
        try:
            yield
        finally:
            program.kill()


def order(repeat: int, count: int) -> list[int]:
    """The order of `count` variants in a repeat: each is as often early as late, in both ways."""
    turned = [(repeat // 2 + place) % count for place in range(count)]
    return turned[::-1] if repeat % 2 else turned
