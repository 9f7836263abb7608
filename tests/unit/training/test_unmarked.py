"""A strategy as the docs have it, which marks nothing, on two ranks of the real loop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.machine.limits import free_port

RANKS = """
import json, os, sys
from dataclasses import dataclass, replace
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from pipeline.corpus.batches import Batches
from pipeline.parallel.group import Group
from pipeline.parallel.step import Stepper
from pipeline.strategies.base import Strategy
from pipeline.training.clock import Clock
from pipeline.training.loop import Hooks, Loop
from tests.parity.cases import Case

@dataclass(frozen=True)
class Plain(Strategy):
    '''Data parallelism by an all-reduce of each gradient.'''

    def build(self, parts):
        group = Group.join(parts.layout)

        def average():
            for parameter in parts.model.parameters():
                parameter.grad /= group.size
                dist.all_reduce(parameter.grad)

        return Stepper(parts.prepare(), group, reduce=average)

@dataclass(frozen=True)
class Hidden(Strategy):
    '''torch's DDP, whose all-reduces start in C++, behind a function.'''

    def build(self, parts):
        group = Group.join(parts.layout)
        prepared, wrapped = parts.prepare(), DistributedDataParallel(parts.model)
        return Stepper(prepared, group, forward=lambda *batch: wrapped(*batch))

def train(strategy, rank, tokens):
    spec = replace(Case("ddp", accumulation=2).spec(2), profile=True)
    batches = Batches(tokens, spec.model.context, spec.workload.global_batch, spec.seed)
    steps = []
    loop = Loop(spec, strategy, batches, rank, Clock(torch.device("cpu")))
    loop.run(Hooks(steps.append, lambda *_: None))
    return steps[-1].phases, loop.sent["collectives"]

torch.set_num_threads(1)
rank = 0 if os.fork() else 1
os.environ["RANK"] = str(rank)
dist.init_process_group("gloo")
seen = []
for strategy in (Plain(), Hidden()):
    try:
        seen.append(train(strategy, rank, Path(sys.argv[1])))
    except Exception as error:
        seen.append(f"{type(error).__name__}: {error}")
dist.barrier()
if rank == 0:
    print(json.dumps(seen), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def seen(small_tokens: Path) -> Any:
    """Phases of the last step and what it sent, or why there is none, of `Plain` and `Hidden`."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    done = subprocess.run(
        [sys.executable, "-c", RANKS, str(small_tokens)],
        env=os.environ | place | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_collective_that_nothing_marks_is_communication(seen: Any) -> None:
    phases, (sent,) = seen[0]
    assert (sent["kind"], sent["count"] > 1) == ("all_reduce", True)
    assert phases["communication"] > 0


def test_one_that_python_does_not_see_ends_the_run_with_the_way_to_mend_it(seen: Any) -> None:
    assert isinstance(seen[1], str), seen[1]
    assert seen[1].startswith("LaunchError: all_reduce of a step started outside of Python")
    assert seen[1].endswith("give the shared step the DistributedDataParallel itself as `forward`")
