"""By how much times on emulated nodes may be off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import SamestepError
from pipeline.metrics.build import build
from pipeline.metrics.emulation import bias_of, load_bias, load_uncertainty
from pipeline.study.study import Study
from tests.fake_bench import FORMER, make_result, make_yardstick
from tests.fake_records import make_study, make_table, write_records

ROUNDS = 40


def write(path: Path, *passes: Any) -> Path:
    """A yardstick whose passes took these seconds in its rounds."""
    path.write_text(json.dumps(make_yardstick(*passes)))
    return path


def test_what_all_passes_share_is_no_uncertainty(tmp_path: Path) -> None:
    level = np.random.default_rng(1).uniform(0.5, 2.0, ROUNDS)
    path = write(tmp_path / "y.json", 0.01 * level, 0.02 * level, 0.04 * level)
    assert load_uncertainty(path) == pytest.approx(0, abs=1e-12)
    assert load_uncertainty(None) == 0


def test_what_one_pass_varies_by_is(tmp_path: Path) -> None:
    drawn = np.random.default_rng(2).normal(0, 0.1, (2, ROUNDS))
    few = load_uncertainty(write(tmp_path / "few.json", *(0.01 * np.exp(drawn))))
    more = np.random.default_rng(2).normal(0, 0.1, (2, 25 * ROUNDS))
    many = load_uncertainty(write(tmp_path / "many.json", *(0.01 * np.exp(more))))
    assert 0.01 < few < 0.08
    assert many < few / 2


def test_rounds_that_are_missing_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(SamestepError, match=r"all need as many rounds; remove the file"):
        load_uncertainty(write(tmp_path / "y.json", [0.1, 0.1, 0.1], [0.1, 0.1]))


def test_one_round_says_nothing_of_its_spread_and_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SamestepError, match=r"y\.json at \$\.passes\[\d\]\.rounds: .* minItems: 2"):
        load_uncertainty(write(tmp_path / "y.json", [0.1], [0.2]))


def test_the_bias_is_that_of_the_bench_and_of_the_yardstick(tmp_path: Path) -> None:
    bench = tmp_path / "emulation.json"
    bench.write_text(json.dumps(make_result(largest_bias=0.07)))
    drawn = np.random.default_rng(3).normal(0, 0.1, (2, ROUNDS))
    yardstick = write(tmp_path / "y.json", *(0.01 * np.exp(drawn)))
    assert (load_bias(bench), load_bias(None), load_bias(None, yardstick)) == (0.07, None, None)
    both = 1.07 * (1 + load_uncertainty(yardstick)) - 1
    assert load_bias(bench, yardstick) == pytest.approx(both)
    bench.write_text(json.dumps(FORMER))
    assert load_bias(bench) is None
    bench.write_text("{}")
    with pytest.raises(SamestepError, match=r"emulation\.json"):
        load_bias(bench)


def test_the_table_holds_the_bias_that_it_was_made_with(tmp_path: Path) -> None:
    assert bias_of(make_table(repeats=2)) is None
    study = make_study(repeats=2)
    runs = write_records(tmp_path, study)
    assert bias_of(build(Study.of(study), runs, 0.07)) == 0.07
