"""ZeRO's stage 1: each rank keeps the optimiser's state of its rows, and updates them for all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline.parallel.collectives import collective
from pipeline.parallel.cut import NAME, ROWS_NAME, Rows, cut_of
from pipeline.parallel.group import buckets, ring_reduce_scatter


class Bucket:
    """Parameters whose rows travel together; `own` are this rank's rows of all of them, flat.

    Each parameter is cut into as many equal runs of rows as there are ranks, the last ones padded.
    It becomes a view of its padded rows, so that one operator spreads what was gathered.
    """

    def __init__(self, parameters: list[nn.Parameter], ranks: dist.ProcessGroup) -> None:
        self.parameters, self.ranks, self.missing = parameters, ranks, len(parameters)
        size, rank = ranks.size(), ranks.rank()
        runs = [-(-len(parameter) // size) for parameter in parameters]
        self.sizes = [n * p[0].numel() for n, p in zip(runs, parameters, strict=True)]
        self.own = parameters[0].detach().new_zeros(sum(self.sizes))
        self.gradient = torch.zeros_like(self.own)
        self.padded, self.gradients = list[Tensor](), list[Tensor]()
        self.rows = list[nn.Parameter]()
        self._sent: tuple[Tensor, Any] | None = None
        flats = zip(
            torch.split(self.own, self.sizes), torch.split(self.gradient, self.sizes), strict=True
        )
        for parameter, run, (own, gradient) in zip(parameters, runs, flats, strict=True):
            padded = parameter.detach().new_zeros(size * run, *parameter.shape[1:])
            padded[: len(parameter)] = parameter.detach()
            self.padded.append(padded.view(size, -1))
            own.copy_(self.padded[-1][rank])
            start = min(rank * run, len(parameter))
            shape = (min(run, len(parameter) - start), *parameter.shape[1:])
            numel = math.prod(shape)
            rows = nn.Parameter(own[:numel].view(shape))
            setattr(rows, ROWS_NAME, Rows(start, tuple(parameter.shape), ranks))
            if (cut := cut_of(parameter)) is not None:
                setattr(rows, NAME, cut)
            self.rows.append(rows)
            self.gradients.append(gradient[:numel].view(shape))
            parameter.data = padded[: len(parameter)]

    @collective
    def reduce(self) -> None:
        """Begin to give every rank its rows of the mean gradient; the whole one is dropped."""
        gradients: Any = [parameter.grad for parameter in self.parameters]
        # Divided before they are added, as DDP does: a sum of scaled gradients may overflow.
        flat = torch._chunk_cat(gradients, 0, self.ranks.size()).div_(self.ranks.size()).view(-1)
        for parameter in self.parameters:
            parameter.grad = None
        if flat.device.type == "cpu":
            self.gradient.copy_(ring_reduce_scatter(flat, self.ranks))
        else:
            work = dist.reduce_scatter_tensor(self.gradient, flat, group=self.ranks, async_op=True)
            self._sent = flat, work

    def reduced(self) -> None:
        """Wait for the rows' gradients and hand them to the rows."""
        if self._sent is not None:
            self._sent[1].wait()
            self._sent = None
        self.missing = len(self.parameters)
        for rows, gradient in zip(self.rows, self.gradients, strict=True):
            rows.grad = gradient

    def gather(self) -> tuple[Tensor, Any]:
        """Begin to gather the rows of all ranks: where they come, and what to wait for."""
        gathered = self.own.new_empty(self.ranks.size() * len(self.own))
        return gathered, dist.all_gather_into_tensor(gathered, self.own, self.ranks, async_op=True)

    def spread(self, gathered: Tensor) -> None:
        """Copy the rows of all ranks into the whole parameters."""
        by_rank = gathered.view(self.ranks.size(), -1)
        torch.split_with_sizes_copy(by_rank, self.sizes, dim=1, out=self.padded)


class ShardedOptimiser(Optimizer):
    """Stage 1: every rank updates its rows of each whole parameter, then all gather the rows.

    The parameter group holds the rows, which the optimiser that `make` gives steps, and the model's
    own parameters as `wholes`. Buckets are those of DDP, the last parameters first.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        make: Callable[[Iterable[nn.Parameter]], Optimizer],
        ranks: dist.ProcessGroup,
    ) -> None:
        self.buckets = [Bucket(members, ranks) for members in buckets(list(parameters)[::-1])]
        self.ranks, self._next, self._hold = ranks, 0, False
        wholes = [parameter for bucket in self.buckets for parameter in bucket.parameters]
        rows = [one for bucket in self.buckets for one in bucket.rows]
        super().__init__([{"params": rows, "wholes": wholes}], {})
        self.inner = make(rows)
        self.rows = dict(zip(wholes, rows, strict=True))

    def overlap(self) -> None:
        """Reduce each bucket as soon as a backward pass has its last gradient, in their order."""
        for bucket in self.buckets:
            for parameter in bucket.parameters:
                any_parameter: Any = parameter
                any_parameter.register_post_accumulate_grad_hook(partial(self._ready, bucket))

    def _ready(self, bucket: Bucket, parameter: Tensor) -> None:
        if self._hold:
            return
        bucket.missing -= 1
        while self._next < len(self.buckets) and not self.buckets[self._next].missing:
            self.buckets[self._next].reduce()
            self._next += 1

    @contextmanager
    def without_reduction(self) -> Iterator[None]:
        """Gradients stay whole and are added up on their own rank within this context."""
        self._hold = True
        try:
            yield
        finally:
            self._hold = False

    def reduce(self) -> None:
        """Reduce what no backward pass has, and wait for all: rows then have mean gradients."""
        for bucket in self.buckets[self._next :]:
            bucket.reduce()
        for bucket in self.buckets:
            bucket.reduced()
        self._next = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of rows and whole parameters."""
        for whole, rows in self.rows.items():
            whole.grad = rows.grad = None

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step this rank's rows, then gather those of all ranks into the whole parameters."""
        for inner in self.inner.param_groups:
            inner["lr"] = self.param_groups[0]["lr"]
        self.inner.step()
        self.publish()

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the rows of all ranks into the whole parameters: one collective for each bucket.

        While one bucket is spread the next ones travel.
        """
        sent = [bucket.gather() for bucket in self.buckets]
        for bucket, (gathered, work) in zip(self.buckets, sent, strict=True):
            if work is not None:
                work.wait()
            bucket.spread(gathered)
