"""How one rank's part of a weight was cut, so that the whole can be put together again.

A cut parameter is an ordinary one that holds this rank's part and carries its `Cut`; the optimiser
needs to know nothing of it. The shards of FSDP2 are torch's DTensors, which know it themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

NAME, ROWS_NAME = "samestep_cut", "samestep_rows"


@dataclass(frozen=True)
class Rows:
    """Consecutive rows, from `start` on, of a parameter of this `shape`: ZeRO's stage 1."""

    start: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Cut:
    """`dim` of the whole has length `length`, in `runs` equal runs; each is cut over the ranks.

    A fused projection to query, key and value has three runs, of which each rank has its heads.
    """

    dim: int
    length: int
    runs: int
    ranks: dist.ProcessGroup

    def part(self, whole: Tensor) -> Tensor:
        """A copy of this rank's part of a tensor that it holds whole; nothing is sent."""
        rank = self.ranks.rank()
        return torch.cat([pieces[rank] for pieces in self._pieces(whole)], self.dim)

    def whole(self, part: Tensor) -> Tensor:
        """The whole of which every rank gives its part. Collective."""
        shape = list(part.shape)
        shape[self.dim] = self.length
        whole = part.new_empty(shape)
        pieces = list(self._pieces(whole))
        lengths = [
            sum(run[rank].shape[self.dim] for run in pieces) for rank in range(self.ranks.size())
        ]
        padded = part.new_zeros([max(lengths), *_others(part, self.dim)])
        padded[: part.shape[self.dim]] = part.movedim(self.dim, 0)
        gathered = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(gathered, padded, self.ranks)
        for rank, theirs in enumerate(gathered):
            own = theirs[: lengths[rank]].movedim(0, self.dim)
            targets = [run[rank] for run in pieces]
            sizes = [target.shape[self.dim] for target in targets]
            for target, piece in zip(targets, torch.split(own, sizes, self.dim), strict=True):
                target.copy_(piece)
        return whole

    def spans(self) -> list[tuple[int, int]]:
        """This rank's part, run by run: first place along `dim` of the whole, and length."""
        run, (rank, size) = self.length // self.runs, (self.ranks.rank(), self.ranks.size())
        each, more = divmod(run, size)
        start, length = rank * each + min(rank, more), each + (rank < more)
        return [(number * run + start, length) for number in range(self.runs)]

    def _pieces(self, whole: Tensor) -> list[tuple[Tensor, ...]]:
        """Views of the whole: for each run one piece for each rank."""
        size = self.ranks.size()
        return [run.tensor_split(size, self.dim) for run in whole.chunk(self.runs, self.dim)]


def _others(tensor: Tensor, dim: int) -> list[int]:
    return [length for place, length in enumerate(tensor.shape) if place != dim]


def cut(parameter: Tensor, dim: int, runs: int, ranks: dist.ProcessGroup) -> nn.Parameter:
    """This rank's part of a parameter, as a parameter that knows how it was cut."""
    made = Cut(dim, parameter.shape[dim], runs, ranks)
    part = nn.Parameter(made.part(parameter.detach()))
    setattr(part, NAME, made)
    return part


def rows_of(tensor: Tensor) -> Rows | None:
    """The rows of a parameter that these are; None for all of them."""
    found: Rows | None = getattr(tensor, ROWS_NAME, None)
    return found


def cut_of(tensor: Tensor) -> Cut | None:
    """How a parameter was cut; None for a whole one."""
    found: Cut | None = getattr(tensor, NAME, None)
    return found
