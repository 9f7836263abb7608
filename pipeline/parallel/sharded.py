"""Weights, gradients and optimiser state cut into shards along the data axis (ZeRO, FSDP2).

The stages are those of Rajbhandari et al. 2020 (arXiv 1910.02054): stage 1 shards the optimiser's
state, stage 2 the gradients too, stage 3 the weights too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
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
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.optim import Optimizer

from pipeline.parallel.collectives import collective
from pipeline.parallel.cut import NAME, cut_of
from pipeline.parallel.group import Group, ring_reduce_scatter
from pipeline.parallel.mesh import DATA, Layout
from pipeline.parallel.step import Stepper
from pipeline.parallel.types import Prepared

ROWS = Shard(0)
"""A tensor's rows are cut into as many runs as there are ranks; the last ranks may get fewer."""


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


class ShardedOptimiser(Optimizer):
    """Stage 1: every rank updates its rows of each whole parameter, then all gather the rows.

    The parameter group is the model's; its `masters` are the rows as DTensors, to which the state
    of the optimiser belongs that `make` gives.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        make: Callable[[Iterable[nn.Parameter]], Optimizer],
        mesh: DeviceMesh,
    ) -> None:
        whole = list(parameters)
        shards = [of_same_cut(parameter, _rows(parameter.detach(), mesh)) for parameter in whole]
        super().__init__([{"params": whole, "masters": shards}], {})
        self.mesh = mesh
        self.inner = make(shards)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step this rank's rows, then gather those of all ranks into the whole parameters."""
        (group,) = self.param_groups
        for inner in self.inner.param_groups:
            inner["lr"] = group["lr"]
        for parameter, rows in zip(group["params"], group["masters"], strict=True):
            rows.grad = _rows(parameter.grad, self.mesh)
        self.inner.step()
        self.inner.zero_grad()
        self.publish()

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the rows of all ranks into the whole parameters. A collective, one message each."""
        (group,) = self.param_groups
        size = self.mesh.size()
        pieces = [parameter.detach().chunk(size) for parameter in group["params"]]
        lengths = [sum(p[rank].numel() for p in pieces if rank < len(p)) for rank in range(size)]
        own = torch.cat([rows.to_local().reshape(-1) for rows in group["masters"]])
        sent = own.new_zeros(max(lengths))
        sent[: own.numel()] = own
        gathered = sent.new_empty(size * sent.numel())
        dist.all_gather_into_tensor(gathered, sent, self.mesh.get_group())
        for rank, flat in enumerate(gathered.chunk(size)):
            targets = [p[rank] for p in pieces if rank < len(p)]
            sizes = [target.numel() for target in targets]
            parts = torch.split(flat[: lengths[rank]], sizes)
            for target, part in zip(targets, parts, strict=True):
                target.copy_(part.view_as(target))


def of_same_cut(parameter: Tensor, rows: Tensor) -> nn.Parameter:
    """Rows of a parameter, which also know where a tensor axis cut it."""
    made = nn.Parameter(rows)
    if (cut := cut_of(parameter)) is not None:
        setattr(made, NAME, cut)
    return made


def _rows(tensor: Tensor, mesh: DeviceMesh) -> DTensor:
    """This rank's rows of a tensor that every rank holds whole; nothing is sent."""
    return distribute_tensor(tensor, mesh, [ROWS], src_data_rank=None)


class ShardedStepper(Stepper):
    """The shared step where gradients or weights are shards, or the optimiser's state is."""

    def __init__(self, parts: Prepared, group: Group, **options: Any) -> None:
        super().__init__(parts, **group.all_data_parallel(), **options)

    def clip(self, parameters: list[Tensor]) -> Tensor:
        """Clip by the norm over the shards of all ranks; where it is infinite all skip the step."""
        norm = total_norm([p.grad for p in parameters if p.grad is not None])
        torch.nn.utils.clip_grads_with_norm_(parameters, self.max_grad_norm, norm)
        self.precision.overflowed(self.optimiser, norm)
        return norm


@collective
def total_norm(gradients: list[Tensor]) -> Tensor:
    """The L2 norm over the shards of all ranks."""
    norm = torch.nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


@contextmanager
def without_reduction(root: FSDPModule) -> Iterator[None]:
    """Gradients stay whole and are added up on their own rank within this context."""
    root.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        root.set_requires_gradient_sync(True)
