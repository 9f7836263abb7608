"""Of a strategy that sends in one step of a round alone, no step stands for all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.metrics.profile import phase_steps
from pipeline.metrics.runs import load_run
from pipeline.study.profiling import profiled
from pipeline.study.study import Study
from tests.fake_records import make_record, make_study, make_table, row_of
from tests.unit.figures.drawn import draw, words

CELLS = [
    {"name": "single", "label": "Single", "strategy": "single", "precision": "fp32", "nodes": [1]},
    {"name": "dps", "label": "DDP", "strategy": "ddp", "precision": "fp32"},
    {"name": "local", "label": "Local", "strategy": "local_sgd", "precision": "fp32",
     "options": {"inner_steps": 5}},
]  # fmt: skip
STUDY = make_study(cells=CELLS, compares=["schedule"], profile={"steps": 10})


def test_times_are_means_of_rounds() -> None:
    """Of ten timed steps every fifth takes ten times as long: a median would not see it."""
    spec = next(s for s in profiled(Study.of(STUDY)) if s.strategy == "local_sgd")
    record = make_record(spec)
    slow = [
        replace(step, seconds=1.0 if step.step % 5 == 4 else 0.1, phases=None)
        for step in record.steps
    ]
    record = type(record)(record.run, slow)
    assert np.allclose(load_run(record, {}).timed_seconds, [0.28, 0.28])
    assert np.allclose(phase_steps(record)["step"], 0.28)


def test_the_loss_is_drawn_over_bytes_where_steps_differ() -> None:
    table = make_table(**{k: STUDY[k] for k in ("cells", "compares", "profile")})
    verdict = row_of(table, "parity_verdict", "local", 4)
    assert verdict["text"].startswith("not compared"), "to the parity of another step"
    assert "Sent so far" not in words(draw("loss_step", table)), "nothing was counted"
    counted = table["metric"].astype(str).str.replace("predicted_sent_bytes:", "sent_bytes:")
    table = table.assign(metric=counted)
    figure = draw("loss_step", table)
    assert "Sent so far [MB]" in words(figure) and "Steps differ by intent" in words(figure)
    often, seldom = (float(np.max(line.get_xdata())) for line in figure.axes[1].lines[:2])
    assert often == pytest.approx(5 * seldom)
    alike = table[table["metric"] != "compares"]
    assert "Sent so far" not in words(draw("loss_step", alike))
