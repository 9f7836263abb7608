"""The suite itself, in a copy of the checkout with more strategy files, as the README says."""

import os
import re
import sys
from pathlib import Path
from shutil import copyfile, copytree

import pytest

from tests.programs import ran

HEAD = """
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from pipeline.parallel.group import Group
from pipeline.parallel.step import Stepper
from pipeline.strategies.base import Strategy

"""

SILENT = """
class Slow(Stepper):
    def barrier(self):
        pass

    def shards(self):
        if self.is_root:
            time.sleep(1)
        return super().shards()


@dataclass(frozen=True)
class Silent(Strategy):
    def build(self, parts):
        group = Group.join(parts.layout)
        parts = parts.prepare()

        def reduce():
            for parameter in parts.model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= group.size

        return Slow(parts, group, reduce=reduce)
"""
"""It trains as it should; `build` and `close` exchange nothing, and its root is slow to save."""

HIDDEN = """
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Hidden(Strategy):
    def build(self, parts):
        group = Group.join(parts.layout)
        prepared, wrapped = parts.prepare(), DistributedDataParallel(parts.model)
        return Stepper(prepared, group, forward=lambda *batch: wrapped(*batch))
"""
"""torch's DDP, whose all-reduces start in C++, behind a function."""

OUTSIDE = """
@dataclass(frozen=True)
class Outside(Strategy):
    def sends(self, spec, layout, rank, gradients):
        return ()

    def build(self, parts):
        group, prepared = Group.join(parts.layout), parts.prepare()

        class Later(Stepper):
            def step(self, microbatches):
                self.loss = self.accumulate(microbatches)

            def report(self):
                for parameter in self.model.parameters():
                    other = torch.empty_like(parameter.grad)
                    works = dist.isend(parameter.grad, 1 - group.rank), dist.irecv(other)
                    for work in works:
                        work.wait()
                    parameter.grad = (parameter.grad + other) / 2
                self.norm = self.update()
                return super().report()

        return Later(prepared, group)
"""
"""It sends and updates after the clock, in messages, which torch's recorder leaves out."""

BROKEN = """
@dataclass(frozen=True)
class Broken(Strategy):
    def build(self, parts):
        group = Group.join(parts.layout)
        parts = parts.prepare()
        if group.rank == 0:
            with Path(__file__).with_name("launches.txt").open("a") as lines:
                print("built", file=lines)

        def reduce():
            if group.rank == 1:
                raise ValueError("wrong on purpose")
            dist.barrier()

        return Stepper(parts, group, reduce=reduce)
"""

FEWER = """

PRECISIONS = RESUMED = ("fp32",)
LEAST = MOST = []
ours = {name: model for name, model in EXAMPLES.items() if not model.architecture}
models.examples = lambda: ours
all_cases_of, all_launches = cases_of, launches
mutants = lamb_models = overflow_cases = varied_cases = lambda *_: []
phased_cases = changed_cases = model_cases = alone_cases = mutants


def launches():
    ours = [("silent", 2), ("broken", 2), ("hidden", 2), ("outside", 2), ("flat", 2)]
    return [one for one in all_launches() if one[0] == REFERENCE or one in ours]


def cases_of(strategy, world):
    if strategy == REFERENCE:
        return references(all_cases_of("silent", 2), 2)
    return all_cases_of(strategy, world)
"""
"""At the end of `cases.py`: plain, resumed and recomputed cases of our models in fp32, no more."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of package and tests, with the files; the suite's cases are cut, see FEWER."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("envs", "pipeline", "tests", "workflow"):
        copytree(name, folder / name)  # compiled files too, so that few are compiled again
    copyfile("pyproject.toml", folder / "pyproject.toml")
    (folder / "pipeline/strategies/silent.py").write_text(HEAD + SILENT)
    (folder / "pipeline/strategies/broken.py").write_text(HEAD + BROKEN)
    (folder / "pipeline/strategies/hidden.py").write_text(HEAD + HIDDEN)
    (folder / "pipeline/strategies/outside.py").write_text(HEAD + OUTSIDE)
    page = Path("docs/strategies.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (folder / "pipeline/strategies/flat.py").write_text(example)
    with (folder / "tests/parity/cases.py").open("a") as lines:
        lines.write(FEWER)
    return folder


@pytest.fixture(scope="module")
def printed(checkout: Path) -> str:
    """What pytest prints for all tests of the good file, and some of the others."""
    broken = "broken and (steps_of_a_single_device or in_micro_batches)"
    counting = "(hidden or outside or flat) and in_micro_batches"
    chosen = ("-k", f"silent or ({broken}) or ({counting})")
    command = [sys.executable, "-m", "pytest", "-q", "tests/parity/test_parity.py", *chosen]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    done = ran(command, cwd=checkout, env=environment)
    return done.stdout + done.stderr


def test_a_new_file_is_found_and_may_save_late(printed: str) -> None:
    """That it marks no phases does not matter: its collectives are communication."""
    assert "4 failed, 8 passed" in printed, printed
    failed = "".join(line for line in printed.splitlines() if "FAILED" in line)
    assert "silent" not in failed and "flat" not in failed, "nor has the one of docs/strategies.md"


def test_a_failing_launch_is_made_once_and_shows_the_rank_at_fault(checkout, printed) -> None:
    assert printed.count("FAILED") == 4, printed
    assert "ValueError: wrong on purpose" in printed
    assert "broken-fp32-a1" in printed, "the case is named"
    assert "closed by peer" not in printed and "ChildFailedError" not in printed
    assert (checkout / "pipeline/strategies/launches.txt").read_text() == "built\n"


def test_a_collective_that_python_does_not_see_ends_the_run_with_its_remedy(printed: str) -> None:
    assert "StrategyError: all_reduce of a step started outside of Python" in printed
    assert "give the shared step the DistributedDataParallel itself as `forward`" in printed


def test_what_is_sent_after_the_clock_ends_the_run(printed: str) -> None:
    assert "StrategyError: all_reduce and send of 142,596 bytes outside of 1 step," in printed
