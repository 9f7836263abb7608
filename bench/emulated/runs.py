"""Runs of a study's cells on emulated nodes, in alternation, and in time dilated by any factor."""

from __future__ import annotations

import atexit
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import psutil

from bench.scaffold import STUDY, make_tokens, stage
from pipeline.emulation import dilation
from pipeline.files import write_text
from pipeline.launch import preloaded
from pipeline.metrics.profile import phase_steps, slowest
from pipeline.metrics.runs import load_run
from pipeline.records import RunRecord, read_record
from pipeline.resolved import first_runs
from pipeline.study.expansion import expand
from pipeline.study.link import LinkSpec
from pipeline.study.load import load_study
from pipeline.study.profiling import COMMUNICATION
from pipeline.study.spec import RunSpec, WorldSpec
from pipeline.study.study import Study

MOST_STOLEN, ATTEMPTS, PAUSE_SECONDS = 0.05, 4, 3.0
"""Share of all cores' time that the host may take; attempts at a figure, and the pause between."""

PROGRAM = "import numpy; a = numpy.ones(1 << 22)\nwhile True: a.sort()"
"""A program that computes and goes through 32 MiB of memory, on one core, without end."""

T = TypeVar("T")


class Machine:
    """Time that the host of a virtual machine takes from it during a measurement.

    The host may give the cores to others. What was measured while it took more than MOST_STOLEN of
    them is made again, whatever it was, up to ATTEMPTS times.
    """

    def __init__(self) -> None:
        self.disturbed, self.dropped = 0, 0

    def undisturbed(self, measure: Callable[[], T]) -> T:
        """The result of `measure` while the host takes little, or the last one of some attempts."""
        for attempt in range(ATTEMPTS):
            start, before = time.monotonic(), psutil.cpu_times().steal
            result = measure()
            passed = (time.monotonic() - start) * (os.cpu_count() or 1)
            if (psutil.cpu_times().steal - before) / passed <= MOST_STOLEN:
                return result
            if attempt < ATTEMPTS - 1:
                self.dropped += 1
                time.sleep(PAUSE_SECONDS)
        self.disturbed += 1
        return result

    def counts(self) -> dict[str, int]:
        """Numbers of figures dropped since the last call because they were disturbed."""
        counts = {"disturbed": self.disturbed, "dropped": self.dropped}
        self.disturbed, self.dropped = 0, 0
        return counts


def least_factor(nodes: int) -> int:
    """The least factor that so many nodes need on this machine."""
    world = WorldSpec(nodes, 1, "cpu", "gloo", "emulated", cores_per_node=1)
    return int(dilation.dilate(world, len(os.sched_getaffinity(0))))


@dataclass(frozen=True)
class Variant:
    """A run on this machine, in time dilated by `factor`, `beside` a program that computes."""

    spec: RunSpec
    factor: float
    beside: bool = False


@dataclass(frozen=True)
class Taken:
    """Times of one run: `seconds` is the median of its timed steps, each that of its slowest rank.

    `cpu_seconds` is the median over its timed steps of the most CPU time that a rank spent in one,
    in the machine's own seconds. `exposed`: of a profiled run, the median share of a step in which
    its slowest rank communicates and computes nothing, NaN of others.
    """

    seconds: float
    cpu_seconds: float
    exposed: float = math.nan


def default_study(model: Mapping[str, int], nodes: int) -> Study:
    """The default study with these sizes of its model, on up to so many nodes."""
    content = load_study(STUDY).to_dict()
    content["cluster"]["nodes"] = sorted({1, nodes, *content["cluster"]["nodes"]})
    content["model"] |= model
    return Study.of(content)


class Runs:
    """Runs of a study, with tokens and yardstick made once.

    `preloaded.start_ranks` before it has them forked by a process with torch, as in a study.
    """

    def __init__(self, folder: Path, study: Study) -> None:
        self.folder, self.study, self.count, self.machine = folder, study, 0, Machine()
        write_text(folder / "study.json", json.dumps(study.to_dict()))
        make_tokens(study, folder)
        if study.cluster.yardstick:
            stage("yardstick", f"--study={folder}/study.json", f"--out={folder}/yardstick.json")

    def in_turn(self, repeats: int, variants: Sequence[Variant]) -> list[list[Taken]]:
        """Times of each variant in each repeat; every repeat has all, in an order of its own."""
        rounds: list[list[Taken]] = [[] for _ in variants]
        for repeat in range(repeats):
            for place in order(repeat, len(variants)):
                run = partial(self.taken, variants[place])
                rounds[place].append(self.machine.undisturbed(run))
        return rounds

    def record(self, variant: Variant, attempts: int) -> RunRecord | str:
        """Run it, again where other work on the machine kept it from its cores or its rate.

        The record, or what the last one says where none of the attempts went well.
        """
        for _ in range(attempts):
            with other_program() if variant.beside else nullcontext():
                record = self._run(variant)
            emulation = record.run["execution"].get("emulation")
            if record.status == "ok" and emulation:
                if (factor := emulation["dilation"]) != variant.factor:
                    asked = f"dilated by {factor:g}, not {variant.factor:g}"
                    raise SystemExit(f"{variant.spec.run_id}: {asked}")
                return record
        return f"{record.status}: {record.run['reason']}"

    def taken(self, variant: Variant) -> Taken:
        """Times of a run; SystemExit where it does not go well."""
        if isinstance(record := self.record(variant, 3), str):
            raise SystemExit(f"{variant.spec.run_id}: {record}")
        run, exposed = load_run(record, {}), math.nan
        if variant.spec.profile:
            steps = slowest(phase_steps(run))
            exposed = float((steps[COMMUNICATION] / steps["step"]).median())
        seconds = statistics.median(run.timed_seconds)
        most: dict[int, float] = {}
        for step in record.steps:
            if step.timed:
                most[step.step] = max(step.cpu_seconds or 0.0, most.get(step.step, 0.0))
        return Taken(float(seconds), statistics.median(most.values()), exposed)

    def _run(self, variant: Variant) -> RunRecord:
        self.count += 1
        out = self.folder / f"run{self.count}"
        out.mkdir()
        write_text(out / "spec.json", variant.spec.to_json())
        os.environ[dilation.LEAST] = f"{variant.factor:g}"
        arguments = [f"--spec={out}/spec.json", f"--tokens={self.folder}/tokens", f"--out={out}"]
        if variant.spec.world.yardstick:
            arguments.append(f"--yardstick={self.folder}/yardstick.json")
        stage("train", *arguments)
        return read_record(out)

    def spec(self, cell: str, nodes: int, rate: float) -> RunSpec:
        """A run of the study's `cell` on so many nodes, with links of `rate` Mbit/s."""
        run = next(run for run in expand(self.study) if run.cell == cell)
        link = LinkSpec("bench", rate)
        world = replace(run.world, nodes=nodes, dilated_for=None, link=link)
        return replace(run, world=world)


class Lanes(Runs):
    """Real time on cores of its own, and the same nodes sharing a few others, at the same moment.

    Two nodes in real time fit a laptop. Where a machine has cores for more of them, they are the
    truth for as many emulated nodes that share a few cores. Two processes have `Runs` of their own;
    one has the first variant, in real time.
    """

    def __init__(self, nodes: int, share: int, cores: list[int], study: Study) -> None:
        self.study, self.machine = study, Machine()
        self.lanes = [
            ProcessPoolExecutor(1, get_context("spawn"), _begin_lane, (own, study))
            for own in (cores[:nodes], cores[nodes : nodes + share])
        ]

    def in_turn(self, repeats: int, variants: Sequence[Variant]) -> list[list[Taken]]:
        """The first variant beside all others, which follow each other in an order of its own."""
        rounds: list[list[Taken]] = [[] for _ in variants]
        for repeat in range(repeats):
            lanes = [0], [1 + place for place in order(repeat, len(variants) - 1)]
            running = [
                lane.submit(_take, [variants[place] for place in places])
                for lane, places in zip(self.lanes, lanes, strict=True)
            ]
            for one, places in zip(running, lanes, strict=True):
                for place, taken in zip(places, one.result(), strict=True):
                    rounds[place].append(taken)
        return rounds

    def close(self) -> None:
        """End both processes."""
        for lane in self.lanes:
            lane.shutdown()


_LANE: list[Runs] = []


def _begin_lane(cores: list[int], study: Study) -> None:
    os.sched_setaffinity(0, cores)
    # The lock of timed runs lies there: what has cores of its own waits for nobody.
    os.environ["TMPDIR"] = folder = tempfile.mkdtemp(prefix="samestep-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    preloaded.start_ranks(first_runs(study))
    _LANE.append(Runs(Path(folder), study))


def _take(variants: Sequence[Variant]) -> list[Taken]:
    (runs,) = _LANE
    return [runs.machine.undisturbed(partial(runs.taken, one)) for one in variants]


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
