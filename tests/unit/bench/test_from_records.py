"""What the bench of records and archives makes its figures of."""

from __future__ import annotations

import sys

import pytest

from bench import from_records
from pipeline.study.expansion import MAX_RUNS, expand
from pipeline.study.profiling import profiled
from pipeline.study.study import Study


def test_the_many_runs_are_ten_thousand_of_the_default_study_over_three_links() -> None:
    content = from_records.study(repeats=from_records.REPEATS, links=from_records.LINKS)
    study = Study.of(content)
    timed = expand(study)
    assert len(timed) <= MAX_RUNS <= len(timed) + len(profiled(study))
    assert {link.name for link in study.cluster.links} == {"200mbit", "500mbit", "1000mbit"}


def test_a_command_is_timed_and_one_that_fails_ends_the_bench() -> None:
    found = from_records.timed(sys.executable, "-c", "sum(range(10**6))")
    assert found["cpu_seconds"] > 0 and found["seconds"] > 0
    with pytest.raises(SystemExit, match="no number"):
        from_records.timed(sys.executable, "-c", "raise SystemExit('no number')")
