"""Weights, gradients and optimiser state cut into shards along the data axis (ZeRO, FSDP2).

The stages are those of Rajbhandari et al. 2020 (arXiv 1910.02054): stage 1 shards the optimiser's
state, stage 2 the gradients too, stage 3 the weights too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from pipeline.parallel.collectives import collective
from pipeline.parallel.cut import NAME, ROWS_NAME, Rows, cut_of
from pipeline.parallel.group import Group, buckets, ring_reduce_scatter
from pipeline.parallel.mesh import DATA, Layout
from pipeline.parallel.step import Stepper
from pipeline.parallel.types import Prepared


def data_mesh(layout: Layout) -> DeviceMesh:
    """All ranks on one data axis. Collective."""
    return init_device_mesh(layout.device, (layout.num_processes,), mesh_dim_names=(DATA,))


def shard(
    model: nn.Module,
    mesh: DeviceMesh,
    *,
    reshard: bool,
    offload: bool = False,
    narrow: torch.dtype | None = None,
) -> FSDPModule:
    """Cut the weights in place: one group of parameters for each block, one for the rest.

    A group's weights are gathered before its forward pass; `reshard` frees them after it and
    gathers them again for the backward pass, after which its gradients are reduced and scattered.
    `offload`: shards of weights and gradients lie on the host, where the optimiser steps. `narrow`:
    what is gathered, computed and reduced has this type; the shards keep theirs.
    """
    blocks: Any = model.blocks
    policies: dict[str, Any] = {
        "offload_policy": CPUOffloadPolicy() if offload else OffloadPolicy(),
        "mp_policy": MixedPrecisionPolicy(param_dtype=narrow),
    }
    for block in blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard, **policies)
    root: FSDPModule = fully_shard(model, mesh=mesh, reshard_after_forward=False, **policies)
    for module in (*blocks, root):
        if mesh.device_type == "cpu" or narrow == torch.float16:
            module.set_custom_reduce_scatter(MeanReduceScatter())
        if narrow == torch.float16:
            module.set_gradient_divide_factor(1.0)
    return root


class MeanReduceScatter(ReduceScatter):
    """A reduce-scatter of FSDP2: on CPUs our ring, and float16 divided as DDP divides it.

    FSDP2 divides float16 by the root of the ranks before its sum and after it, which overflows
    where DDP, which divides by their number first, does not: each would skip other steps.
    """

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """An uninitialised tensor, as torch makes it by default."""
        return torch.empty(*size, dtype=dtype, device=device)

    @collective
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Every rank gets its own piece of the mean of all inputs."""
        if input_tensor.dtype == torch.float16:
            input_tensor /= group.size()
        if input_tensor.device.type != "cpu":
            dist.reduce_scatter_tensor(output_tensor, input_tensor, op, group)
            return
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise ValueError(f"the ring adds or averages, given {op}")
        output_tensor.copy_(ring_reduce_scatter(input_tensor, group))
        if op == dist.ReduceOp.AVG:
            output_tensor /= group.size()


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
            setattr(rows, ROWS_NAME, Rows(start, tuple(parameter.shape)))
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
        self.buckets = [Bucket(found, ranks) for found in buckets(list(parameters)[::-1])]
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


class ShardedStepper(Stepper):
    """The shared step where gradients or weights are shards, or the optimiser's state is.

    `ranks`: under stage 1, those over which rows are cut; DTensors know theirs.
    """

    def __init__(
        self,
        parts: Prepared,
        group: Group,
        ranks: dist.ProcessGroup | None = None,
        **options: Any,
    ) -> None:
        super().__init__(parts, **group.all_data_parallel(), **options)
        self.ranks = ranks

    def clip(self, parameters: list[Tensor]) -> Tensor:
        """Clip by the norm over the shards of all ranks; where it is infinite all skip the step."""
        norm = total_norm([p.grad for p in parameters if p.grad is not None], self.ranks)
        torch.nn.utils.clip_grads_with_norm_(parameters, self.max_grad_norm, norm)
        self.precision.overflowed(self.optimiser, norm)
        return norm


@collective
def total_norm(gradients: list[Tensor], ranks: dist.ProcessGroup | None) -> Tensor:
    """The L2 norm over the shards of all ranks."""
    norm = torch.nn.utils.get_total_norm(gradients)
    if isinstance(norm, DTensor):
        return norm.full_tensor()
    if ranks is None:
        return norm
    squares = norm.double() ** 2
    dist.all_reduce(squares, group=ranks)
    return squares.sqrt().float()


@contextmanager
def without_reduction(root: FSDPModule) -> Iterator[None]:
    """Gradients stay whole and are added up on their own rank within this context."""
    root.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        root.set_requires_gradient_sync(True)
