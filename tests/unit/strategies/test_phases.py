"""Which phases a step of each strategy goes through, in their order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from pipeline import strategies
from pipeline.errors import UnsupportedError
from pipeline.launch.torchrun import free_port
from pipeline.study.profiling import BACKWARD, COMMUNICATION, FORWARD, OPTIMISER, REST

# One rank in a process of its own, which joins what its strategy joins.
STEP = """
import json, sys
from dataclasses import replace
from pathlib import Path
import torch
from pipeline import strategies
from pipeline.corpus.batches import Batches
from pipeline.training.clock import Clock
from pipeline.training.loop import Hooks, Loop
from tests.parity.cases import Case

strategy, tokens = sys.argv[1:]
spec = replace(Case(strategy, accumulation=2).spec(1), profile=True)
batches = Batches(Path(tokens), spec.model.context, spec.workload.global_batch, spec.seed)
loop = Loop(spec, strategies.load(strategy, {}), batches, 0, Clock(torch.device("cpu")))
seen = []
loop.run(Hooks(lambda _: seen.append([name for name, *_ in loop.phases._marks]), lambda *_: None))
print(json.dumps(seen[-1]))
"""
PASSES = [FORWARD, BACKWARD, FORWARD, BACKWARD]
EXPECTED = {
    "single": [REST, *PASSES, OPTIMISER, REST],
    "ddp": [REST, *PASSES, COMMUNICATION, OPTIMISER, REST],
    "horovod": [REST, *PASSES, COMMUNICATION, BACKWARD, OPTIMISER, REST],
    # Pull and push; the loss scale would follow, where there is one.
    "parameter_server": [
        *(REST, COMMUNICATION, REST, *PASSES, COMMUNICATION, BACKWARD),
        *(OPTIMISER, REST),
    ],
}


@pytest.mark.parametrize("strategy", EXPECTED)
def test_a_step_goes_through_its_phases_in_this_order(strategy: str, small_tokens: Path) -> None:
    try:
        strategies.load(strategy, {}).check()
    except UnsupportedError as error:
        pytest.skip(str(error))
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    alone |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", STEP, strategy, str(small_tokens)],
        env=os.environ | alone | {"PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    marks = json.loads(done.stdout.splitlines()[-1])
    # The same phase twice in a row is one.
    found = [marks[0], *(b for a, b in pairwise(marks) if a != b)]
    assert found == EXPECTED[strategy]
