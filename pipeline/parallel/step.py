"""The optimisation step that the strategies share: accumulate, reduce, clip, step - written once.

A strategy gives it three things: the callable that runs the forward pass, how the gradients of all
ranks become one mean gradient (`reduce`), and the context in which a micro-batch that is not the
last is run (`accumulating`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pipeline.parallel.cut import cut_of, held
from pipeline.parallel.group import ALONE, Ranks
from pipeline.parallel.reduction import Reduction
from pipeline.parallel.state import capture, restore, sha256_of, whole
from pipeline.parallel.types import (
    NO_DEFECTS,
    Batch,
    Defects,
    Prepared,
    SavedState,
    Shards,
    StepResult,
    already,
)
from pipeline.study.profiling import BACKWARD, COMMUNICATION, FORWARD, OPTIMISER, REST


class Stepper:
    """A `Trainable` for one process or for data parallelism with an all-reduce.

    `group` are all ranks of the layout. Where `forward` is a DistributedDataParallel, micro-batches
    before the last run under its `no_sync`, and what follows the last gradient of that one is
    communication. A `reduction` runs in the backward pass of the last one, before `reduce`.
    `norm` makes that of the whole gradient where ranks have parts of it.
    """

    def __init__(
        self,
        parts: Prepared,
        group: Ranks = ALONE,
        *,
        forward: Callable[..., Tensor] | None = None,
        reduce: Callable[[], None] = already,
        accumulating: Callable[[], AbstractContextManager[None]] = nullcontext,
        reduction: Reduction | None = None,
        norm: Callable[[list[Tensor]], Tensor] | None = None,
        defects: Defects = NO_DEFECTS,
    ) -> None:
        self.model, self.optimiser = parts.model, parts.optimiser
        self.precision, self.max_grad_norm = parts.precision, parts.max_grad_norm
        self.forward = self.model if forward is None else forward
        self.group, self.is_root = group, group.rank == 0
        self.data_parallel = parts.layout.data_parallel
        self.place = parts.layout.coordinate(group.rank)
        self.reduce, self.accumulating = reduce, accumulating
        self.defects, self.phases, self.reduction = defects, parts.phases, reduction
        self.after_gradients: str | None = None
        self.norm_of = norm
        if isinstance(forward, DistributedDataParallel):
            self.after_gradients, self.accumulating = COMMUNICATION, forward.no_sync
            self.phases.watch(self.model)
        defects.check(parts.layout.device, self.precision.info)
        self.loss = self.norm = torch.zeros(())
        self.tokens = 0

    def barrier(self) -> None:
        """Return when every rank has come here. Collective."""
        self.group.barrier()

    def step(self, microbatches: Sequence[Batch]) -> None:
        """Accumulate over the micro-batches, reduce, clip by the global norm, step."""
        self.loss = self.accumulate(microbatches)
        self.norm = self.update()
        self.phases.begin(REST)
        if self.defects.empty_cache:
            torch.cuda.empty_cache()
        self.tokens = sum(batch.inputs.numel() for batch in microbatches) * self.data_parallel

    def report(self) -> StepResult:
        """The mean loss over all ranks, and the norm that every rank has."""
        loss = float(self.mean(self.loss.clone()))
        return StepResult(loss, float(self.norm), self.tokens)

    def squares(self) -> dict[str, float]:
        """Of each parameter's mean gradient the sum of squares that this rank is the first to hold.

        Added up over the ranks they are those of the whole gradient, after a step as it was
        clipped; nothing is sent. Gradients that a library has dropped by then are left out.
        """
        # Of a narrow weight and its wider master the one that is clipped has the gradient.
        clipped = {id(tensor) for tensor in self.precision.clip_parameters(self.optimiser)}
        names, norms = list[str](), list[Tensor]()
        for name, weight, owner in self.precision.owners(self.model, self.optimiser):
            tensor = owner if id(owner) in clipped else weight
            if tensor.grad is None:
                continue
            own = held(tensor.grad, tensor)
            if self.is_first_with(name, own.axes):
                for box in own.boxes:
                    names.append(name)
                    norms.append(torch.linalg.vector_norm(box.of(own.part), dtype=torch.float64))
        squares = dict.fromkeys(names, 0.0)
        for name, norm in zip(names, torch.stack(norms).tolist() if norms else [], strict=True):
            squares[name] += norm**2
        return squares

    def mean(self, part: Tensor) -> Tensor:
        """The mean over the global batch of the parts of all ranks, such as their losses."""
        return self.group.mean(part)

    def accumulate(self, microbatches: Sequence[Batch]) -> Tensor:
        """Forward and backward passes; returns this rank's mean loss, gradients reduced."""
        self.precision.zero_grad(self.optimiser)
        total = torch.zeros((), device=microbatches[0].inputs.device)
        weighted, count = microbatches[0].weights is not None, len(microbatches)
        if self.reduction is not None:
            self.reduction.begin(count)
        for index, batch in enumerate(self.weighed(microbatches)):
            # The passes before the last only add up gradients on this rank; nothing is sent.
            last = index == count - 1
            with nullcontext() if last else self.accumulating():
                self.phases.begin(FORWARD)
                with self.precision.autocast():
                    losses = self.forward(*batch.given)  # one for each device of this process
                    # Weights are shares of the global batch; a mean is that of this micro-batch.
                    loss = losses.sum() if weighted else losses.mean() / count
                total += loss.detach()
                self.phases.begin(BACKWARD, after_gradients=self.after_gradients if last else None)
                with self.precision.scaled(loss, self.optimiser, last=last) as scaled:
                    torch.autograd.backward(scaled)
                    if last:
                        self.reduced()
        return total

    def weighed(self, microbatches: Sequence[Batch]) -> Sequence[Batch]:
        """Micro-batches with weights such that means over the ranks, of sums, are global means.

        Each is divided by `mean_weight` of its loss; then the losses' weights are added, since no
        two weigh the same target. Collective; without weights nothing changes.
        """
        some = [batch.weights for batch in microbatches if batch.weights is not None]
        if not some:
            return microbatches
        whole = self.mean_weight(some).unsqueeze(1)
        shares = [(weights / whole).sum(dim=1) for weights in some]
        pairs = zip(microbatches, shares, strict=True)
        return [batch._replace(weights=weights) for batch, weights in pairs]

    def mean_weight(self, weights: Sequence[Tensor]) -> Tensor:
        """Weight of each loss in the global batch over the number of ranks, (losses,). Collective.

        Where nothing has a weight all sums are zero, whatever positive number divides them.
        """
        weight = torch.stack([each.sum(dim=(0, 2)) for each in weights]).sum(dim=0)
        return self.group.mean(weight).clamp(min=1 / self.data_parallel)

    def reduced(self) -> None:
        """Reduce; what the precision does afterwards prepares the update."""
        if self.reduction is not None:
            self.reduction.finish()
        self.reduce()
        self.phases.begin(OPTIMISER)

    def update(self) -> Tensor:
        """Clip and step; returns the L2 norm of the gradient before clipping."""
        norm = self.clip(list(self.precision.clip_parameters(self.optimiser)))
        for _ in range(self.defects.optimiser_steps):  # one, unless that defect is to be shown
            self.precision.step(self.optimiser)
        return norm

    def clip(self, parameters: list[Tensor]) -> Tensor:
        """Clip the gradients in place by their global L2 norm; returns it."""
        if self.norm_of is not None:
            return self.clip_by(self.norm_of(parameters), parameters)
        return torch.nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)

    def clip_by(self, norm: Tensor, parameters: list[Tensor]) -> Tensor:
        """Clip parts of the gradients by the norm of the whole, and return it.

        Where a rank alone has an infinity, the norm is infinite on all, which skip the step then.
        """
        torch.nn.utils.clip_grads_with_norm_(parameters, self.max_grad_norm, norm)
        self.precision.overflowed(self.optimiser, norm)
        return norm

    def agree(self, good: bool) -> bool:
        """True where it is so on every rank. Collective."""
        # By a mean, the one collective that every group of ranks has.
        bad = torch.full((), float(not good), device=self.loss.device)
        return float(self.group.mean(bad)) == 0.0

    def complete(self) -> None:
        """Have the weights of the last step, where they are sent in the next one. Collective."""
        if self.reduction is not None:
            self.reduction.publish()

    def shards(self) -> Shards:
        """Pieces of weights and slots that this rank is the first to hold; nothing is sent."""
        return capture(self.model, self.optimiser, self.precision, self.is_first_with)

    def is_first_with(self, name: str, axes: Collection[str]) -> bool:
        """True where no rank before this one holds its part of a parameter, which `axes` cut."""
        return not any(at for axis, at in self.place.items() if axis not in axes)

    def load(self, state: SavedState) -> None:
        """Continue from what this rank holds of `state`."""
        restore(state, self.model, self.optimiser, self.precision)

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        """Names and whole weights, put together one after the other. Collective."""
        return ((name, whole(parameter)) for name, parameter in self.model.named_parameters())

    def close(self) -> str:
        """Hash the final weights and leave the group of ranks."""
        self.complete()
        digest = sha256_of(self.weights())
        self.group.leave()
        return digest


def whole_norm(parameters: list[Tensor], ranks: dist.ProcessGroup) -> Tensor:
    """The L2 norm of all gradients, of which some are parts over these ranks. Collective."""
    parts = [p.grad for p in parameters if p.grad is not None and cut_of(p) is not None]
    rest = [p.grad for p in parameters if p.grad is not None and cut_of(p) is None]
    squares = total_norm(parts) ** 2
    # What is whole is the same on all of these ranks, and counts once.
    dist.all_reduce(squares, group=ranks)
    return (squares + total_norm(rest) ** 2).sqrt()


def norm_over(parameters: list[Tensor], ranks: dist.ProcessGroup | None = None) -> Tensor:
    """The L2 norm of what each of these ranks, None for all, has of the gradients. Collective."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    squares = torch.nn.utils.get_total_norm(gradients).double() ** 2
    dist.all_reduce(squares, group=ranks)
    return squares.sqrt().float()


def total_norm(gradients: list[Tensor]) -> Tensor:
    """The L2 norm of gradients, of shards over the ranks that hold them together. Collective."""
    norm = torch.nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


class Within(nn.Module):
    """A module whose forward pass enters `context` itself, in whatever thread it runs.

    torch's DataParallel runs one thread for each device and re-enters autocast there, without its
    dtype: bfloat16 would become float16.
    """

    def __init__(
        self, model: nn.Module, context: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        super().__init__()
        self.model, self.context = model, context

    def forward(self, *inputs: Tensor | None) -> Any:
        """The pass of the model."""
        with self.context():
            return self.model(*inputs)
