"""By how much the passes of a yardstick may be off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import SamestepError
from pipeline.metrics.emulation import load_uncertainty
from tests.fake_bench import make_yardstick

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
