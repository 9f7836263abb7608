"""Sequences cut along a context axis: each block gathers the keys and values of all positions.

As for Llama 3 (arXiv 2407.21783, section 3.3.2): of 2 n pieces of a sequence rank r of n has r and
2 n - 1 - r, so that the causal mask leaves all ranks equal work. One all-gather a block is enough,
and torch's own kernel then takes one softmax over all keys, as on a single device. Ring attention
(arXiv 2310.01889) passes pieces on instead and puts their softmaxes together: as many bytes, less
memory, and a second implementation of attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.parallel.group import Group, across, mesh_of
from pipeline.parallel.mesh import CONTEXT, DATA
from pipeline.parallel.reduction import averaged
from pipeline.parallel.step import Stepper
from pipeline.parallel.types import Batch, Parts
from pipeline.strategies.context.plan import PIECES
from pipeline.strategies.tensor.step import OwnPositions, TensorAxis


class ContextAxis(TensorAxis):
    """The ranks that hold the pieces of each sequence; `gather` and `scatter` are in its order."""

    def __init__(self, ranks: dist.ProcessGroup) -> None:
        super().__init__(ranks, sequence=True, reduced=None)
        rank = ranks.rank()
        self.pieces = (rank, PIECES * self.size - 1 - rank)

    def own(self, whole: Tensor) -> Tensor:
        """This rank's tokens of (sequences, context, ...)."""
        pieces = whole.chunk(PIECES * self.size, dim=1)
        return torch.cat([pieces[piece] for piece in self.pieces], dim=1)

    def own_positions(self, positions: Tensor) -> Tensor:
        """(sequences, context) or, of text in one piece, (tokens of a rank,) -> (..., tokens)."""
        if positions.dim() > 1:
            return self.own(positions)  # documents may begin on another rank
        whole = torch.arange(self.size * len(positions), device=positions.device)
        return self.own(whole.unsqueeze(0)).squeeze(0)

    def gather(self, part: Tensor) -> Tensor:
        """Whole sequences (sequences, context, ...) of this rank's tokens of each."""
        by_rank = super().gather(part).chunk(PIECES * self.size, dim=1)
        # Early pieces come in the order of the ranks, late ones against it.
        return torch.cat((*by_rank[::2], *by_rank[::-2]), dim=1)

    def scatter(self, whole: Tensor) -> Tensor:
        """This rank's tokens of the sum over all ranks of (sequences, context, ...)."""
        pieces = whole.chunk(PIECES * self.size, dim=1)
        # Of each rank its early piece, then its late one, as `own` lays them out.
        pairs = zip(pieces[: self.size], reversed(pieces[self.size :]), strict=True)
        return super().scatter(torch.cat([piece for pair in pairs for piece in pair], dim=1))

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean over the ranks, in the same memory."""
        return self.add(tensor).div_(self.size)

    def cut(self, microbatches: Sequence[Batch]) -> list[Batch]:
        """This rank's tokens of each; borders of documents stay those of whole sequences."""
        return [
            batch._replace(inputs=self.own(batch.inputs), targets=self.own(batch.targets))
            for batch in microbatches
        ]

    def attend(
        self, inner: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Attention of this rank's tokens to those before them on all ranks.

        Query, key, value and output are (sequences, heads, this rank's tokens, head width), of the
        heads that a tensor axis leaves this rank;
        `inner` makes the output of such, the mask is one of whole sequences or None.
        """
        ours = torch.cat((k.transpose(1, 2), v.transpose(1, 2)))
        k, v = across(ours, self.gather, self.scatter).transpose(1, 2).chunk(2)
        outputs = []
        for piece, queries in zip(self.pieces, q.chunk(PIECES, dim=2), strict=True):
            start = piece * queries.shape[2]
            stop = start + queries.shape[2]
            if mask is None:
                rows = later(start, stop, q.dtype, q.device)
            else:
                rows = mask[:, :, start:stop, :stop]
            output = inner(queries, k[:, :, :stop], v[:, :, :stop], rows)
            outputs.append(output.transpose(1, 2))
        # Laid out by tokens, as the kernel does it, so that the next product needs no copy.
        return torch.cat(outputs, dim=1).transpose(1, 2)


@cache
def later(start: int, stop: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Mask (stop - start, stop) that is added to scores of positions from `start` up to `stop`.

    One for all blocks, which keep it for their backward passes: of a mask of truth values each
    would keep a copy.
    """
    lowest = torch.full((stop - start, stop), -math.inf, dtype=dtype, device=device)
    return lowest.triu(start + 1)  # row 0 is position `start`, and sees all up to itself


def cut_sequences(model: nn.Module, axis: ContextAxis) -> None:
    """Have a model take this rank's tokens of each sequence, and borders of whole ones."""
    any_model: Any = model
    # Not by `tensor_cuts`, which a model of transformers reads from layers that may be cut by now.
    if hasattr(model, "cut_sequences"):
        any_model.cut_sequences(axis)
        return
    name = any_model.tensor_cuts.positions
    places: Any = model.get_submodule(name)

    def own(positions: Tensor) -> Tensor:
        tokens = axis.own_positions(positions)
        # Sequence parallelism has cut the embedding before: then its part of those.
        return places.own(tokens) if isinstance(places, OwnPositions) else tokens

    model.set_submodule(name, OwnPositions(places.weight, own))
    any_model.wrap_attention(axis.attend)


class ContextStepper(Stepper):
    """The shared step over cut sequences; a rank's loss is the mean over its tokens.

    All ranks have as many, so the mean over the ranks is that over the global batch.
    """

    def __init__(self, parts: Parts, zero_stage: int) -> None:
        """Cut the sequences; gradients are averaged over both axes at once. Collective.

        `zero_stage`: 0, or over both axes 2 or 3 of ZeRO, by FSDP2 as with strategy sharded.
        """
        group, mesh = Group.join(parts.layout), mesh_of(parts.layout)
        self.axis = ContextAxis(mesh[CONTEXT].get_group())
        cut_sequences(parts.model, self.axis)
        if not zero_stage:
            super().__init__(parts.prepare(), group, **averaged(parts))
            return
        from pipeline.strategies.sharded import step as sharded  # loads FSDP2

        both = mesh_of(parts.layout.joined(DATA, CONTEXT))
        root = sharded.shard(parts.model, both, parts, reshard=zero_stage == 3)
        super().__init__(
            parts.prepare(narrow=False),
            group,
            accumulating=lambda: sharded.without_reduction(root),
            norm=sharded.norm_of,
        )

    def accumulate(self, microbatches: Sequence[Batch]) -> Tensor:
        """Passes over this rank's tokens."""
        return super().accumulate(self.axis.cut(microbatches))
