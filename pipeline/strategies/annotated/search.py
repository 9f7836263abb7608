"""The annotations of a block's linear layers that `plan --auto` chooses between (no torch).

Each layer is whole on all ranks of the axis `model`, or cut by output features (columns) or by
input features (rows). Outputs of modules are annotated wherever DTensor would otherwise choose what
to do with a part, so that it sends what is counted here (tests/unit/strategies/test_annotated.py).
Not offered are cuts of sequences, of embedding and output layer, and of attention, whose query, key
and value come from one product. What lies between the layers counts as whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from pipeline import models
from pipeline.cost.sharding import Chain, Choice, Cuts, Prices
from pipeline.models import Product
from pipeline.parallel.mesh import DATA
from pipeline.strategies.annotated.plan import AXIS
from pipeline.study.spec import ModelSpec

WHOLE, COLUMNS, ROWS = "whole", "columns", "rows"

FEATURES, PARTIAL = "features", "partial"
"""Of an activation a rank has some of the features, or a part of the sum; else it is whole."""
TAKES = {WHOLE: WHOLE, COLUMNS: WHOLE, ROWS: FEATURES}
GIVES = {WHOLE: WHOLE, COLUMNS: FEATURES, ROWS: PARTIAL}
RETURNS = {WHOLE: WHOLE, COLUMNS: PARTIAL, ROWS: FEATURES}
"""The input that a layer needs, the output that it gives, the gradient of its input."""


def chain(model: ModelSpec, sequences: int, prices: Prices) -> Chain:
    """The linear layers of a block, with the seconds that a block adds to a step."""
    layers, ranks = models.family(model).products(model), prices.ranks
    heads = models.axis_cuts(model).heads.values()
    tokens = sequences * model.context

    def moved(numbers: int, have: str, need: str) -> float:
        if have in (WHOLE, need):  # a part of it lies here
            return 0.0
        # A part of a sum becomes one of the features by an all-reduce and a cut, as Gloo does it.
        one = prices.all_reduce if have == PARTIAL else prices.gather
        return prices.pieces * one(numbers)

    def choices(number: int, layer: Product) -> list[Choice]:
        names = [WHOLE]
        if layer.given and layer.outputs % ranks == 0:
            names.append(COLUMNS)
        # Behind a cut by rows attention's backward pass is cut by heads.
        if layer.inputs % ranks == 0 and not any(count % ranks for _, count in heads):
            names.append(ROWS)
        made = []
        for name in names:
            outputs = layer.outputs // (ranks if name == COLUMNS else 1)
            inputs = layer.inputs // (ranks if name == ROWS else 1)
            kept = outputs * (inputs + 1)
            seconds = prices.pieces * prices.product(tokens, inputs, outputs)
            seconds += prices.a_parameter * kept
            if number == 0:  # what lies before the block and behind it is whole
                seconds += moved(layer.inputs * tokens, RETURNS[name], WHOLE)
            if number == len(layers) - 1:
                seconds += moved(layer.outputs * tokens, GIVES[name], WHOLE)
            made.append(Choice(name, seconds, kept))
        return made

    def between(one: Product, two: Product, first: str, second: str) -> float:
        """Seconds of both passes from the output of a layer to the input of the next one."""
        if two.given:
            forward = moved(one.outputs * tokens, GIVES[first], WHOLE)
            return forward + moved(two.inputs * tokens, RETURNS[second], WHOLE)
        by_feature = _by_feature(one, two)
        forward = moved(one.outputs * tokens, GIVES[first], TAKES[second] if by_feature else WHOLE)
        own = FEATURES if by_feature and first == COLUMNS else WHOLE
        return forward + moved(one.outputs * tokens, RETURNS[second], own)

    every = [choices(*each) for each in enumerate(layers)]
    moves = [
        [[between(one, two, i.name, j.name) for j in every[n + 1]] for i in every[n]]
        for n, (one, two) in enumerate(pairwise(layers))
    ]
    return Chain(every, moves)


def annotate(layers: Sequence[Product], names: Sequence[str]) -> dict[str, list[str | None]]:
    """The annotations that cut the layers of every block so."""
    made: dict[str, list[str | None]] = {}
    for number, (layer, name) in enumerate(zip(layers, names, strict=True)):
        if name == COLUMNS:
            made[f"*.{layer.name}.weight"] = [AXIS, None]
            made[f"*.{layer.name}.bias"] = [AXIS]
        elif name == ROWS:
            made[f"*.{layer.name}.weight"] = [None, AXIS]
        if layer.given and name != WHOLE:
            made[f"*.{layer.given}"] = [DATA, None, AXIS if name == ROWS else None]
        after = layers[number + 1] if number + 1 < len(layers) else None
        if after and _by_feature(layer, after) and names[number + 1] == ROWS:
            if name != COLUMNS:
                made[f"*.{layer.name}"] = [DATA, None, AXIS]
        elif name != WHOLE:
            made[f"*.{layer.name}"] = [DATA, None, None]
    return made


def _by_feature(one: Product, two: Product) -> bool:
    """True where each feature of the second layer's input is made of one that the first gives."""
    return not two.given and one.outputs == two.inputs


def search(model: ModelSpec, sequences: int, prices: Prices, most: float) -> Cuts | None:
    """The cheapest annotations of a model, for micro-batches of so many sequences.

    A rank keeps at most the share `most` of all parameters; None where none keep so few.
    """
    block, layers = chain(model, sequences, prices), models.family(model).products(model)
    whole, a_block = [0] * len(layers), models.num_parameters(model) / model.num_layers
    picks = block.cheapest(block.kept(whole) - (1 - most) * a_block)
    if picks is None:
        return None
    computing = replace(prices, all_reduce=_free, gather=_free, a_parameter=0.0)
    sending = replace(prices, product=_free, a_parameter=0.0)
    changes = []
    for part in (computing, sending):
        only = chain(model, sequences, part)
        changes.append(model.num_layers * (only.seconds(picks) - only.seconds(whole)))
    names = [block.choices[n][i].name for n, i in enumerate(picks)]
    return Cuts(
        knobs={"axes": {DATA: 0, AXIS: prices.ranks}, "annotations": annotate(layers, names)},
        computing=changes[0],
        communicating=changes[1],
        share=1 - (block.kept(whole) - block.kept(picks)) / a_block,
    )


def _free(*sizes: int) -> float:
    return 0.0
