"""Cuts of a block's linear layers: what is annotated, what DTensor then sends, and the best."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from math import inf
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline import models, strategies
from pipeline.cost.sharding import Prices
from pipeline.errors import StudyError
from pipeline.models.build import build_model
from pipeline.parallel.types import Batch
from pipeline.strategies.annotated.annotations import resolve
from pipeline.strategies.annotated.search import annotate, chain, search
from pipeline.study.spec import RunSpec, WorkloadSpec, WorldSpec
from tests.ranks import MODEL, OPTIMISER, fake_group, parts_of

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


class Numbers(TorchDispatchMode):
    """Counts the numbers that functional collectives, which are DTensor's, sum up and gather."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, torch.distributed.tensor.DTensor) for kind in types):
            return NotImplemented  # it comes again with the local tensors
        name = str(func)
        if name.startswith("_c10d_functional.all_gather"):
            self.moved["gather"] += args[0].numel() * args[1]
        elif name.startswith(("_c10d_functional.all_reduce", "_c10d_functional.reduce_scatter")):
            self.moved["sum"] += args[0].numel()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("names", ALL, ids="-".join)
def test_dtensor_sends_what_the_cuts_cost(names) -> None:
    """Numbers in both passes of a block, over the axis that cuts it; `data` has one rank."""
    options = {"axes": {"data": 0, "model": RANKS}, "annotations": annotate(LAYERS, names)}
    strategy: Any = strategies.load("annotated", options)
    ids = torch.zeros((SEQUENCES, ONE.context), dtype=torch.int64)
    with fake_group(RANKS) as ranks:
        trainable = strategy.build(parts_of(strategy, ranks, build_model(ONE, 5)))
        with Numbers() as counted:
            trainable.propagate(Batch(ids, ids))
    picks = [[c.name for c in EVERY.choices[n]].index(name) for n, name in enumerate(names)]
    for kind, only in (("sum", prices(a_sum=1.0)), ("gather", prices(a_gather=1.0))):
        assert counted.moved[kind] == chain(ONE, SEQUENCES, only).seconds(picks), kind


def test_every_cut_is_one_that_annotations_take() -> None:
    shapes, axes = models.tensor_shapes(ONE), (("data", 2), ("model", RANKS))
    for names in ALL:
        resolve(annotate(LAYERS, names), axes, shapes)
    assert annotate(LAYERS, ("whole", "whole", "columns", "rows")) == {
        "*.mlp.c_fc.weight": ["model", None],
        "*.mlp.c_fc.bias": ["model"],
        "*.ln_2": ["data", None, None],
        "*.mlp.c_proj.weight": [None, "model"],
        "*.mlp.c_proj": ["data", None, None],
    }


def found(most=inf, **each) -> Any:
    return search(ONE, SEQUENCES, prices(**each), most)


def test_links_memory_and_updates_decide_what_is_cut() -> None:
    slow, fast = (found(a_product=1e-9, a_sum=a, a_gather=a) for a in (1e-3, 1e-12))
    assert slow.knobs["annotations"] == {} and slow.share == 1
    assert {name for name in fast.knobs["annotations"] if name.endswith("weight")} == {
        f"*.{layer.name}.weight" for layer in LAYERS
    }
    assert fast.computing < 0 < fast.communicating and fast.share < 1
    less = found(most=0.9, a_product=1e-9, a_sum=1e-3, a_gather=1e-3)
    assert less.share <= 0.9 and less.communicating > 0
    assert found(most=0.1) is None
    dear = found(a_sum=1e-6, a_gather=1e-6, a_parameter=1.0)
    assert dear.share <= fast.share, "an update over a slower memory is worth the messages"


def test_layers_that_ranks_do_not_divide_stay_whole() -> None:
    own = prices()
    three = chain(ONE, SEQUENCES, Prices(3, own.product, own.all_reduce, own.gather, 1, 0.0))
    names = [[choice.name for choice in each] for each in three.choices]
    assert names == [["whole", "columns"], ["whole"], ["whole"], ["whole"]]


def test_micro_batches_of_one_sequence_are_refused() -> None:
    """DTensor fails on them in the first view of a batch."""
    world = WorldSpec(2, 1, "cpu", "gloo", "loopback")
    work = WorkloadSpec(4, 4, 3, 1, "strong", 0)
    spec = RunSpec("x", "x", "annotated", "fp32", world, ONE, OPTIMISER, work, 0, 0)
    strategy = strategies.load("annotated", {"axes": {"data": 0, "model": 2}})
    with pytest.raises(StudyError, match="takes no micro-batches of one sequence in all"):
        strategy.check_spec(spec)
    strategy.check_spec(replace(spec, workload=replace(work, accumulation_steps=2)))
