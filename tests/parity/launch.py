"""Starts the ranks of one strategy, and reads what they left: results, or which rank is at fault.

A rank that fails leaves `rank<r>.error.json`, see `rank.py`.
"""

import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from pipeline.emulation import pacing
from pipeline.machine.limits import usable_cores
from pipeline.parallel.types import SavedState
from pipeline.training.checkpoint import Saved
from tests.cores import core_for
from tests.parity.cases import CHOSEN, Case
from tests.programs import ran

SECONDS = 600
"""For all cases of a strategy in one world."""


class LaunchFailed(Exception):
    """The ranks did not train all cases; the text says which rank failed first, and how."""


class Runs:
    """Results of one launch, read case by case."""

    def __init__(self, folder: Path, world: int) -> None:
        self.folder, self.world = folder, world

    def rank(self, case: Case, rank: int = 0) -> dict[str, Any]:
        return self.ranks(case)[rank]

    @cache  # noqa: B019
    def ranks(self, case: Case) -> list[dict[str, Any]]:
        """What each rank left; their steps also have the norm of each whole gradient."""
        files = [self.folder / f"{case.name}.rank{rank}.json" for rank in range(self.world)]
        ranks = [json.loads(file.read_text()) for file in files]
        for same_step in zip(*(rank["steps"] for rank in ranks), strict=True):
            squares = Counter[str]()
            for step in same_step:
                squares.update(step.pop("squares"))
            norms = {name: math.sqrt(square) for name, square in squares.items()}
            for step in same_step:
                step["gradients"] = norms
        return ranks

    def checkpoint(self, case: Case) -> SavedState:
        """What a run that was resumed half-way had left there."""
        return Saved(self.folder / f"{case.name}.checkpoints", case.steps // 2)

    def weights(self, case: Case) -> dict[str, torch.Tensor]:
        return load_file(self.folder / f"{case.name}.safetensors")


def launch(
    strategy: str, world: int, tokens: Path, out: Path, chosen: Collection[str] = ()
) -> Runs:
    """Train all cases of a strategy, with what is `chosen` of them, see `cases.CHOSEN`.

    Raises LaunchFailed.
    """
    try:
        done = ran(
            [sys.executable, "-m", "tests.parity.ask", strategy, str(world), str(tokens), str(out)],
            env=environment(world) | {CHOSEN: ",".join(sorted(chosen))},
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        fault = culprit(out) or "No rank gave a reason."
        raise LaunchFailed(f"{strategy}-{world} is not done after {SECONDS} s. {fault}") from None
    if done.returncode != 0:
        fault = culprit(out) or f"No rank gave a reason of its own:\n{done.stderr[-3000:]}"
        raise LaunchFailed(f"{strategy}-{world} failed. {fault}")
    return Runs(out, world)


def environment(world: int) -> dict[str, str]:
    """Environment of ranks; where they share a core Horovod waits asleep, as it would spin."""
    paths = [str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    if core_for(world, usable_cores(), "") is not None:
        ours |= {pacing.VARIABLE: "1"}
    return os.environ | ours


def culprit(out: Path) -> str | None:
    """The traceback of the rank that failed first for another reason than a lost peer, or None.

    Where a rank raises, those that wait for it fail too, and print more.
    """
    errors = [json.loads(path.read_text()) for path in out.glob("rank*.error.json")]
    own = [error for error in errors if error["kind"] != "lost"]
    if not own:
        return None
    first = min(own, key=lambda error: error["seconds"])
    return f"Rank {first['rank']} was the first:\n{first['traceback']}"
