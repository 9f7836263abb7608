"""Context parallelism: positions of each sequence are cut (Llama 3, 2024), with a data axis.

Every rank holds all weights and two pieces of each sequence, an early and a late one, so that all
compare as many queries with keys. Each block gathers the keys and values of all pieces, and its
backward pass adds up their gradients and scatters them (arXiv 2407.21783, section 3.3.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from pipeline import models
from pipeline.cost.traffic import ALL_REDUCE, HALVES, Traffic, ring
from pipeline.errors import StudyError, refuse
from pipeline.models import FP32
from pipeline.parallel import mesh
from pipeline.parallel.mesh import BUCKET_BYTES, CONTEXT, DATA, PIPELINE, Layout
from pipeline.parallel.types import Parts, Trainable
from pipeline.precision.widths import widths
from pipeline.strategies.base import Footprint, Strategy, along, bucket_bytes
from pipeline.strategies.sharded import plan as sharded
from pipeline.study.spec import RunSpec, WorldSpec

PIECES = 2
"""Pieces of a sequence on each rank."""


def check_context_axis(spec: RunSpec, option: str, size: int, tensor: int = 1) -> None:
    """Raise StudyError where so many ranks do not cut the model's sequences into equal pieces.

    `tensor`: ranks of a tensor axis over which sequence parallelism cuts each rank's tokens.
    """
    tokens, able = spec.model.context, False
    with suppress(StudyError):  # of a model of which a tensor axis cuts nothing
        able = models.axis_cuts(spec.model).keys > 0
    each = math.lcm(PIECES, tensor)
    near = ""
    if tokens % each == 0:
        near = f"the nearest option {option} is {mesh.nearest(size, tokens // each)}, or "
    beside = f" beside {tensor} tensor ranks" if tensor > 1 else ""
    refuse(StudyError, f"{spec.run_id}: ", [
        (not able,
         f"strategy {spec.strategy} cuts sequences over a context axis, which is not known to work "
         f"for {spec.model.architecture or spec.model.family} as configured; use another strategy"),
        (tokens % (each * size),
         f"{size} context ranks with {PIECES} pieces each{beside} do not divide {tokens} tokens of "
         f"a sequence; {near}set model.context to a multiple of {each * size}"),
    ])  # fmt: skip


def kept_of_cut_sequences(spec: RunSpec, ranks: int, heads: int = 1, kept: float = 1.0) -> float:
    """Share of a block's activations on a rank of the axis: of its tokens, and keys and values.

    Here a block keeps one value of the width of a token more, since outputs of pieces are put
    together, and 2 of each token of all ranks. Where heads share keys and values, torch's kernel
    has those that both pieces see repeated for each head. A tensor axis leaves a rank the share
    `kept` of all but these, and cuts these over so many ranks as it does `heads`.
    """
    width, model = widths(spec.precision), spec.model
    block = models.family(model).kept(model, 1, width).block / model.context / model.width
    grouped = models.axis_cuts(model).keys < model.width
    return kept / ranks + width.product * ((1 + grouped) / ranks + 2) / heads / block


def mask_bytes(spec: RunSpec, ranks: int) -> int:
    """The masks of a rank's pieces, which are there once for all blocks."""
    length = spec.model.context // (PIECES * ranks)
    return widths(spec.precision).product * (PIECES * ranks + 1) * length**2


def sent_along(
    spec: RunSpec, layout: Layout, *, layers: float, pieces: int, reduced: float, formula: str,
    halves: bool, heads: int = 1, buckets: float = 1.0, overlap: bool = False,
) -> Sequence[Traffic]:  # fmt: skip
    """Keys and values along the context axis; gradients over the data and the context axis at once.

    In each of `pieces` micro-batches a block gathers keys and values, twice if it is recomputed,
    and scatters the sums of their gradients. `heads`: ranks of a tensor axis, which cuts these.
    `reduced`: bytes of gradients of which (n-1)/n is sent, by all-reduces or, with `halves`, by
    reduce-scatters and all-gathers; `formula` is what they are, as `2 G`.
    """
    keys, exchanged, messages = of_keys(spec, layout, layers, pieces, heads)
    if layout.data_parallel == 1:  # all goes along one axis
        both = f"(n-1)/n ({keys} + {formula})"
        return along(layout, CONTEXT, both, exchanged + reduced, messages, halves=True)
    axis = " x ".join(n for n, size in layout.axes if size > 1 and n in (DATA, CONTEXT))
    stated = f"(n-1)/n ({formula})" if halves else "2(n-1)/n G"
    sent, kind = ring(reduced, layout.averaging), HALVES if halves else ALL_REDUCE
    return (
        *along(layout, CONTEXT, f"(n-1)/n {keys}", exchanged, messages, halves=True),
        Traffic(axis, stated, sent, buckets, kind, overlap),
    )


def of_keys(
    spec: RunSpec, layout: Layout, layers: float, pieces: int, heads: int
) -> tuple[str, float, float]:
    """Formula, bytes and messages of what goes along the context axis, (n-1)/n; see `sent_along`.

    For the router's loss of a mixture, of which a sequence has one, ranks add up what of each
    sequence goes to each expert, and the probabilities of it; beside stages there is none.
    """
    times, model = 4 + 2 * spec.recomputed_share, spec.model
    width, keys = widths(spec.precision).product, models.axis_cuts(model).keys
    tokens = spec.global_batch_tokens // layout.data_parallel
    shares = model.width / (keys or model.width) * heads  # of a model without keys none are sent
    formula = f"{times:g}L A" + f"/{shares:g}" * (shares != 1)
    messages = times / 4 * layers * pieces
    exchanged = times * layers * tokens * keys * width / heads
    mixture = models.experts(model)
    if mixture is None or layout.size(PIPELINE) > 1:
        return formula, exchanged, messages
    balance = 2 * 2 * FP32 * mixture.count * spec.workload.global_batch // layout.data_parallel
    return f"{formula} + 2 S", exchanged + balance, messages + pieces


@dataclass(frozen=True)
class Context(Strategy):
    """`ranks`: size of the context axis, 0 for all ranks; the rest are data-parallel.

    `zero_stage`: 0, or over both axes 2 or 3 of ZeRO, by FSDP2 as with strategy sharded; hybrid has
    stage 1.
    """

    choices = (("zero_stage", (0, 1, 2, 3)),)
    variants = ({"ranks": 4}, {"zero_stage": 3})
    published = False
    use = "activations of long sequences do not fit one device"

    ranks: int = 2
    zero_stage: int = 0

    @property
    def cuts_weights(self) -> bool:
        """Rows of all weights, under ZeRO."""
        return self.zero_stage > 1

    @property
    def split(self) -> str:
        """Positions, and under ZeRO what its stage shards."""
        what = "activations, by positions of each sequence"
        more = sharded.Sharded(self.zero_stage).split if self.zero_stage else ""
        return f"{what}; {more} over all ranks" if more else what

    def check(self) -> None:
        """Besides what FSDP2 needs of torch."""
        super().check()
        if self.zero_stage:
            sharded.Sharded(self.zero_stage).check()

    def check_precision(self, name: str) -> None:
        """Besides, what FSDP2 trains in."""
        super().check_precision(name)
        if self.zero_stage:
            sharded.Sharded(self.zero_stage).check_precision(name)

    def layout(self, world: WorldSpec) -> Layout:
        """Axes (data, context), neighbours along the latter; StudyError where they do not fit."""
        size = mesh.axis_size("context", CONTEXT, self.ranks, world)
        if self.zero_stage == 1:
            raise StudyError(
                f"context option zero_stage 1: strategy hybrid has it beside {size} context ranks; "
                f"use that with pipeline 1, tensor 1, context {size}, zero_stage 1, or set "
                "zero_stage to 2"
            )
        return Layout.of(world, (DATA, world.size // size), (CONTEXT, size))

    def check_spec(self, spec: RunSpec) -> None:
        """Raise StudyError where the model's sequences are not cut, or not into equal pieces."""
        check_context_axis(spec, "ranks", self.layout(spec.world).size(CONTEXT))

    def footprint(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Footprint:
        """Its tokens' share of activations, and keys and values of all tokens."""
        size, wide = layout.size(CONTEXT), widths(spec.precision).wide_gradients
        kept, several = kept_of_cut_sequences(spec, size), layout.num_processes > 1
        averaged = Footprint(
            buffer_bytes=bucket_bytes(spec.model, gradients) if wide and several else 0,
            holds_gradients=several and not wide,
        )
        if self.zero_stage:
            sizes = spec.model.num_layers, *sharded.block_and_rest(spec.model)
            averaged = sharded.shards_by_fsdp(spec, self.zero_stage, layout.averaging, *sizes)
        return replace(
            averaged,
            activation_share=kept,
            logit_share=1 / size,
            gathered_bytes=averaged.gathered_bytes + mask_bytes(spec, size),
            input_share=1 / size,
            block_share=kept,
        )

    def sends(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Sequence[Traffic]:
        """Keys and values along the context axis, and over all ranks an all-reduce, or shards."""
        payload, formula, buckets = 2.0 * gradients, "2 G", max(1.0, gradients / BUCKET_BYTES)
        if self.zero_stage:
            payload, formula, buckets = sharded.gathered_by_fsdp(
                spec, self.zero_stage, gradients, *sharded.block_and_rest(spec.model)
            )
        return sent_along(
            spec,
            layout,
            layers=spec.model.num_layers,
            pieces=spec.workload.accumulation_steps,
            reduced=payload,
            formula=formula,
            halves=bool(self.zero_stage),
            buckets=buckets,
            overlap=not self.zero_stage,
        )

    def build(self, parts: Parts) -> Trainable:
        """Cut the sequences along the context axis, average the gradients over all ranks."""
        from pipeline.strategies.context.step import ContextStepper

        return ContextStepper(parts, self.zero_stage)
