"""A layout that cannot be: `plan` says so in one line, with what was given and what is nearest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.__main__ import main


@pytest.mark.parametrize(
    ("strategy", "options", "said"),
    [
        (
            "pipeline_parallel",
            {"schedule": "interleaved"},
            "x 2 chunks are 8 stages, but the model",
        ),
        ("pipeline_parallel", {"microbatches": 64}, "the nearest option microbatches is 16"),
        ("pipeline_parallel", {"ranks": 3}, "3 pipeline ranks do not divide 4 ranks; the nearest"),
        ("annotated", {"annotations": {"h.0.up.weight": [None]}}, "h.0.up.weight: no such tensor;"),
        ("annotated", {"annotations": {"wte.weight": ["rows", None]}}, "names the axis 'rows'"),
        ("annotated", {"axes": {"data": 3}}, "do not make 4 ranks; the nearest layout is data 4"),
        ("hybrid", {"tensor": 3}, "the nearest layout is pipeline 2 x tensor 2 x data 1"),
        ("tensor", {"ranks": 3}, "3 tensor ranks do not divide 4 ranks"),
    ],
)
def test_plan_names_what_does_not_fit(
    strategy: str,
    options: dict[str, Any],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cell = {"name": "wrong", "label": "Wrong", "strategy": strategy, "precision": "fp32"}
    study = {
        "extends": "smoke",
        "study": "impossible",
        "claims": None,
        "model": {"num_layers": 4, "num_heads": 4},
        "cluster": {"nodes": [4]},
        "cells": [cell | {"options": options}],
    }
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(study))
    assert main(["plan", "--study", str(file)]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and printed.startswith("error: ")
    assert said in printed
