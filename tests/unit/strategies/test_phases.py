"""Which phases a step of each strategy goes through, in their order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest

from pipeline import strategies
from pipeline.errors import UnsupportedError
from pipeline.machine.limits import free_port
from pipeline.study.profiling import BACKWARD, COMMUNICATION, FORWARD, OPTIMISER, REST

# Each strategy has one rank in a process of its own, which joins what its strategy joins. One that
# has torch loaded forks them: loading takes longer than the steps.
STEPS = """
import json, os, sys, traceback
from dataclasses import replace
from pathlib import Path
import torch
from pipeline import strategies
from pipeline.corpus.batches import Batches
from pipeline.training.clock import Clock
from pipeline.training.loop import Hooks, Loop
from tests.parity.cases import Case

tokens, *given = sys.argv[1:]

def marks(strategy):
    spec = replace(Case(strategy, accumulation=2).spec(1), profile=True)
    batches = Batches(Path(tokens), spec.model.context, spec.workload.global_batch, spec.seed)
    loop = Loop(spec, strategies.load(strategy, {}), batches, 0, Clock(torch.device("cpu")))
    seen = []
    note = lambda _: seen.append([name for name, *_ in loop.phases._marks])
    loop.run(Hooks(note, lambda *_: None))
    return seen[-1]

for strategy, port in zip(given[::2], given[1::2]):
    if os.fork() == 0:
        os.environ["MASTER_PORT"] = port
        try:
            found = marks(strategy)
        except BaseException:
            found = traceback.format_exc()
        print(json.dumps([strategy, found]), flush=True)
        os._exit(0)
    os.wait()
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


@pytest.fixture(scope="module")
def seen(small_tokens: Path) -> dict[str, Any]:
    """The marks of the last step of each strategy that can run here, or a traceback."""
    given = [(strategy, str(free_port())) for strategy in EXPECTED if reason(strategy) is None]
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    alone |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [sys.executable, "-c", STEPS, str(small_tokens), *chain.from_iterable(given)],
        env=os.environ | alone,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


def reason(strategy: str) -> str | None:
    """Why it cannot run here."""
    try:
        strategies.load(strategy, {}).check()
    except UnsupportedError as error:
        return str(error)
    return None


@pytest.mark.parametrize("strategy", EXPECTED)
def test_a_step_goes_through_its_phases_in_this_order(strategy: str, seen: dict[str, Any]) -> None:
    if (why := reason(strategy)) is not None:
        pytest.skip(why)
    marks = seen[strategy]
    assert isinstance(marks, list), marks
    # The same phase twice in a row is one.
    found = [marks[0], *(b for a, b in pairwise(marks) if a != b)]
    assert found == EXPECTED[strategy]
