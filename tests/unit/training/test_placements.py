"""The placements of an annotated run, found without its ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.__main__ import main
from pipeline.errors import StudyError
from pipeline.models import tensor_shapes
from pipeline.resolved import resolve
from pipeline.study.expansion import expand
from pipeline.study.load import load_study
from pipeline.training.placements import propagate
from tests.parity.cases import Case


@pytest.fixture(scope="module")
def found():
    """A model axis of two, propagated for eight ranks."""
    spec = Case("annotated", variant=1).spec(8)
    return spec, propagate(resolve(spec))


def test_every_parameter_and_boundary_has_a_place(found) -> None:
    spec, placements = found
    named = {**placements["parameters"], **placements["boundaries"]}
    assert set(named) == set(tensor_shapes(spec.model))


def test_annotated_tensors_lie_as_annotated_and_the_rest_follows(found) -> None:
    _, placements = found
    parameters, boundaries = placements["parameters"], placements["boundaries"]
    assert parameters["h.0.mlp.c_fc.weight"] == ["replicate", "shard 0"]
    assert parameters["h.1.attn.c_proj.weight"] == ["shard 0", "shard 1"]
    assert parameters["h.0.ln_1.weight"] == ["replicate", "replicate"]
    # Of a column cut the features are cut, of a row cut there is a sum to make, as annotated.
    assert boundaries["h.0.mlp.c_fc"] == ["shard 0", "shard 2"]
    assert boundaries["h.0.mlp.c_proj"] == ["shard 0", "partial"]
    assert boundaries["h.0.mlp"] == ["shard 0", "replicate"]


def test_a_strategy_without_propagation_is_refused() -> None:
    with pytest.raises(StudyError, match="strategy single places no tensors by propagation"):
        propagate(resolve(Case("single").spec(1)))


def test_the_command_prints_a_table(tmp_path, capsys) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(STUDY)
    assert main(["placements", "--study", str(study), "--cell", "cut"]) == 0
    printed = capsys.readouterr().out
    assert "mine/cut on 4 ranks" in printed and "| parameters | data (2) | model (2) |" in printed
    assert "| `h.*.mlp.c_fc.weight` | replicate | shard 0 |" in printed
    assert main(["placements", "--study", str(study), "--cell", "cat"]) == 2
    assert "no cell 'cat'; use one of single, cut" in capsys.readouterr().err


STUDY = """
extends: smoke
study: mine
claims: null
cluster: {yardstick: null}
cells:
  - {name: single, label: Single, strategy: single, precision: fp32, nodes: [1]}
  - name: cut
    label: Cut
    strategy: annotated
    precision: fp32
    nodes: [2, 4]
    options:
      axes: {data: 0, model: 2}
      annotations: {"*.mlp.c_fc.weight": [model, null]}
"""


class Collectives(TorchDispatchMode):
    """Names of the collectives that DTensor starts."""

    def __init__(self) -> None:
        super().__init__()
        self.names = set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "_c10d_functional":
            self.names.add(func.__name__.partition(".")[0])
        return func(*args, **(kwargs or {}))


def test_the_shipped_annotations_send_nothing_that_gloo_sends_twice() -> None:
    """A reduce-scatter over Gloo is an all-reduce and a cut; what `layouts` counts has none."""
    runs = expand(load_study(Path("workflow/config/layouts/study.yaml")))
    run = next(run for run in runs if run.cell == "annotated")
    with Collectives() as sent:
        propagate(resolve(run))
    assert sent.names >= {"all_reduce", "all_gather_into_tensor"}
    assert not any("reduce_scatter" in name for name in sent.names)
