"""Steps of the libraries that strategies follow, each in a few lines of their documentation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
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


def fp16_hook(model: nn.Module) -> Step:
    """torch's DistributedDataParallel with `fp16_compress_hook`."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    wrapped.register_comm_hook(None, fp16_compress_hook)
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
    fully_sharded(model, model.blocks, None, reshard=reshard)
    return partial(stepped, model, adamw(model.parameters()))


def hybrid_fsdp(model: nn.Module) -> Step:
    """torch's `fully_shard` over a mesh (replicate 2, shard)."""
    sizes = 2, dist.get_world_size() // 2
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard"))
    fully_sharded(model, model.blocks, mesh, reshard=False)
    return partial(stepped, model, adamw(model.parameters()))


def fully_sharded(model: nn.Module, blocks: Any, mesh: DeviceMesh | None, *, reshard: bool) -> None:
    """Cut each block, and the rest."""
    from torch.distributed.fsdp import fully_shard

    for block in blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)


def deepspeed(model: nn.Module, *, stage: int) -> Step:
    """DeepSpeed's engine, ZeRO by the package itself."""
    from pipeline.strategies.deepspeed.step import load

    package = load("cpu")
    package.init_distributed("gloo")
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": OPTIMISER.max_grad_norm,
        "steps_per_print": 2**31,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    optimiser = adamw(model.parameters())
    engine, *_ = package.initialize(model=model, optimizer=optimiser, config=config)

    def step(batch: Batch) -> Tensor:
        loss: Tensor = engine(batch.inputs, batch.targets).mean()
        engine.backward(loss)
        engine.step()
        return mean(loss)

    return step


def fsdp_and_tensor(model: nn.Module) -> Step:
    """torch's `parallelize_module`, then `fully_shard`, as its tutorial of two axes has it."""
    return tensor_parallel(model, tensor=2)


def tensor_parallel(model: nn.Module, *, tensor: int = 0) -> Step:
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
    ranks = tensor or dist.get_world_size()
    sizes = dist.get_world_size() // ranks, ranks
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("data", "tensor"))
    parallelize_module(llama, mesh["tensor"], plan)
    if tensor:
        fully_sharded(llama, llama.model.layers, mesh["data"], reshard=True)
    # torch's fused and multi-tensor operators take tensors, or DTensors of one mesh.
    of_mesh: dict[Any, list[Any]] = {}
    for parameter in llama.parameters():
        of_mesh.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    groups = list(of_mesh.values())
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
        total = loss.full_tensor() if isinstance(loss, DTensor) else loss
        return mean(total) if tensor else total.detach()

    return step


class _Part(nn.Module):
    """Layers of a Llama that one rank keeps, cut by hand, and what is at the model's ends."""

    def __init__(self, llama: Any, rank: int, ranks: int) -> None:
        super().__init__()
        count = len(llama.model.layers)
        self.layers = llama.model.layers[rank * count // ranks : (rank + 1) * count // ranks]
        self.turns = llama.model.rotary_emb
        last = rank == ranks - 1
        self.first = llama.model.embed_tokens if rank == 0 else nn.Identity()
        self.last = nn.Sequential(llama.model.norm, llama.lm_head) if last else nn.Identity()

    def forward(self, x: Tensor) -> Any:
        """Token ids, or what the stage before gives -> what the next one takes, or logits."""
        x = self.first(x)
        turns = self.turns(x, torch.arange(x.shape[1]).unsqueeze(0))
        for layer in self.layers:
            x = layer(x, position_embeddings=turns)
        return self.last(x)


def pipeline(model: nn.Module) -> Step:
    """torch's `PipelineStage` and `Schedule1F1B` of stages cut by hand, as its tutorial has it."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, ranks = dist.get_rank(), dist.get_world_size()
    part = _Part(model.model, rank, ranks)
    optimiser = adamw(part.parameters())

    def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    stage = PipelineStage(part, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=2, loss_fn=loss_of)

    def step(batch: Batch) -> Tensor:
        optimiser.zero_grad()
        losses: list[Tensor] = []
        given = (batch.inputs,) if rank == 0 else ()
        schedule.step(*given, target=batch.targets, losses=losses)
        gradients: list[Any] = [parameter.grad for parameter in part.parameters()]
        squares = nn.utils.get_total_norm(gradients) ** 2
        dist.all_reduce(squares)
        limit = OPTIMISER.max_grad_norm
        nn.utils.clip_grads_with_norm_(part.parameters(), limit, squares.sqrt())
        optimiser.step()
        return mean(torch.stack(losses).mean() if losses else torch.zeros(())) * ranks

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
