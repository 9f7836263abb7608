"""Two runs in two layouts: the step from which they part, and the blocks in which they do."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.metrics.format import NONE
from pipeline.records import Step
from tests.fake_records import edit_record, edit_steps, make_study, write_records


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Profiled runs on one and two ranks, of which the latter's two hold parts of the gradients."""
    study = make_study(repeats=1, profile={"steps": 4})
    study["cluster"] = study["cluster"] | {"nodes": [1, 2]}
    write_records(tmp_path, study)
    edit_steps(tmp_path / "single/n1/p0", lambda step: replace(step, loss=5.0, grad_norm=2.0))
    edit_steps(tmp_path / "single/n1/p0", lambda s: replace(s, squares={"h.0": 0.36, "wte": 0.64}))
    edit_steps(tmp_path / "dps/n2/p0", on_two_ranks)
    return tmp_path


def on_two_ranks(step: Step) -> Step:
    """From step 3 on the first block's gradient is smaller, and so is the norm of all."""
    late = step.step >= 3
    shares = [{"h.0": 0.2, "wte": 0.64}, {"h.0": 0.04 if late else 0.16}]
    norm = 2.0 * (0.88 if late else 1.0) ** 0.5
    return replace(step, loss=5.0, grad_norm=norm, squares=shares[step.rank])


def call(runs: Path, one: str, other: str, *more: str) -> int:
    return main(["compare", str(runs / one), str(runs / other), *more])


def test_the_first_step_and_the_block_are_named(runs, capsys) -> None:
    assert call(runs, "single/n1/p0", "dps/n2/p0", "--losses", "1e-6") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("dps/n2/p0, strategy ddp, 2 ranks")
    rows = {row[0]: row[1:] for row in (re.split("  +", line) for line in lines[3:])}
    parted = {"gradient norm", "h.0"}
    assert {*rows} == {"series", "loss", "wte", *parted}
    assert {name for name, row in rows.items() if row[0] == "3"} == parted
    assert rows["h.0"] == ["3", "1.20000", "0.979796", "1.8e-1", "1.8e-1", "3"]
    assert rows["wte"][:4] == [NONE] * 4
    assert call(runs, "single/n1/p0", "dps/n2/p0", "--losses", "0.2") == 0


def test_timed_runs_have_losses_and_norms_alone(runs, capsys) -> None:
    assert call(runs, "single/n1/r0", "dps/n2/r0") == 1
    assert "kept by profiled runs alone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("other", "more", "said"),
    [
        ("dps/n2/r0", (), "had another optimiser, so their steps are not the same"),
        ("horovod/n2/p0", (), "n2/p0 is failed; give two runs that finished"),
        ("dps/n2/p0", ("--times", "interval"), "--times would do nothing with two runs"),
    ],
)
def test_what_cannot_be_held_against_each_other_is_refused(runs, capsys, other, more, said) -> None:
    failed = {"status": "failed", "reason": "lost"}
    edit_record(runs / "horovod/n2/p0", lambda run: run.update(failed))
    assert call(runs, "single/n1/p0", other, *more) == 2
    assert said in capsys.readouterr().err
