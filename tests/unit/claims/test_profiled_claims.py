"""Claims on what the time is spent on are decided from six profiled runs of each cell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pipeline.claims.judge import judge
from pipeline.claims.load import load_claims
from pipeline.claims.types import REPRODUCED, UNDECIDED
from pipeline.claims.worlds import Evidence
from pipeline.metrics.build import build
from pipeline.metrics.collect import run_folder
from pipeline.metrics.results import Results
from pipeline.metrics.statistics import MIN_REPEATS
from pipeline.records import RunRecord, Step, write_record
from pipeline.study.load import CONFIG, load_study
from pipeline.study.profiling import BACKWARD, COMMUNICATION, profiled
from pipeline.study.study import Study
from tests.claims_worlds import world_study
from tests.fake_records import make_record, write_records

CLAIMS = {claim.id: claim for claim in load_claims(CONFIG / "bai2022/claims.yaml")}
CELLS = [
    {"name": name, "label": name, "strategy": strategy, "precision": "fp32", "nodes": [1]}
    for name, strategy in (("even", "horovod"), ("uneven", "ddp"))
]


def slower_first(step: Step) -> Step:
    """Rank 0 computes for longer; the others wait for it, so that every step takes as long."""
    assert step.phases is not None
    moved = 0.5 * step.phases[COMMUNICATION] * (1 if step.rank == 0 else -1)
    moved = min(moved, 0.9 * step.phases[COMMUNICATION])
    phases = {
        **step.phases,
        BACKWARD: step.phases[BACKWARD] + moved,
        COMMUNICATION: step.phases[COMMUNICATION] - moved,
    }
    return replace(step, phases=phases)


def evidence(repeats: int) -> Evidence:
    study = world_study(cells=CELLS, profile={"steps": 4, "repeats": repeats})
    with TemporaryDirectory() as folder:
        root = write_records(Path(folder), study, lambda spec: None)
        for place, spec in enumerate(profiled(Study.of(study))):
            if spec.cell == "uneven":
                record = make_record(spec, place=place)
                steps = [slower_first(s) if s.phases else s for s in record.steps]
                write_record(run_folder(root, spec), RunRecord(record.run, steps))
        return Evidence(Study.of(study), Results(build(Study.of(study), root)))


@pytest.mark.parametrize(("repeats", "verdict"), [(1, UNDECIDED), (6, REPRODUCED)])
def test_uneven_ranks_are_seen_in_six_profiled_runs(repeats: int, verdict: str) -> None:
    found = judge(CLAIMS["horovod-symmetric-time"], evidence(repeats))
    assert found.effect is not None and found.effect.n == repeats
    assert found.effect.value > 1.05
    assert found.verdict == verdict, found.line
    if repeats == 1:
        assert "(no interval: 1 of the 6 runs it needs)" in found.why


@pytest.mark.parametrize(
    ("study", "claim", "wired"),
    [
        ("one-node", "horovod-symmetric-time", False),
        ("bai2022", "horovod-symmetric-time", False),
        ("bai2022", "sublinear-by-communication", True),
    ],
)
def test_a_shipped_study_has_the_profiled_runs_that_decide(study, claim, wired) -> None:
    found = load_study(CONFIG / study / "study.yaml")
    test = CLAIMS[claim].test
    for want in test.get("cells", [test.get("a"), test.get("b")]):
        runs = [
            spec
            for spec in profiled(found)
            if (spec.strategy, spec.precision) == (want.strategy, want.precision)
            and spec.world.size > 1
            and (spec.world.nodes > 1 and spec.world.network == "real") == wired
        ]
        assert len(runs) >= MIN_REPEATS, want.name
