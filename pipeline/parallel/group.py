"""torch's process group: joining it as the spec says, and leaving it without an abort."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh

from pipeline.errors import LaunchError
from pipeline.models import FP32
from pipeline.parallel.collectives import collective
from pipeline.parallel.mesh import BUCKET_BYTES, Layout

T = TypeVar("T", bound=Tensor)
Sending = Callable[[Tensor], Tensor]
"""A collective: this rank's tensor to its result."""


@dataclass(frozen=True)
class Ranks:
    """This process's place among the ranks of a run, which is alone here.

    What joins several has their collectives, by torch (`Group`) or by a library of its own.
    """

    rank: int = 0
    size: int = 1

    def mean(self, value: Tensor) -> Tensor:
        """The mean of a tensor over all ranks; `value` may be overwritten. Collective."""
        return value

    def barrier(self) -> None:
        """Return when every rank has come here. Collective."""

    def leave(self) -> None:
        """Part from the other ranks. Collective."""


ALONE = Ranks()


@dataclass(frozen=True)
class Group(Ranks):
    """The ranks of torch's default process group."""

    owned: bool = False

    @classmethod
    def join(cls, layout: Layout, backend: str | None = None) -> Group:
        """Join (or reuse) the default group; raises LaunchError unless its size is the layout's.

        `backend` is that of the layout unless given, in torch's words.
        """
        owned = not dist.is_initialized()
        if owned:
            dist.init_process_group(backend or layout.backend)
        size = dist.get_world_size()
        if size != layout.num_processes:
            raise LaunchError(
                f"{size} ranks came up, the spec says {layout.num_processes}; "
                "check nodes and ranks_per_node against the launcher"
            )
        return cls(dist.get_rank(), size, owned)

    def barrier(self) -> None:
        """Return when every rank has come here."""
        if torch.cuda.is_available() and dist.get_backend() != "gloo":
            # Else NCCL guesses the device by the rank.
            dist.barrier(device_ids=[torch.cuda.current_device()])
        else:
            dist.barrier()

    def mean(self, value: Tensor) -> Tensor:
        """The mean of a tensor over all ranks."""
        dist.all_reduce(value)
        return value / self.size

    def leave(self) -> None:
        """Leave after a barrier (else Gloo can abort as a peer's socket closes) and a pause."""
        if self.owned:
            self.barrier()
            # Gloo's thread needs the GIL to drop the last collective, and the group's destructor,
            # which holds it, waits for that thread: without the pause a deadlock, between two nodes
            # within 200 groups; after half of it in none of 1000.
            threading.Event().wait(0.1)
            dist.destroy_process_group()


def mesh_of(layout: Layout) -> DeviceMesh:
    """torch's mesh of the layout's axes. Collective."""
    names, sizes = zip(*layout.axes, strict=True)
    return device_mesh.init_device_mesh(layout.device, sizes, mesh_dim_names=names)


class _Across(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Sending, back: Sending) -> Tensor:
        ctx.back, out = back, there(x)
        if out is x:
            ctx.mark_dirty(x)  # it is in place, which autograd has to know
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradients[0]), None, None


def across(x: Tensor, there: Sending, back: Sending) -> Tensor:
    """One collective on the way there, and on the gradient's way back its conjugate."""
    out: Tensor = _Across.apply(x, there, back)  # type: ignore[no-untyped-call]
    return out


@collective
def ring_reduce_scatter(whole: Tensor, group: dist.ProcessGroup) -> Tensor:
    """This rank's piece of the sum over all ranks of `whole`, whose length they divide.

    Gloo's own reduce-scatter is an all-reduce and a cut: twice the (n-1)/n of the input that each
    of n ranks sends here (pytorch issue 118911). The sum of a piece starts on the rank after its
    owner and travels around the ring (Patarasuk and Yuan 2009), so its order is fixed and equal
    inputs give equal bits. Collective.
    """
    size, rank = group.size(), group.rank()
    pieces = whole.view(size, -1)
    after, before = (dist.get_global_rank(group, (rank + step) % size) for step in (1, -1))
    total = pieces[(rank - 1) % size].clone()
    for step in range(size - 1):
        incoming = torch.empty_like(total)
        # All ranks send at once. Gloo sends when the receiver has said that it is ready, and of two
        # ranks that word would queue behind this one's own message: so it comes first.
        messages: Any = dist.irecv(incoming, before, group), dist.isend(total, after, group)
        for message in messages:
            message.wait()
        total = incoming.add_(pieces[(rank - 2 - step) % size])
    return total


@collective
def begin_reduce_scatter(whole: Tensor, group: dist.ProcessGroup) -> Callable[[], Tensor]:
    """Begin `ring_reduce_scatter`; what is returned waits for it, with the same bits.

    Each rank sends every other one its piece of `whole`, which must not change until then: as many
    bytes as around the ring, but what comes is kept until it is added. Where several ranks share a
    node, more of that would leave it than around a ring, which then is gone around at once.
    Collective.
    """
    size, rank = group.size(), group.rank()
    if size > 2 and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
        piece = ring_reduce_scatter(whole, group)
        return lambda: piece
    pieces = whole.view(size, -1)
    others = [(rank + step) % size for step in range(1, size)]  # in the order of the ring's sum
    there = [dist.get_global_rank(group, other) for other in others]
    incoming = [torch.empty_like(pieces[rank]) for _ in others]
    arriving = zip(incoming, there, strict=True)
    messages: list[Any] = [dist.irecv(piece, at, group) for piece, at in arriving]
    messages += [
        dist.isend(pieces[other], at, group) for other, at in zip(others, there, strict=True)
    ]

    def total() -> Tensor:
        for message in messages:
            message.wait()
        first, *rest = (*incoming, pieces[rank])
        for piece in rest:
            first.add_(piece)
        return first

    return total


def flattened(tensors: Sequence[Tensor]) -> Tensor:
    """A copy of their numbers, one tensor after the other: one message."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def unflatten(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy the numbers back into the tensors."""
    pieces = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces, strict=True):
        tensor.copy_(piece.view_as(tensor))


def buckets(tensors: Iterable[T], fp32_bytes: float = BUCKET_BYTES) -> Iterator[list[T]]:
    """Consecutive tensors that travel together, of so many bytes in fp32 or a little more."""
    bucket, size = list[T](), 0
    for tensor in tensors:
        bucket.append(tensor)
        size += FP32 * tensor.numel()
        if size >= fp32_bytes:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket
