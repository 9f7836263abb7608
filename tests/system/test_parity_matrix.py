"""The cells of the parity matrix on eight ranks: settings x fp32, bf16, amp_o1 x 1 and 4 pieces.

`tests/parity` has those on two and four ranks, and each setting on eight in fp32.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.planner.memory import predict_sent
from tests.parity.cases import MATRIX_LAUNCH, REFERENCE, WIDE, Case, cases_of
from tests.parity.launch import Runs, launch
from tests.parity.test_parity import assert_matrix_cell, assert_sends_what_it_says

pytestmark = [pytest.mark.system, pytest.mark.slow]

CASES = cases_of(MATRIX_LAUNCH, WIDE)


@pytest.fixture(scope="module")
def eight(small_tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return launch(MATRIX_LAUNCH, WIDE, small_tokens, tmp_path_factory.mktemp("eight"))


@pytest.fixture(scope="module")
def single(small_tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return launch(REFERENCE, 1, small_tokens, tmp_path_factory.mktemp("single"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_eight_ranks_take_the_same_steps_as_single(eight: Runs, single: Runs, case: Case) -> None:
    assert_matrix_cell(eight, single, case)


@pytest.mark.parametrize("case", [c for c in CASES if c.profiled], ids=lambda case: case.name)
def test_eight_ranks_send_what_their_strategy_says(eight: Runs, case: Case) -> None:
    if not predict_sent(case.spec(WIDE)):
        pytest.skip("no formula")
    assert_sends_what_it_says(eight, case, WIDE)
