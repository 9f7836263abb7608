"""Which steps of a run are timed."""

from dataclasses import replace

import pytest

from pipeline.training.loop import first_timed
from tests.parity.cases import Case

WORK = replace(Case("ddp").spec(1).workload, steps=20, untimed_steps=4)


@pytest.mark.parametrize(
    ("done", "first"),
    [(0, 4), (10, 14), (2, 6), (18, 19)],
    ids=["from the start", "gone on", "gone on in the warm-up", "gone on near the end"],
)
def test_a_run_that_goes_on_warms_up_anew(done: int, first: int) -> None:
    assert first_timed(WORK, done) == first
