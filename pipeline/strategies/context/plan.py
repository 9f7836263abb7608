"""Context parallelism: positions of each sequence are cut (Llama 3, 2024), with a data axis.

Every rank holds all weights and two pieces of each sequence, an early and a late one, so that all
compare as many queries with keys. Each block gathers the keys and values of all pieces, and its
backward pass adds up their gradients and scatters them (arXiv 2407.21783, section 3.3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pipeline import models
from pipeline.cost.traffic import Traffic, ring
from pipeline.errors import StudyError, refuse
from pipeline.parallel.mesh import BUCKET_BYTES, CONTEXT, DATA, Layout, axis_size, nearest
from pipeline.parallel.types import Parts, Trainable
from pipeline.precision.widths import widths
from pipeline.strategies.base import Footprint, Strategy, along
from pipeline.study.spec import RunSpec, WorldSpec

PIECES = 2
"""Pieces of a sequence on each rank."""


@dataclass(frozen=True)
class Context(Strategy):
    """`ranks`: size of the context axis, 0 for all ranks; the rest are data-parallel."""

    variants = ({"ranks": 4},)
    published = False
    use = "activations of long sequences do not fit one device"
    split = "activations, by positions of each sequence"

    ranks: int = 2

    def layout(self, world: WorldSpec) -> Layout:
        """Axes (data, context), neighbours along the latter; StudyError where they do not fit."""
        size = axis_size("context", CONTEXT, self.ranks, world)
        return Layout.of(world, (DATA, world.size // size), (CONTEXT, size))

    def check_spec(self, spec: RunSpec) -> None:
        """Raise StudyError where the model's sequences are not cut, or not into equal pieces."""
        size, tokens = dict(self.layout(spec.world).axes)[CONTEXT], spec.model.context
        able = False
        with suppress(StudyError):  # of a model of which a tensor axis cuts nothing
            able = models.axis_cuts(spec.model).sequences
        near = ""
        if tokens % PIECES == 0:
            near = f"the nearest option ranks is {nearest(size, tokens // PIECES)}, or "
        refuse(StudyError, f"{spec.run_id}: ", [
            (not able,
             f"strategy context cuts sequences, which family {spec.model.family} does not know how "
             "to do; use another strategy"),
            (tokens % (PIECES * size),
             f"{size} context ranks with {PIECES} pieces each do not divide {tokens} tokens of a "
             f"sequence; {near}set model.context to a multiple of {PIECES * size}"),
        ])  # fmt: skip

    def footprint(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Footprint:
        """Its tokens' share of activations, and keys and values of all tokens.

        A block keeps 16 values of the width of a token, 2 of them of norms. Here it keeps one more,
        since outputs of pieces are put together, and 2 of each token of all ranks. The masks of its
        pieces are there once for all blocks.
        """
        size, width = dict(layout.axes)[CONTEXT], widths(spec.precision)
        product, wide = width.product, width.wide_gradients
        block = 2 * width.stream + 14 * product
        kept = 1 / size + product * (1 / size + 2) / block
        several = layout.num_processes > 1
        mask = (PIECES * size + 1) * (spec.model.context // (PIECES * size)) ** 2
        return Footprint(
            buffer_bytes=min(BUCKET_BYTES, gradients) if wide and several else 0,
            holds_gradients=several and not wide,
            activation_share=kept,
            logit_share=1 / size,
            gathered_bytes=product * mask,
            input_share=1 / size,
            block_share=kept,
        )

    def sends(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Sequence[Traffic]:
        """Keys and values along the context axis, and one all-reduce of the gradients over all.

        Both are gathered in each block, once more where it is recomputed, and the sums of their
        gradients scattered.
        """
        times = 4 + 2 * spec.recomputed_share
        tokens = spec.global_batch_tokens // layout.data_parallel
        activation = tokens * spec.model.width * widths(spec.precision).product
        exchanged, formula = times * spec.model.num_layers * activation, f"{times:g}L A"
        messages = times / 4 * spec.model.num_layers * spec.workload.accumulation_steps
        if layout.data_parallel == 1:
            total, both = exchanged + 2 * gradients, f"(n-1)/n ({formula} + 2 G)"
            return along(layout, CONTEXT, both, total, messages, halves=True)
        all_ranks = " x ".join(name for name, size in layout.axes if size > 1)
        reduced = ring(2 * gradients, layout.num_processes)
        buckets = max(1.0, gradients / BUCKET_BYTES)
        return (
            *along(layout, CONTEXT, f"(n-1)/n {formula}", exchanged, messages, halves=True),
            Traffic(all_ranks, "2(n-1)/n G", reduced, buckets, overlap=True),
        )

    def build(self, parts: Parts) -> Trainable:
        """Cut the sequences along the context axis, average the gradients over all ranks."""
        from pipeline.strategies.context.step import ContextStepper

        return ContextStepper(parts)
