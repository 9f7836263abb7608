"""Runs of the default study's cells on some of this machine's cores, in pairs."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.emulated.undisturbed import Machine
from pipeline.expansion import expand, tokens_spec
from pipeline.memory import num_parameters
from pipeline.metrics.runs import load_run
from pipeline.metrics.statistics import Floats
from pipeline.records import read_record
from pipeline.spec import LinkSpec, RunSpec
from pipeline.study import load_study
from pipeline.training import preloaded
from pipeline.training.emulated_ranks import ENDLESS_STEPS

ROOT = Path(__file__).resolve().parents[2]
MODEL = {"num_layers": 2, "width": 192, "num_heads": 6}
WORK = {"global_batch": 16, "steps": 24, "untimed_steps": 2}


class Runs:
    """Runs of the default study's model, with tokens made once."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count, self.machine = folder, 0, Machine()
        self.servers: dict[tuple[int, ...], str] = {}
        self.study = load_study(ROOT / "workflow/config/smoke.yaml")
        spec = folder / "tokens.json"
        spec.write_text(json.dumps(tokens_spec(self.study)), encoding="utf-8")
        self.any = self.spec("dps", 2, 200.0)
        self.num_parameters = num_parameters(self.any.model)
        self._pipeline("tokens", f"--spec={spec}", f"--out={folder}/tokens", "--num-proc=2")

    def pairs(self, repeats: int, *pair: tuple[RunSpec, int]) -> list[list[float]]:
        """Median step time of each repeat of each of a pair, run in turn."""
        found: list[list[float]] = [[] for _ in pair]
        for repeat in range(repeats):
            for which in (0, 1) if repeat % 2 == 0 else (1, 0):
                seconds = self.machine.undisturbed(partial(self._train, *pair[which]))
                found[which].append(statistics.median(seconds))
        return found

    def _train(self, spec: RunSpec, cores: int) -> Floats:
        """Time of each timed step, that of its slowest rank, on so many cores of this machine.

        A run that other work on the machine kept from its rate is made again.
        """
        for _ in range(3):
            record, out = self._run(spec, cores)
            if record["status"] == "ok" and record["execution"]["network"] == "emulated":
                break
        else:
            raise SystemExit(f"{spec.run_id}: {record['status']}: {record['reason']}")
        return load_run(read_record(out), {}).timed_seconds

    def _run(self, spec: RunSpec, cores: int) -> tuple[dict[str, Any], Path]:
        """A run on the first cores; where it leaves some free, the same runs there, unmeasured."""
        own = sorted(os.sched_getaffinity(0))
        others = [own[i : i + cores] for i in range(cores, len(own) - cores + 1, cores)]
        endless = replace(spec, workload=replace(spec.workload, steps=ENDLESS_STEPS))
        fillers = [self._start(endless, place)[0] for place in others]
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
        # A lock there lets one timed run at a time on a machine; these share it on purpose.
        (temporary := self.folder / f"cores{cores[0]}").mkdir(exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline", "train", *arguments],
            cwd=ROOT,
            env=os.environ
            | {"TMPDIR": str(temporary), preloaded.VARIABLE: self._server(tuple(cores))},
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
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

    def spec(self, cell: str, nodes: int, rate: float) -> RunSpec:
        """A run of `cell` on so many nodes, with links of `rate` Mbit/s, the model as above."""
        found = next(run for run in expand(self.study) if run.cell == cell)
        return replace(
            found,
            world=replace(found.world, nodes=nodes, link=LinkSpec("bench", rate)),
            model=replace(found.model, **MODEL),
            workload=replace(found.workload, **WORK),
        )

    def _pipeline(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "pipeline", *arguments]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
