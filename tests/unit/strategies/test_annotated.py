"""Annotations and what follows: refusals, the best cuts, placements, and what DTensor sends."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline import models, strategies
from pipeline.__main__ import main
from pipeline.cost.sharding import Prices
from pipeline.errors import StudyError
from pipeline.metrics import statistics
from pipeline.models import tensor_shapes
from pipeline.models.build import build_model
from pipeline.parallel.collectives import heard_by
from pipeline.parallel.types import Batch, Phases
from pipeline.resolved import resolve
from pipeline.strategies.annotated.plan import mesh_axes, share
from pipeline.strategies.annotated.plan import resolve as resolve_annotations
from pipeline.strategies.annotated.search import annotate, chain, search
from pipeline.study.expansion import expand
from pipeline.study.load import load_study
from pipeline.study.profiling import COMMUNICATION, FORWARD
from pipeline.training.placements import alike, propagate
from tests.parity.cases import Case, settings_of
from tests.ranks import MODEL, fake_group, parts_of

SHAPES = {
    **{f"h.{n}.up.weight": (8, 4) for n in (0, 1)},
    **{f"h.{n}": (None, 6, 4) for n in (0, 1)},
}
AXES = (("data", 2), ("model", 4))


def test_axes_are_in_one_order_whatever_the_file_s() -> None:
    """A spec is kept with sorted keys, so the order of a mapping may say nothing."""
    assert mesh_axes({"model": 2, "data": 0, "cut": 2}, 8) == (
        ("data", 2),
        ("cut", 2),
        ("model", 2),
    )
    assert mesh_axes({"model": 0}, 4) == (("data", 1), ("model", 4))


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"data": 2, "model": 2}, "data 2 x model 2 do not make 8 ranks; .* is data 4 x model 2"),
        ({"data": 0, "model": 3}, "data 0 x model 3 do not make 8 ranks; .* is data 4 x model 2"),
        ({"model": 3, "rows": 5}, "data 1 x model 3 x rows 5 do not .* data 1 x model 2 x rows 4"),
        ({"data": 0, "model": 0}, "do not make 8 ranks; name at most 4, one of them of size 0"),
        ({"Model": 2}, "axis 'Model' of size 2 is none; name it by small letters"),
        ({"model": True}, "axis 'model' of size True is none"),
    ],
)
def test_axes_that_do_not_fit_name_their_factors(axes, said) -> None:
    with pytest.raises(StudyError, match=said):
        mesh_axes(axes, 8)


def test_patterns_find_their_tensors() -> None:
    given = {"*.up.weight": ["model", None], "h.0": ["data", None, "model"]}
    found = resolve_annotations(given, AXES, SHAPES)
    assert found == {
        "h.0.up.weight": ("model", None),
        "h.1.up.weight": ("model", None),
        "h.0": ("data", None, "model"),
    }
    assert share((8, 4), found["h.0.up.weight"], dict(AXES)) == 1 / 4


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"h.*.down.weight": ["model", None]}, "h.*.down.weight: no such tensor; the model has h"),
        ({"h.0.up.weight": ["tensor", None]}, "the axis 'tensor'; use one of data, model, or add"),
        ({"h.0.up.weight": ["model"]}, "has 1 dims, the tensor (8, 4) has 2; give an axis or null"),
        ({"h.0.up.weight": ["model", "model"]}, "uses an axis for two dims (model, model)"),
        ({"h.0.up.weight": "model"}, "annotation of h.0.up.weight is 'model'; give a list"),
        ({"h.0": ["data", "model", None]}, "does not divide dim 1 of h.0 (sequences, 6, 4)"),
        (
            {"h.0.up.weight": [None, "model"], "*.up.weight": ["model", None]},
            "contradicts an earlier one of h.0.up.weight ([model, null])",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line_with_names_and_the_fix(given, said) -> None:
    with pytest.raises(StudyError) as error:
        resolve_annotations(given, AXES, SHAPES)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_equal_blocks_are_one_line() -> None:
    found = alike({"h.0": ["partial"], "h.1": ["partial"], "h.0.ln": ["shard 0"], "h.1.ln": ["x"]})
    assert found == {"h.*": ["partial"], "h.0.ln": ["shard 0"], "h.1.ln": ["x"]}


ONE = replace(MODEL, num_layers=1)
LAYERS = models.family(ONE).products(ONE)
RANKS, SEQUENCES = 2, 2


def prices(a_product=0.0, a_sum=0.0, a_gather=0.0, a_parameter=0.0) -> Prices:
    """Seconds for each unit of work, each number moved, and each parameter."""
    return Prices(
        ranks=RANKS,
        product=lambda tokens, inputs, outputs: a_product * tokens * inputs * outputs,
        all_reduce=lambda numbers: a_sum * numbers,
        gather=lambda numbers: a_gather * numbers,
        pieces=1,
        a_parameter=a_parameter,
    )


EVERY = chain(ONE, SEQUENCES, prices())
HALVES = [
    list(product(*([one.name for one in choices] for choices in half)))
    for half in (EVERY.choices[:2], EVERY.choices[2:])
]
WHOLE = ("whole", "whole")
ALL = [(*WHOLE, *cut) for cut in HALVES[1]] + [(*cut, *WHOLE) for cut in HALVES[0] if cut != WHOLE]
"""Cuts of attention's layers or of the others: between them all is whole."""


class Collectives(TorchDispatchMode):
    """Counts the numbers that functional collectives, which are DTensor's, sum up and gather."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, torch.distributed.tensor.DTensor) for kind in types):
            return NotImplemented  # it comes again with the local tensors
        if func.namespace == "_c10d_functional":
            name, gathers = func.__name__.partition(".")[0], "gather" in func.__name__
            self.moved[name] += args[0].numel() * (args[1] if gathers else 1)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("names", ALL, ids="-".join)
def test_dtensor_sends_what_the_cuts_cost(names) -> None:
    """Numbers in both passes of a block, over the axis that cuts it; `data` has one rank."""
    options = {"axes": {"data": 0, "model": RANKS}, "annotations": annotate(LAYERS, names)}
    strategy: Any = strategies.load("annotated", options)
    ids = torch.zeros((SEQUENCES, ONE.context), dtype=torch.int64)
    with fake_group(RANKS) as ranks:
        trainable = strategy.build(parts_of(strategy, ranks, build_model(ONE, 5)))
        with Collectives() as counted:
            trainable.propagate(Batch(ids, ids))
    picks = [[c.name for c in EVERY.choices[n]].index(name) for n, name in enumerate(names)]
    moved = counted.moved
    summed = moved["all_reduce"] + moved["reduce_scatter_tensor"]
    gathered = moved["all_gather_into_tensor"]
    for found, only in ((summed, prices(a_sum=1.0)), (gathered, prices(a_gather=1.0))):
        assert found == chain(ONE, SEQUENCES, only).seconds(picks)


def test_a_cut_is_annotated_by_its_weight_its_bias_and_what_goes_in_or_comes_out() -> None:
    assert annotate(LAYERS, ("whole", "whole", "columns", "rows")) == {
        "*.mlp.c_fc.weight": ["model", None],
        "*.mlp.c_fc.bias": ["model"],
        "*.ln_2": ["data", None, None],
        "*.mlp.c_proj.weight": [None, "model"],
        "*.mlp.c_proj": ["data", None, None],
    }


def best(most=inf, **each) -> Any:
    return search(ONE, SEQUENCES, prices(**each), most)


def test_links_memory_and_updates_decide_what_is_cut() -> None:
    slow, fast = (best(a_product=1e-9, a_sum=a, a_gather=a) for a in (1e-3, 1e-12))
    assert slow.knobs["annotations"] == {} and slow.share == 1
    assert {name for name in fast.knobs["annotations"] if name.endswith("weight")} == {
        f"*.{layer.name}.weight" for layer in LAYERS
    }
    assert fast.computing < 0 < fast.communicating and fast.share < 1
    less = best(most=0.9, a_product=1e-9, a_sum=1e-3, a_gather=1e-3)
    assert less.share <= 0.9 and less.communicating > 0
    assert best(most=0.1) is None
    dear = best(a_sum=1e-6, a_gather=1e-6, a_parameter=1.0)
    assert dear.share <= fast.share, "an update over a slower memory is worth the messages"


def test_layers_that_ranks_do_not_divide_stay_whole() -> None:
    own = prices()
    three = chain(ONE, SEQUENCES, Prices(3, own.product, own.all_reduce, own.gather, 1, 0.0))
    names = [[choice.name for choice in each] for each in three.choices]
    assert names == [["whole", "columns"], ["whole"], ["whole"], ["whole"]]


class Heard(Phases):
    """Counts the collectives of the forward pass."""

    def __init__(self) -> None:
        self.phase, self.count = "", 0

    def begin(self, phase: str, *, after_gradients: str | None = None) -> None:
        self.phase = phase

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        self.count += phase == COMMUNICATION and self.phase == FORWARD
        yield


@pytest.mark.parametrize("variant", [0, 1])
def test_without_annotations_no_rank_waits_for_another_before_the_gradients(variant) -> None:
    """Not for the mean loss either, which is put together after the clock."""
    strategy = strategies.load("annotated", dict(settings_of("annotated")[variant]))
    ids, heard = torch.zeros((2, MODEL.context), dtype=torch.int64), Heard()
    with fake_group(4) as ranks:
        trainable = strategy.build(parts_of(strategy, ranks, phases=heard))
        with heard_by(heard):
            trainable.step([Batch(ids, ids)])
    assert (heard.count > 0) == bool(variant)


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


def test_an_update_that_is_cut_leaves_the_passes_as_they_were(found) -> None:
    _, placements = found
    updates, parameters = placements["updates"], placements["parameters"]
    assert updates["h.0.mlp.c_fc.weight"] == ["shard 1", "shard 0"]
    assert updates["h.1.attn.c_attn.weight"] == ["replicate", "shard 0"]
    assert parameters["h.1.attn.c_attn.weight"] == ["replicate", "replicate"]


def test_a_step_gathers_each_weight_and_scatters_each_gradient_of_a_cut_update() -> None:
    """Whatever the micro-batches; a rank keeps its parts, and slots of these, between steps."""
    options = {"axes": {"data": 4}, "updates": {"*.mlp.c_fc.weight": ["data", None]}}
    strategy = strategies.load("annotated", options)
    ids = torch.zeros((2, ONE.context), dtype=torch.int64)
    with fake_group(4) as ranks:
        model = build_model(ONE, 5)
        trainable = strategy.build(parts_of(strategy, ranks, model))
        with Collectives() as sent:
            trainable.step([Batch(ids, ids)] * 3)
        part: Any = model.get_parameter("h.0.mlp.c_fc.weight")
        slots = trainable.optimiser.state[part]
    whole = 4 * ONE.width**2
    assert sent.moved["all_gather_into_tensor"] == sent.moved["reduce_scatter_tensor"] == whole
    assert part.to_local().numel() == whole // 4
    assert slots["exp_avg"].to_local().numel() == whole // 4


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
    assert main(["placements", "--study", str(study), "--cell", "single"]) == 2
    refused = capsys.readouterr()
    assert "name a cell of a strategy with annotations" in refused.err and refused.out == ""


def test_the_command_times_placing_on_other_numbers_of_devices(
    tmp_path, capsys, monkeypatch
) -> None:
    """Once each; nothing is said here of the seconds."""
    monkeypatch.setattr(statistics, "MIN_REPEATS", 1)
    study = tmp_path / "study.yaml"
    study.write_text(STUDY)
    given = ["placements", "--study", str(study), "--cell", "cut", "--devices"]
    assert main([*given, "6,24"]) == 0
    printed = capsys.readouterr().out
    assert "| 24 | data 12 x model 2 | " in printed
    assert re.search(r"\nslope of log seconds over log devices (-?\d+\.\d{4}) \[\1, \1\]", printed)
    assert main([*given, "6,7"]) == 2
    assert "do not make 7 ranks" in capsys.readouterr().err


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


def test_the_shipped_annotations_cause_ten_reduce_scatters_which_gloo_sends_twice() -> None:
    """Over Gloo each is an all-reduce and a cut, a limit that docs/strategies.md names."""
    runs = expand(load_study(Path("workflow/config/layouts/study.yaml")))
    run = next(run for run in runs if run.cell == "annotated")
    with Collectives() as sent:
        propagate(resolve(run))
    sequences = run.workload.global_batch // 2  # the axis `data` has two ranks
    activation = sequences * run.model.context * run.model.width
    assert sent.moved["reduce_scatter_tensor"] == 10 * activation
