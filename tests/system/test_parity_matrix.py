"""Parity on eight ranks: three axes at once, every setting in fp32, defaults in other formats.

And on four ranks the rest of the matrix.

`tests/parity` has all other cases of 1, 2 and 4 ranks. All strategies are one launch of 4 or 8.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline import strategies
from pipeline.corpus.batches import Batches
from pipeline.parallel.types import SavedState
from pipeline.training.clock import Clock
from pipeline.training.loop import Loop
from tests.parity import ask
from tests.parity.cases import STEPS, TOGETHER, WIDE, Case, together
from tests.parity.launch import Runs, launch
from tests.parity.test_parity import (
    ALL_STEPS,
    FIRST_STEP,
    RESUMED,
    assert_matrix_cell,
    assert_same_steps,
    assert_same_tensors,
    assert_step_is_skipped,
)

CASES = together(WIDE)
SKIPPING = [case for case in CASES if case.overflow]
RESUMING = [case for case in CASES if case.resume]
LONG = [c for c in CASES if not (c.brief or c.overflow or c.resume)]
MATRIX = [(world, case) for world in (4, WIDE) for case in together(world) if case.brief]


def name_of(case: Case) -> str:
    return case.name


@pytest.fixture(scope="module")
def single(small_tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    ask.start()  # for the other launches too
    return launch(TOGETHER, 1, small_tokens, tmp_path_factory.mktemp("single"))


@pytest.fixture(scope="module")
def four(small_tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return launch(TOGETHER, 4, small_tokens, tmp_path_factory.mktemp("four"))


@pytest.fixture(scope="module")
def eight(small_tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return launch(TOGETHER, WIDE, small_tokens, tmp_path_factory.mktemp("eight"))


@pytest.mark.parametrize("case", LONG, ids=name_of)
def test_eight_ranks_take_the_same_steps_as_single(eight: Runs, single: Runs, case: Case) -> None:
    ranks, reference = eight.ranks(case), single.rank(case.reference(WIDE))
    assert len({rank["weights_sha256"] for rank in ranks}) == 1
    assert_same_steps(ranks[0], reference, first=FIRST_STEP, later=ALL_STEPS)


@pytest.mark.parametrize(
    ("world", "case"), [pytest.param(*cell, id=f"{cell[1].name}-{cell[0]}") for cell in MATRIX]
)
def test_the_matrix_takes_the_same_steps_as_single(request, single, world, case) -> None:
    runs = request.getfixturevalue({4: "four", WIDE: "eight"}[world])
    assert_matrix_cell(runs, single, case)


@pytest.mark.parametrize("case", SKIPPING, ids=name_of)
def test_an_overflow_on_one_of_eight_ranks_makes_all_skip_the_step(eight, single, case) -> None:
    assert_step_is_skipped(eight, single, case)


@pytest.mark.parametrize("case", RESUMING, ids=name_of)
def test_three_axes_resume_under_two_and_on_one_device(eight, single, small_tokens, case) -> None:
    """Saved by data 2 x tensor 2 x pipeline 2, continued by data 4 x pipeline 2 with ZeRO 1."""
    reference = single.rank(case.reference(WIDE))
    for run in eight.ranks(case):
        assert_same_steps(run, reference, first=FIRST_STEP, later=RESUMED)
    kept = eight.checkpoint(case)
    assert_same_tensors(kept, single.checkpoint(Case("single", resume=True)))
    steps = alone(Case("single"), small_tokens, kept)
    rest = {"steps": reference["steps"][STEPS // 2 :]}
    assert_same_steps({"steps": steps}, rest, first=RESUMED, later=RESUMED)


def alone(case: Case, tokens: Path, state: SavedState) -> list[dict[str, Any]]:
    """The second half of a run on one device, from this state."""
    spec = case.spec(1)
    batches = Batches(tokens, spec.model.context, spec.workload.global_batch, spec.seed)
    loop = Loop(spec, strategies.load("single", {}), batches, 0, Clock(torch.device("cpu")))
    steps: list[dict[str, Any]] = []
    loop.run(lambda step: steps.append(step.to_dict()), done=STEPS // 2, state=state)
    return steps
