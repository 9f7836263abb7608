"""Cases of `bench.auto`: a model and batch on emulated nodes, as studies and as layouts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bench.scaffold import ROOT
from pipeline.planner import here
from pipeline.planner.auto import choose, layouts_of, run_of
from pipeline.planner.ranking import Cluster, Ranked
from pipeline.study.load import load_study
from pipeline.study.spec import RunSpec
from pipeline.study.study import Study

BASE = ROOT / "workflow/config/ptdp2021/study.yaml"
STEPS, UNTIMED = 4, 2

MODELS: Mapping[str, Mapping[str, int]] = {
    # Few weights and many tokens: gradients are cheap to send.
    "tiny": {"num_layers": 2, "width": 64, "num_heads": 2, "context": 64},
    "narrow": {"num_layers": 8, "width": 128, "num_heads": 4, "context": 64},
    # Many weights and few tokens: gradients are dear, what passes between stages is not.
    "deep": {"num_layers": 8, "width": 256, "num_heads": 4, "context": 16},
    # Large products of few sequences, which a tensor axis alone can cut.
    "wide": {"num_layers": 2, "width": 512, "num_heads": 4, "context": 64},
}


@dataclass(frozen=True)
class Case:
    """A model with `batch` sequences a step; `mib` is the memory of a node, 0 for enough."""

    name: str
    model: str
    batch: int
    nodes: int
    mbits: float
    mib: int = 0

    def study(self) -> Study:
        """The study for which `plan --auto` chooses a layout."""
        base = load_study(BASE)
        content = base.to_dict()
        link = {"name": f"{self.mbits:g}mbit", "rate_mbits": self.mbits}
        nodes = [n for n in (1, 2, 4) if n <= self.nodes]
        single = {"name": "single", "label": "Single device", "strategy": "single",
                  "precision": "fp32", "nodes": [1]}  # fmt: skip
        work = {"global_batch": self.batch, "steps": STEPS, "untimed_steps": UNTIMED}
        return base.but(
            study=self.name, model=content["model"] | MODELS[self.model],
            cluster=content["cluster"] | {"nodes": nodes, "links": [link]},
            workload=content["workload"] | work, cells=[single], repeats=1,
            profile=None, claims=None, compares=None,
        )  # fmt: skip

    def specs(self) -> list[RunSpec]:
        """Every run that the planner may predict."""
        return [self.stretched(run.spec) for run in layouts_of(self.study())]

    def stretched(self, spec: RunSpec) -> RunSpec:
        """The run in time as all nodes of the case need it: one factor for all layouts."""
        fewer = self.nodes if spec.world.nodes < self.nodes else None
        return replace(spec, world=replace(spec.world, dilated_for=fewer))


CASES = (
    Case("tiny-1gbit", "tiny", 16, 4, 1000),
    Case("tiny-100mbit", "tiny", 32, 4, 100),
    Case("tiny-20mbit", "tiny", 16, 4, 20),
    Case("narrow-1gbit", "narrow", 16, 4, 1000),
    Case("deep-300mbit", "deep", 16, 4, 300),
    Case("deep-2500mbit", "deep", 16, 4, 2500),
    Case("deep-300mbit-2", "deep", 16, 2, 300),
    Case("deep-2500mbit-2-small", "deep", 16, 2, 2500, 390),
    Case("wide-2500mbit", "wide", 1, 4, 2500),
    Case("wide-300mbit", "wide", 1, 4, 300),
    Case("wide-2500mbit-2", "wide", 1, 2, 2500),
    Case("wide-2500mbit-small", "wide", 8, 4, 2500, 390),
)


@dataclass(frozen=True)
class Candidate:
    """A layout of a case with what is predicted of it; `mesh` are its axes alone."""

    name: str
    mesh: str
    spec: RunSpec
    predicted_seconds: float
    chosen: bool


def candidates(case: Case, calibration: here.Calibration) -> list[Candidate]:
    """All layouts that are ranked, with the case's memory and with enough, the choice among them.

    Pipelines also with half and twice the micro-batches that the planner gives them.
    """
    study = case.study()
    every, within = (
        choose(study, Cluster("cpu", mib / 1024, case.nodes, 1, 0.0), "fp32", calibration)
        for mib in (0, case.mib)
    )
    cells: dict[str, tuple[Ranked, Mapping[str, Any]]] = {}
    for one in (*within, *every):
        options = one.cell["options"]
        asked: list[Mapping[str, Any]] = [options]
        if one.job.pp > 1:
            count = options["microbatches"]
            asked += [{**options, "microbatches": n} for n in (count // 2, 2 * count) if n]
        for each in asked:
            cell = {**one.cell, "options": each}
            cells.setdefault(json.dumps(cell, sort_keys=True), (one, cell))
    found: list[Candidate] = []
    for ranked, own in cells.values():
        if (run := run_of(study, own)) is None:
            continue  # more micro-batches than sequences
        pieces = run.strategy.pieces(run.spec, run.layout)
        again = ", recomputed" if run.spec.workload.recompute else ""
        if layers := own["options"].get("layers"):
            again += ", stages of " + "-".join(map(str, layers))
        found.append(
            Candidate(
                name=f"{ranked.name}, {pieces} micro-batch{'es'[: 2 * (pieces > 1)]}{again}",
                mesh=ranked.name.partition(",")[0],
                spec=case.stretched(replace(run.spec, cell=f"layout{len(found)}")),
                predicted_seconds=here.predict(run, calibration).seconds,
                chosen=own == within[0].cell,
            )
        )
    return found
