from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pipeline.machine.limits import free_port
from pipeline.parallel.step import Stepper
from pipeline.strategies.horovod import plan

hvd = pytest.importorskip("horovod.torch", reason=f"Horovod is {plan.why_unusable()}")
step = pytest.importorskip("pipeline.strategies.horovod.step")


def test_a_resume_sends_weights_and_nothing_of_the_optimiser(monkeypatch) -> None:
    """`broadcast_object` pickles, which ends at 2 GiB; every rank has read the state by then."""
    sent: list[str] = []

    def broadcast(named: list[tuple[str, torch.Tensor]], root: int) -> None:
        sent.extend(name for name, _ in named)

    def refused(*given: object, **named: object) -> None:
        pytest.fail("the optimiser is sent")

    monkeypatch.setattr(hvd, "broadcast_parameters", broadcast)
    for name in ("broadcast_object", "broadcast_optimizer_state"):
        monkeypatch.setattr(hvd, name, refused)
    monkeypatch.setattr(Stepper, "load", lambda self, state: sent.append(f"read {state}"))
    stepper = step.HorovodStepper.__new__(step.HorovodStepper)
    stepper.model = torch.nn.Linear(2, 1)
    stepper.load("a state")
    assert sent == ["read a state", "weight", "bias"]


# A point takes 5 steps, none warms up: read when the library is loaded.
FEW_STEPS = {"HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "1", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "0"}
TUNED = """
import json, sys
from dataclasses import replace
from pathlib import Path
import torch
from pipeline import strategies
from pipeline.corpus.batches import Batches
from pipeline.training.clock import Clock
from pipeline.training.loop import Hooks, Loop
from tests.parity.cases import Case

spec = Case("horovod").spec(2)
spec = replace(spec, workload=replace(spec.workload, steps=140))
batches = Batches(Path(sys.argv[1]), spec.model.context, spec.workload.global_batch, spec.seed)
losses = []
rank = int(sys.argv[2])
strategy = strategies.load("horovod", {"autotune": True})
loop = Loop(spec, strategy, batches, rank, Clock(torch.device("cpu")))
loop.run(Hooks(lambda step: losses.append(step.loss), lambda *_: None))
print(json.dumps([loop.trainable.autotuned, losses[0], losses[-1], str(loop.trainable.log)]))
"""


@pytest.mark.system
def test_a_search_ends_and_says_what_it_settled_on(small_tokens: Path) -> None:
    """On two ranks, which train meanwhile."""
    both = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    both |= {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", TUNED, str(small_tokens), rank],
            env=os.environ | FEW_STEPS | both | {"RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    try:
        printed = [one.communicate(timeout=600)[0] for one in ranks]
    finally:
        for one in ranks:
            one.kill()
    assert [one.returncode for one in ranks] == [0, 0]
    (tuned, first, last, log), (none, *same) = (json.loads(text) for text in printed)
    assert (none, same[:2]) == (None, [first, last])
    assert tuned["points"] == plan.TUNED_POINTS
    assert 1 <= tuned["cycle_time_ms"] <= 100
    assert 0 <= tuned["fusion_threshold_mb"] <= plan.TUNED_MB
    assert last < first - 1, "it trains"
    assert not Path(log).parent.exists()
