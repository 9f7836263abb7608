"""The parameter server's step: pull parameters, push gradients, the root alone updates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.parallel.faults import Faults
from pipeline.parallel.group import Group
from pipeline.parallel.step import Stepper
from pipeline.parallel.types import Batch, Parts, StepResult
from pipeline.study.profiling import COMMUNICATION

ROOT = 0


class Star(Stepper):
    """Rank 0 is the server and one of the workers; the others are workers only.

    The root adds the gradients in the order of the ranks, so equal inputs give equal bits.
    """

    def __init__(self, parts: Parts, group: Group, faults: Faults) -> None:
        super().__init__(
            parts,
            data_parallel=group.size,
            is_root=group.rank == ROOT,
            reduce=self.push,
            mean_over_ranks=group.mean,
            leave=group.leave,
            faults=faults,
        )
        self.group = group

    def step(self, microbatches: Sequence[Batch]) -> StepResult:
        """Pull the parameters, then the shared step, with the root's gradient norm for all."""
        self.pull()
        return super().step(microbatches)

    def update(self) -> Tensor:
        """Clip and step on the root, which tells the others its gradient norm and loss scale."""
        device = next(self.model.parameters()).device
        told = torch.zeros(1 + len(self.precision.scalars()), dtype=torch.float64, device=device)
        if self.is_root:
            norm = super().update()
            scalars = list(self.precision.scalars().values())
            told = torch.tensor([float(norm), *scalars], dtype=torch.float64, device=device)
        with self.phases.during(COMMUNICATION):
            dist.broadcast(told, ROOT)
        if not self.is_root:
            names = self.precision.scalars()
            self.precision.follow(dict(zip(names, told[1:].tolist(), strict=True)))
        return told[0]

    def pull(self) -> None:
        """Every worker receives the root's parameters."""
        with torch.no_grad(), self.phases.during(COMMUNICATION):
            self._from_root(list(self.model.parameters()))

    def push(self) -> None:
        """The root receives every worker's gradients and keeps their mean."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        with self.phases.during(COMMUNICATION):
            self._to_root(gradients)

    def _to_root(self, gradients: list[Tensor]) -> None:
        for bucket in _by_dtype(gradients):
            # Divided before they are added, as DDP does: a sum of scaled float16 may overflow.
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket]) / self.group.size
            if not self.is_root:
                dist.send(flat, ROOT)
                continue
            incoming = torch.empty_like(flat)
            for rank in range(1, self.group.size):
                dist.recv(incoming, rank)
                flat += incoming
            _unflatten(flat, bucket)

    def close(self) -> None:
        """Pull once more, so that every rank ends with the root's weights; then leave."""
        self.pull()
        super().close()

    def _from_root(self, tensors: list[Tensor]) -> None:
        for bucket in _by_dtype(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            if self.is_root:
                for rank in range(1, self.group.size):
                    dist.send(flat, rank)
            else:
                dist.recv(flat, ROOT)
                _unflatten(flat, bucket)


def _by_dtype(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    buckets: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        buckets.setdefault(tensor.dtype, []).append(tensor)
    return list(buckets.values())


def _unflatten(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    sizes = [tensor.numel() for tensor in tensors]
    for part, tensor in zip(torch.split(flat, sizes), tensors, strict=True):
        tensor.copy_(part.view_as(tensor))
