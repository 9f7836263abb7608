"""Weights, gradients and optimiser state cut into shards along the data axis (ZeRO, FSDP2).

The stages are those of Rajbhandari et al. 2020 (arXiv 1910.02054): stage 1 shards the optimiser's
state, stage 2 the gradients too, stage 3 the weights too. With an axis of replicas besides, each
shard's gradients are added up over them before its owners update it alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from pipeline.parallel.collectives import collective
from pipeline.parallel.cut import rows_of
from pipeline.parallel.group import Group, mesh_of, ring_reduce_scatter
from pipeline.parallel.mesh import DATA, REPLICA
from pipeline.parallel.step import Stepper, norm_over, total_norm
from pipeline.parallel.types import Parts
from pipeline.strategies.sharded.rows import ShardedOptimiser, row_buckets


def shard_optimiser(parts: Parts, bucket_bytes: float) -> Stepper:
    """Stage 1: gradients are reduced during the backward pass. Collective."""
    group, mesh = Group.join(parts.layout), mesh_of(parts.layout)
    replicas = mesh[REPLICA].get_group() if REPLICA in dict(parts.layout.axes) else None
    ranks = mesh[DATA].get_group()
    buckets = row_buckets(parts, ranks, replicas, bucket_bytes=bucket_bytes)
    rows = ShardedOptimiser(parts, buckets)
    return Stepper(parts.prepared(rows), group, reduction=rows.reduction, norm=norm_of)


def shard_weights(parts: Parts, *, reshard: bool, offload: bool) -> Stepper:
    """Stage 2, or with `reshard` 3, by FSDP2; knobs as in `shard`. Collective."""
    # Norms and final weights of shards on the host travel by Gloo.
    group = Group.join(parts.layout, "cpu:gloo,cuda:nccl" if offload else None)
    root = shard(parts.model, mesh_of(parts.layout), parts, reshard=reshard, offload=offload)
    prepared = parts.prepare(narrow=False)
    accumulating = partial(without_reduction, root)
    return Stepper(prepared, group, accumulating=accumulating, norm=norm_of)


def shard(
    model: nn.Module, mesh: DeviceMesh, parts: Parts, *, reshard: bool, offload: bool = False
) -> FSDPModule:
    """Cut the weights in place: one group of parameters for each block, one for the rest.

    A group's weights are gathered before its forward pass; `reshard` frees them after it and
    gathers them again for the backward pass, after which its gradients are reduced and scattered.
    A mesh of two axes has replicas along the first, over which FSDP2 then all-reduces the shards.
    `offload`: shards of weights and gradients lie on the host, where the optimiser steps. What is
    gathered and computed is as narrow as the precision's weights; the shards keep their type.
    """
    if mesh.device_type == "cuda":
        parts.phases.untimed()  # collectives run on streams of their own
    precision = parts.precision
    narrow, reduced = precision.narrow_weights, precision.reduced
    blocks: Any = model.blocks
    # Weights of targets, which the model itself is given, stay as they are.
    policies: dict[str, Any] = {
        "mesh": mesh,
        "offload_policy": CPUOffloadPolicy() if offload else OffloadPolicy(),
        "mp_policy": MixedPrecisionPolicy(narrow, precision.gradients, cast_forward_inputs=False),
    }
    for block in blocks:
        fully_shard(block, reshard_after_forward=reshard, **policies)
    root: FSDPModule = fully_shard(model, reshard_after_forward=False, **policies)
    for module in (*blocks, root):
        if mesh.device_type == "cpu" or narrow == torch.float16 or reduced is not None:
            module.set_custom_reduce_scatter(MeanReduceScatter(mesh.size(), reduced))
        if narrow == torch.float16:
            module.set_gradient_divide_factor(1.0)  # MeanReduceScatter divides
    return root


class MeanReduceScatter(ReduceScatter):
    """A reduce-scatter of FSDP2: on CPUs our ring, float16 divided as DDP divides it, or narrowed.

    FSDP2 divides float16 by the root of the ranks before its sum and after it, which overflows
    where DDP, which divides by their number first, does not: each would skip other steps.
    `ranks` are all of the mesh. `reduced`: the type in which gradients travel, None for their own.
    """

    def __init__(self, ranks: int, reduced: torch.dtype | None) -> None:
        self.ranks, self.reduced = ranks, reduced

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
            input_tensor /= self.ranks
        sent = input_tensor.to(self.reduced or input_tensor.dtype)
        if sent.device.type != "cpu":
            mean = output_tensor.to(sent.dtype)
            dist.reduce_scatter_tensor(mean, sent, op, group)
            if mean is not output_tensor:
                output_tensor.copy_(mean)
            return
        output_tensor.copy_(ring_reduce_scatter(sent, group))
        if op == dist.ReduceOp.AVG:
            output_tensor /= group.size()


@collective
def norm_of(parameters: list[Tensor]) -> Tensor:
    """The L2 norm of the gradients over the shards of all ranks."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    rows = rows_of(parameters[0])
    return total_norm(gradients) if rows is None else norm_over(parameters, rows.ranks)


@contextmanager
def without_reduction(root: FSDPModule) -> Iterator[None]:
    """Gradients stay whole and are added up on their own rank within this context."""
    root.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        root.set_requires_gradient_sync(True)
