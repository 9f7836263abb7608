"""Steps of the libraries that strategies follow, each in a few lines of their documentation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental._context_parallel import _attention
from torch.nn.parallel import DistributedDataParallel

from bench.contestants import OPTIMISER
from pipeline.parallel.types import Batch
from pipeline.training.optimiser import make_optimiser

torch_ring: Any = _attention
Step = Callable[[Batch], Tensor]
"""Takes one step on this rank's batch; returns the mean loss over all ranks."""


def adamw(parameters: Any) -> torch.optim.Optimizer:
    """The same optimiser as ours."""
    return make_optimiser(OPTIMISER, parameters)


def stepped(forward: nn.Module, optimiser: torch.optim.Optimizer, batch: Batch) -> Tensor:
    """Forward, backward, clip, step, and the mean loss."""
    optimiser.zero_grad()
    loss = forward(*batch).mean()
    loss.backward()
    nn.utils.clip_grad_norm_(forward.parameters(), OPTIMISER.max_grad_norm)
    optimiser.step()
    return mean(loss)


def mean(loss: Tensor) -> Tensor:
    """Over all ranks."""
    shared = loss.detach().clone()
    dist.all_reduce(shared)
    return shared / dist.get_world_size()


def ddp(model: nn.Module) -> Step:
    """torch's DistributedDataParallel, as its tutorial has it."""
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    return partial(stepped, wrapped, adamw(model.parameters()))


def zero_redundancy(model: nn.Module) -> Step:
    """torch's ZeroRedundancyOptimizer beside DistributedDataParallel."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    usual = adamw(model.parameters()).defaults
    named = {name: usual[name] for name in ("lr", "betas", "eps", "weight_decay", "fused")}
    optimiser = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.AdamW, **named
    )
    return partial(stepped, DistributedDataParallel(model, gradient_as_bucket_view=True), optimiser)


def fsdp(model: nn.Module, *, reshard: bool) -> Step:
    """torch's `fully_shard` of each block and of the rest, as its tutorial has it."""
    from torch.distributed.fsdp import fully_shard

    blocks: Any = model.blocks
    for block in blocks:
        fully_shard(block, reshard_after_forward=reshard)
    fully_shard(model, reshard_after_forward=False)
    return partial(stepped, model, adamw(model.parameters()))


def tensor_parallel(model: nn.Module) -> Step:
    """torch's `parallelize_module` and `loss_parallel`, with the plan of its tutorial."""
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        loss_parallel,
        parallelize_module,
    )

    llama: Any = model.model
    columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj")
    plan: dict[str, Any] = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        "lm_head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
        **{f"model.layers.*.{name}": ColwiseParallel() for name in (*columns, "mlp.up_proj")},
        **{f"model.layers.*.{n}": RowwiseParallel() for n in ("self_attn.o_proj", "mlp.down_proj")},
    }
    parallelize_module(llama, init_device_mesh("cpu", (dist.get_world_size(),)), plan)
    every = list(llama.parameters())
    # torch's fused and multi-tensor operators take either DTensors or tensors.
    groups = [[p for p in every if isinstance(p, DTensor) is cut] for cut in (True, False)]
    optimiser = adamw([{"params": group} for group in groups])

    def step(batch: Batch) -> Tensor:
        ids, targets, *_ = batch
        with loss_parallel():
            logits = llama(input_ids=ids, use_cache=False).logits
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            torch.autograd.backward(loss)
        norms = [nn.utils.get_total_norm([p.grad for p in group]) for group in groups]
        whole = [n.full_tensor() if isinstance(n, DTensor) else n for n in norms]
        norm = torch.linalg.vector_norm(torch.stack(whole))
        for group in groups:
            nn.utils.clip_grads_with_norm_(group, OPTIMISER.max_grad_norm, norm)
        optimiser.step()
        optimiser.zero_grad()
        return loss.full_tensor().detach() if isinstance(loss, DTensor) else loss.detach()

    return step


class _Ring(torch.autograd.Function):
    """Attention of torch's context parallelism, by the kernel that it has for CPUs.

    Its `context_parallel` looks up kernels of CUDA alone; what they are called by takes this too.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        made: tuple[Tensor, Tensor] = torch_ring._templated_ring_attention(
            dist.group.WORLD, 2, kernel, q, k, v, is_causal=True
        )
        ctx.save_for_backward(q, k, v, *made)
        return made[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        inputs: tuple[Tensor, ...] = torch_ring._templated_ring_attention_backward(
            dist.group.WORLD, 2, kernel, gradients[0], "grad_out", *ctx.saved_tensors,
            is_causal=True, dropout_p=0.0,
        )  # fmt: skip
        return inputs


def ring_attention(model: nn.Module) -> Step:
    """torch's ring attention beside DistributedDataParallel, on sequences that are cut as ours."""
    from pipeline.strategies.context.step import ContextAxis, cut_sequences

    assert dist.group.WORLD is not None
    axis = ContextAxis(dist.group.WORLD)
    cut_sequences(model, axis)
    any_model: Any = model
    ring: Any = _Ring
    any_model.wrap_attention(lambda inner, q, k, v, mask: ring.apply(q, k, v))
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimiser = adamw(model.parameters())

    def step(batch: Batch) -> Tensor:
        return stepped(wrapped, optimiser, Batch(axis.own(batch.inputs), axis.own(batch.targets)))

    return step


def horovod(model: nn.Module) -> Step:
    """Horovod's DistributedOptimizer, as its documentation has it with clipping."""
    import horovod.torch as hvd

    optimiser = hvd.DistributedOptimizer(
        adamw(model.parameters()), named_parameters=model.named_parameters()
    )

    def step(batch: Batch) -> Tensor:
        loss = model(*batch).mean()
        loss.backward()
        optimiser.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), OPTIMISER.max_grad_norm)
        with optimiser.skip_synchronize():
            optimiser.step()
        optimiser.zero_grad()
        shared: Tensor = hvd.allreduce(loss.detach(), name="loss")
        return shared

    return step


def averager(model: nn.Module) -> Step:
    """torch's PeriodicModelAverager: averaged weights, without an outer momentum."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    optimiser = adamw(model.parameters())
    averaging = PeriodicModelAverager(period=2, warmup_steps=1)  # after the second step, the fourth

    def step(batch: Batch) -> Tensor:
        loss = stepped(model, optimiser, batch)
        averaging.average_parameters(list(model.parameters()))
        return loss

    return step
