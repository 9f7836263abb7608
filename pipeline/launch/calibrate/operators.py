"""Seconds of single operators in both passes, of an empty one, and the rate of memory.

And what operators take more where a node on emulated time waits between stretches of them.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.emulation.pacing import Pacer
from pipeline.machine.processes import at_once, keep_freed_memory
from pipeline.planner.operators import OF_PARAMETERS, Operator

if TYPE_CHECKING:
    from torch import Tensor, nn

LEAST_ROUNDS = 5
COPIED_BYTES = 1 << 26
STRETCHES = (1e-4, 5e-4, 2e-3, 8e-3, 32e-3)
"""Seconds of operators between two collectives."""
STRETCH_ROUNDS = 15


def measured(
    wanted: Sequence[Operator], cores: Sequence[int], threads: int, seconds: float
) -> list[dict[str, Any]]:
    """The figures of a process on each place of `threads` cores, all at once."""
    ends = range(threads, len(cores) + 1, threads)
    places = [cores[end - threads : end] for end in ends] or [cores]
    return at_once([partial(_figures, wanted, threads, seconds)] * len(places), places)


def stretches(
    timed: Mapping[Operator, float], factor: float, between: Callable[[], object]
) -> list[float]:
    """CPU seconds of each of STRETCHES, each of which comes after `between`.

    A stretch is of operators drawn at random, which take its seconds by `timed`. After each the
    process waits, as a rank does whose time is dilated by `factor`; with a factor of 1 it does not.
    """
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_freed_memory()
    drawn, made = random.Random(0), dict[Operator, Callable[[], object]]()
    works = []
    for length in STRETCHES:
        short = [one for one in timed if timed[one] <= length and one.kind not in OF_PARAMETERS]
        left, work = length, list[Callable[[], object]]()
        while left > 0 and short:
            one = drawn.choice(short)
            if one not in made:
                made[one] = _on_a_set(one)
            work.append(made[one])
            left -= timed[one]
        works.append(work)
    took: list[list[float]] = [[] for _ in works]
    pacer = Pacer(factor)
    for work, own in STRETCH_ROUNDS * list(zip(works, took, strict=True)):
        between()
        pacer.start()
        before = pacer.cpu_seconds()
        for call in work:
            call()
        own.append(pacer.cpu_seconds() - before)
        pacer.settle()
    return [statistics.median(own) for own in took]


def _figures(wanted: Sequence[Operator], threads: int, seconds: float) -> dict[str, Any]:
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    keep_freed_memory()
    clock = time.thread_time if threads == 1 else time.perf_counter
    whole = torch.ones(COPIED_BYTES // 4)
    one = torch.zeros(1, requires_grad=True)
    order = _spread(wanted)
    timed = _in_turn([_on_a_set(operator) for operator in order], seconds, clock)
    found = dict(zip(order, timed, strict=True))
    (copied,) = _in_turn([partial(torch.empty_like(whole).copy_, whole)], seconds / 50, clock)
    (host,) = _in_turn([lambda: torch.autograd.grad(one * 2, one)], seconds / 50, clock)
    operators = [found[operator] for operator in wanted]
    return {"operators": operators, "host_seconds": host, "memory": 2 * COPIED_BYTES / copied}


def _spread(wanted: Sequence[Operator]) -> list[Operator]:
    """The operators with those OF_PARAMETERS evenly among the others.

    In a step they come after passes, which leave nothing of theirs in the caches: an update right
    after another one takes two thirds of the first one's time.
    """
    others = [one for one in wanted if one.kind not in OF_PARAMETERS]
    own = [one for one in wanted if one.kind in OF_PARAMETERS]
    places = {one: (place + 0.5) / len(each) for each in (others, own)
              for place, one in enumerate(each)}  # fmt: skip
    return sorted(wanted, key=lambda one: places[one])


def _in_turn(
    works: Sequence[Callable[[], object]], seconds: float, clock: Callable[[], float]
) -> list[float]:
    """The median of each, of as many rounds as fit after a first one.

    Each comes after all others, as in a step: no operator finds its own tensors in the caches.
    """
    took: list[list[float]] = [[] for _ in works]
    end = time.monotonic() + seconds
    while len(took[0]) <= LEAST_ROUNDS or time.monotonic() < end:
        for work, own in zip(works, took, strict=True):
            before = clock()
            work()
            own.append(clock() - before)
    return [statistics.median(own[1:]) for own in took]


def _on_a_set(operator: Operator) -> Callable[[], object]:
    """Both passes of an operator on tensors of its own; of `update` the step of the optimiser."""
    import torch
    from torch.nn import functional

    kind, sizes = operator.kind, operator.sizes

    def made(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=getattr(torch, operator.dtype))

    if kind == "product":
        tokens, width, outputs = sizes
        return _both(functional.linear, made(tokens, width), made(outputs, width), made(outputs))
    if kind == "attention":
        fused = partial(functional.scaled_dot_product_attention, is_causal=True)
        return _both(fused, *(made(*sizes) for _ in range(3)))
    if kind == "layer_norm":
        width = sizes[-1]
        return _both(
            lambda x, weight, bias: functional.layer_norm(x, (width,), weight, bias),
            made(*sizes), made(width), made(width),
        )  # fmt: skip
    if kind == "gelu":
        return _both(partial(functional.gelu, approximate="tanh"), made(*sizes))
    if kind == "add":
        return _both(torch.add, made(*sizes), made(*sizes))
    if kind == "cross_entropy":
        targets = torch.randint(0, sizes[1], sizes[:1])
        return _both(functional.cross_entropy, made(*sizes), targets)
    if kind in ("unit", "reduction"):
        numbers, tensors, way = sizes
        wrap = _unit if kind == "unit" else _reduced
        return _around(numbers, tensors, lambda module: wrap(module, way))
    if kind == "backward":
        return _backward(*sizes)
    if kind == "embedding":
        tokens, width, vocabulary = sizes
        ids = torch.randint(0, vocabulary, (tokens,))
        return _both(lambda table: functional.embedding(ids, table), made(vocabulary, width))
    assert kind == "update", kind
    # Norm, clipping and AdamW of so many numbers in so many tensors.
    numbers, tensors = sizes
    parameters = [made(max(1, numbers // tensors)) for _ in range(tensors)]
    for one in parameters:
        one.grad = torch.ones_like(one)
    optimiser = torch.optim.AdamW(parameters, fused=True)

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()

    return update


def _around(
    numbers: int, tensors: int, wrapped: Callable[[nn.Module], nn.Module]
) -> Callable[[], object]:
    """A library's own work in both passes around a module of so many numbers in so many tensors.

    On one rank, which has them whole: nothing is sent, and the module itself computes nothing.
    """
    import torch
    import torch.distributed as dist
    from torch import nn

    if not dist.is_initialized():
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)

    class Through(torch.autograd.Function):
        """Hands its input on; all parameters get a gradient."""

        @staticmethod
        def forward(context: Any, x: Tensor, *parameters: Tensor) -> Tensor:
            context.shapes = [one.shape for one in parameters]
            return x.clone()

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> Any:
            return gradient, *(torch.zeros(shape) for shape in context.shapes)

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            each = [torch.zeros(max(1, numbers // tensors)) for _ in range(tensors)]
            self.each = nn.ParameterList(map(nn.Parameter, each))

        def forward(self, x: Tensor) -> Any:
            return Through.apply(x, *self.each)  # type: ignore[no-untyped-call]

    whole = wrapped(Module())
    one = torch.zeros(1, requires_grad=True)

    def both() -> None:
        whole(one).sum().backward()
        whole.zero_grad()

    return both


def _unit(module: nn.Module, stage: int) -> nn.Module:
    """The module as a group of FSDP2's, within another one, which is the root and reduces last."""
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    whole, mesh = nn.Sequential(module, nn.Identity()), init_device_mesh("cpu", (1,))
    fully_shard(module, mesh=mesh, reshard_after_forward=stage > 2)
    fully_shard(whole, mesh=mesh, reshard_after_forward=False)
    return whole


def _reduced(module: nn.Module, way: int) -> nn.Module:
    """The module in torch's DDP, or as it is: what is between the two is DDP's own work."""
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(module, gradient_as_bucket_view=True) if way > 1 else module


def _backward(groups: int, parts: int) -> Callable[[], object]:
    """Both passes of a chain of small products, the backward one whole or in two halves.

    As torch's pipelines split it for `zero_bubble`: first gradients of inputs, then of weights.
    What that takes more is the host's time for each group of weights, and for the graph of some
    operators without weights between two of them, as a block has.
    """
    import torch
    from torch import nn
    from torch.distributed.pipelining import _backward as torchs
    from torch.nn.functional import gelu

    chain, x = nn.ModuleList(nn.Linear(8, 8) for _ in range(groups)), torch.ones(1, 8, 8)
    x.requires_grad_()

    def both() -> None:
        y = x
        for layer in chain:
            y = y + gelu(layer(y))
        if parts == 1:
            y.backward(torch.ones_like(y))  # type: ignore[no-untyped-call]
        else:
            _, kept = torchs.stage_backward_input(
                [y], [torch.ones_like(y)], [x], iter([*chain.parameters()])
            )
            torchs.stage_backward_weight(iter([*chain.parameters()]), kept)
        chain.zero_grad()
        x.grad = None

    return both


def _both(function: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], object]:
    """Forward pass of a function of tensors, and its gradients for all inputs of numbers."""
    import torch

    needed = [one.requires_grad_() for one in inputs if one.is_floating_point()]
    gradient = torch.ones_like(function(*inputs))
    return lambda: torch.autograd.grad(function(*inputs), needed, gradient)
