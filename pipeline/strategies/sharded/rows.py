"""ZeRO's stage 1: each rank keeps the optimiser's state of its rows, and updates them for all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline.parallel.collectives import collective
from pipeline.parallel.cut import NAME, ROWS_NAME, RowRange, cut_of
from pipeline.parallel.group import begin_reduce_scatter, buckets
from pipeline.parallel.mesh import BUCKET_BYTES, DATA
from pipeline.parallel.reduction import Bucket, Reduction
from pipeline.parallel.types import Parts
from pipeline.precision.native import Precision, narrow


class RowBucket(Bucket):
    """Parameters whose rows travel together; `own` are this rank's rows of all of them, flat.

    Each parameter is cut into as many equal runs of rows as there are ranks, the last ones padded.
    It becomes a view of its padded rows, so that one operator spreads what was gathered. Where the
    precision narrows weights, `own` are the masters of these rows, and narrow ones are gathered.
    `replicas` are the ranks that have the same rows, None where this one alone has. `count`, where
    it is given, divides the sum of gradients in place of the number of ranks. Rows lie along the
    dims `dims` of the parameters, all the first if none are given; the ranks are those along `axes`
    of the mesh. `earlier` is a bucket that must have arrived before this one is sent.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        ranks: dist.ProcessGroup,
        precision: Precision,
        replicas: dist.ProcessGroup | None = None,
        *,
        count: int = 0,
        dims: Sequence[int] = (),
        axes: tuple[str, ...] = (DATA,),
    ) -> None:
        holders = ranks.size() * (1 if replicas is None else replicas.size())
        super().__init__(parameters, ranks, precision.reduced, count or holders)
        self.replicas, self.dims = replicas, [*dims] or [0] * len(parameters)
        cuda = replicas is not None and parameters[0].is_cuda
        self.stream = torch.cuda.Stream() if cuda else None  # type: ignore[no-untyped-call]
        self.dtype = precision.narrow_weights or parameters[0].dtype
        size, rank = ranks.size(), ranks.rank()
        lengths = [p.shape[dim] for p, dim in zip(parameters, self.dims, strict=True)]
        runs = [-(-length // size) for length in lengths]
        of_rows = [p.numel() // n for p, n in zip(parameters, lengths, strict=True)]
        self.sizes = [run * numel for run, numel in zip(runs, of_rows, strict=True)]
        self.own = parameters[0].detach().new_zeros(sum(self.sizes))
        self.gradient = torch.zeros_like(self.own)
        self.padded, self.gradients = list[Tensor](), list[Tensor]()
        self.rows = list[nn.Parameter]()
        self._mean_of: Callable[[], Tensor] | None = None  # waits for what is on its way
        self.earlier: RowBucket | None = None
        self._coming: tuple[Tensor, Any] | None = None
        pieces = torch.split(self.own, self.sizes), torch.split(self.gradient, self.sizes)
        for parameter, dim, run, own, gradient in zip(
            parameters, self.dims, runs, *pieces, strict=True
        ):
            whole = parameter.detach().movedim(dim, 0)
            padded = own.new_zeros(size * run, *whole.shape[1:], dtype=self.dtype)
            padded[: len(whole)] = whole
            self.padded.append(padded.view(size, -1))
            start = min(rank * run, len(whole))
            shape = (min(run, len(whole) - start), *whole.shape[1:])
            numel = math.prod(shape)
            # Views of `own` and `gradient`, padding behind them: one message has the whole bucket.
            rows = nn.Parameter(own[:numel].view(shape))
            rows.data.copy_(whole[start : start + len(rows)])
            setattr(rows, ROWS_NAME, RowRange(start, tuple(parameter.shape), ranks, dim, axes))
            if (cut := cut_of(parameter)) is not None:
                setattr(rows, NAME, cut)
            self.rows.append(rows)
            self.gradients.append(gradient[:numel].view(shape))
            narrow(parameter, padded[: len(whole)].movedim(0, dim), self.gradient.dtype)

    @collective
    def reduce(self) -> None:
        """Begin to give every rank its rows of the mean gradient; the whole one is dropped."""
        if self.earlier is not None:
            self.earlier.settle()
        gradients: Any = [parameter.grad for parameter in self.parameters]
        if any(self.dims):
            pairs = zip(gradients, self.dims, strict=True)
            gradients = [gradient.movedim(dim, 0).contiguous() for gradient, dim in pairs]
        # Divided before they are added, as DDP does: a sum of scaled gradients may overflow.
        # Rank by rank, and padded, as `own` of each rank lies.
        flat = torch._chunk_cat(gradients, 0, self.ranks.size()).div_(self.count).view(-1)
        flat = flat.to(self.reduced_as or flat.dtype)
        for parameter in self.parameters:
            parameter.grad = None
        if flat.device.type == "cpu":
            mean_of = begin_reduce_scatter(flat, self.ranks)
        else:
            same = flat.dtype == self.gradient.dtype
            mean = self.gradient if same else flat.new_empty(len(self.own))
            work = dist.reduce_scatter_tensor(mean, flat, group=self.ranks, async_op=True)
            mean_of = partial(_waited, work, mean, flat)
        if self.replicas is not None:
            # On a GPU another stream than that of the backward pass waits for the sums.
            with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
                mean = mean_of()
                work = dist.all_reduce(mean, group=self.replicas, async_op=True)
            mean_of = partial(_waited, work, mean, flat)
        self._mean_of = mean_of

    @collective
    def reduced(self) -> None:
        """Wait for the rows' gradients and hand them to the rows."""
        self.settle()
        for rows, gradient in zip(self.rows, self.gradients, strict=True):
            rows.grad = gradient

    def settle(self) -> None:
        """Wait for the mean gradient of this rank's rows, if it is on its way."""
        if self._mean_of is not None:
            mean, self._mean_of = self._mean_of(), None
            if mean is not self.gradient:
                self.gradient.copy_(mean)

    def gather(self) -> None:
        """Begin to gather the rows of all ranks."""
        own = self.own.to(self.dtype)
        gathered = own.new_empty(self.ranks.size() * len(own))
        work = dist.all_gather_into_tensor(gathered, own, self.ranks, async_op=True)
        self._coming = gathered, work

    def arrive(self) -> None:
        """Have what was gathered in the whole parameters; nothing to do where they have it."""
        if self._coming is not None:
            coming, self._coming = self._coming, None
            self._spread(*coming)

    @collective
    @torch.no_grad()
    def _spread(self, gathered: Tensor, work: Any) -> None:
        """Wait for the rows of all ranks and copy them into the whole parameters."""
        work.wait()
        by_rank = gathered.view(self.ranks.size(), -1)
        torch.split_with_sizes_copy(by_rank, self.sizes, dim=1, out=self.padded)


def row_buckets(
    parts: Parts,
    ranks: dist.ProcessGroup,
    replicas: dist.ProcessGroup | None = None,
    axes: tuple[str, ...] = (DATA,),
    bucket_bytes: float = BUCKET_BYTES,
) -> list[RowBucket]:
    """Buckets of all parameters as DDP has them; ranks and axes as of a `RowBucket`."""
    members = buckets(list(parts.model.parameters())[::-1], bucket_bytes)
    return [RowBucket(some, ranks, parts.precision, replicas, axes=axes) for some in members]


def _waited(work: Any, mean: Tensor, _sent: Tensor) -> Tensor:
    """`mean` once the work is done, until when what is sent is kept."""
    work.wait()
    return mean


class ShardedOptimiser(Optimizer):
    """Stage 1: every rank updates its rows of each whole parameter; the next step gathers them.

    Its `reduction` begins that step with it, and a module waits for its own weights before its
    forward pass: the others travel while it computes. So all that is sent is within the time of a
    step. Call `reduction.publish` to read whole weights between two steps.

    The parameter group holds the rows, which the optimiser of the parts steps, and the model's own
    parameters as `wholes`. `buckets` have them all, the last parameters first.
    """

    def __init__(self, parts: Parts, buckets: Sequence[RowBucket]) -> None:
        self.buckets, self.reduction = buckets, Reduction(buckets)
        # At most two are on their way at once: each needs as much memory again.
        for earlier, bucket in zip(buckets, buckets[2:], strict=False):
            bucket.earlier = earlier
        wholes = [parameter for bucket in self.buckets for parameter in bucket.parameters]
        rows = [one for bucket in self.buckets for one in bucket.rows]
        super().__init__([{"params": rows, "wholes": wholes}], {})
        self.inner = parts.make_optimiser(rows)
        self.rows = dict(zip(wholes, rows, strict=True))
        bucket_of = {whole: bucket for bucket in self.buckets for whole in bucket.parameters}
        # A block waits for all that is within it, since it may be compiled as one.
        model: Any = parts.model
        block_of = {whole: block for block in model.blocks for whole in block.parameters()}
        waits = dict.fromkeys(
            (block_of.get(whole, module), bucket_of[whole])
            for module in model.modules()
            for whole in module.parameters(recurse=False)
        )
        uncompiled: Any = torch.compiler.disable
        for module, bucket in waits:
            arrive = uncompiled(lambda *_, bucket=bucket: bucket.arrive())
            module.register_forward_pre_hook(arrive)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of rows and whole parameters."""
        for whole, rows in self.rows.items():
            whole.grad = rows.grad = None

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step this rank's rows; whole parameters stay as they are until the next step."""
        for inner in self.inner.param_groups:
            inner["lr"] = self.param_groups[0]["lr"]
        self.inner.step()
