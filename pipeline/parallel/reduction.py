"""Gradients reduced bucket by bucket, each as soon as the backward pass has its last one.

As torch's DistributedDataParallel does it, and for gradients that are wider than their weights, as
Megatron-LM does it in Python.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pipeline.parallel.collectives import collective
from pipeline.parallel.group import buckets, flattened
from pipeline.parallel.mesh import BUCKET_BYTES
from pipeline.parallel.types import Parts


class Reduction:
    """Reduces buckets in their order, so that it is the same on all ranks."""

    def __init__(self, buckets: Iterable[Bucket]) -> None:
        self.buckets, self._next = list(buckets), 0
        self._missing = [0] * len(self.buckets)
        for index, bucket in enumerate(self.buckets):
            parameters: Any = bucket.parameters
            for parameter in parameters:
                parameter.register_post_accumulate_grad_hook(partial(self._ready, index))

    def begin(self, passes: int, *, during: bool = True) -> None:
        """A step of so many backward passes begins; buckets are reduced `during` the last or after.

        After it, by `finish`, where what the pass sends must not wait behind them on the wire.
        Collective: rows that the last step updated are gathered.
        """
        # Each of the passes gives each parameter its gradient once; one more pass never comes.
        expected = passes if during else passes + 1
        self._missing = [expected * len(bucket.parameters) for bucket in self.buckets]
        self._next = 0
        self._gather()

    def _gather(self) -> None:
        # In the order in which a forward pass needs them.
        for bucket in self.buckets[::-1]:
            bucket.gather()

    def _ready(self, index: int, parameter: Tensor) -> None:
        self._missing[index] -= 1
        while self._next < len(self.buckets) and not self._missing[self._next]:
            self.buckets[self._next].reduce()
            self._next += 1

    def finish(self) -> None:
        """Reduce what no backward pass has, and wait for all."""
        for bucket in self.buckets[self._next :]:
            bucket.reduce()
        for bucket in self.buckets:
            bucket.reduced()

    def publish(self) -> None:
        """Have the rows of all ranks in the whole parameters. Collective."""
        self._gather()
        for bucket in self.buckets:
            bucket.arrive()


class Bucket:
    """Parameters whose gradients travel together.

    `reduced_as` is the type in which they travel, None for their own. `count`, where it is given,
    divides their sum in place of the number of ranks.
    """

    def __init__(
        self, parameters: list[nn.Parameter], ranks: dist.ProcessGroup, reduced_as: Any,
        count: int = 0,
    ) -> None:  # fmt: skip
        self.parameters, self.ranks, self.reduced_as = parameters, ranks, reduced_as
        self.count = count or ranks.size()

    def reduce(self) -> None:
        """Begin to add up the gradients of all ranks. Collective."""
        raise NotImplementedError

    def reduced(self) -> None:
        """Wait for them. Collective."""
        raise NotImplementedError

    def gather(self) -> None:
        """Begin to gather what other ranks updated, where not each rank updates all. Collective."""

    def arrive(self) -> None:
        """Have what was gathered."""


class MeanBucket(Bucket):
    """Gradients that become views of their mean over all ranks."""

    _sent: tuple[Tensor, torch.dtype, Any] | None = None

    @collective
    def reduce(self) -> None:
        """Begin to add up the gradients of all ranks, and drop this rank's own."""
        gradients: Any = [parameter.grad for parameter in self.parameters]
        # Divided before they are added, as DDP does: a sum of scaled gradients may overflow.
        mean = flattened(gradients).div_(self.count)
        flat = mean.to(self.reduced_as or mean.dtype)
        for parameter in self.parameters:
            parameter.grad = None
        self._sent = flat, mean.dtype, dist.all_reduce(flat, group=self.ranks, async_op=True)

    @collective
    def reduced(self) -> None:
        """Wait, and hand the mean gradients to their parameters."""
        assert self._sent is not None
        (flat, dtype, work), self._sent = self._sent, None
        work.wait()
        pieces = torch.split(flat.to(dtype), [parameter.numel() for parameter in self.parameters])
        for parameter, piece in zip(self.parameters, pieces, strict=True):
            parameter.grad = piece.view_as(parameter)


def averaged(
    parts: Parts, ranks: dist.ProcessGroup | None = None, bucket_bytes: float = BUCKET_BYTES
) -> dict[str, Any]:
    """Options of the shared step with which its last backward pass averages over a group.

    By torch's DDP, or by our own buckets where gradients are wider than weights. Over all ranks
    unless the group is given. Collective.
    """
    ranks = ranks or dist.group.WORLD
    assert ranks is not None
    if parts.precision.wide_gradients:
        return {"reduction": mean_of(parts, ranks, bucket_bytes)}
    wrapped = DistributedDataParallel(
        parts.model,
        process_group=ranks,
        # torch's own default has a smaller first bucket, which it has under no other size.
        bucket_cap_mb=None if bucket_bytes == BUCKET_BYTES else bucket_bytes / 2**20,
        gradient_as_bucket_view=True,
    )
    # Buffers are constants here, such as the frequencies of rotary positions.
    wrapped.broadcast_buffers = False
    return {"forward": wrapped}


def mean_of(
    parts: Parts, ranks: dist.ProcessGroup, bucket_bytes: float = BUCKET_BYTES
) -> Reduction:
    """Mean gradients over a group, in buckets of the last parameters first, as DDP has them."""
    members = buckets(list(parts.model.parameters())[::-1], bucket_bytes)
    return Reduction(MeanBucket(some, ranks, parts.precision.reduced) for some in members)
