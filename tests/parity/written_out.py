"""Algorithms of publications, written out in one process without a collective.

The suite holds against these what several ranks compute: LAMB, whose norms are of whole tensors,
and steps that are changed on purpose, where each rank's share of the batch comes one after the
other and then the arithmetic of the publication.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.parallel.state import sha256_of
from pipeline.parallel.step import Stepper
from pipeline.parallel.types import Batch, Parts, Piece, SavedState, Shards, StepResult, Trainable
from pipeline.strategies.base import Strategy
from pipeline.strategies.local_sgd.plan import LocalSgd
from pipeline.strategies.parameter_server.plan import ParameterServer
from pipeline.strategies.single import Single
from pipeline.training.optimiser import Lamb


class PlainLamb(Lamb):
    """Algorithm 2 of You et al. 2020 (arXiv 1904.00962) for tensors that are whole, one by one."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            (beta1, beta2), decay = group["betas"], group["weight_decay"]
            for weight in group["params"]:
                if not (state := self.state[weight]):
                    state["step"] = torch.zeros(())
                    state["exp_avg"] = torch.zeros_like(weight)
                    state["exp_avg_sq"] = torch.zeros_like(weight)
                mean, square = state["exp_avg"], state["exp_avg_sq"]
                state["step"] += 1
                count = float(state["step"])
                mean.copy_(beta1 * mean + (1 - beta1) * weight.grad)
                square.copy_(beta2 * square + (1 - beta2) * weight.grad**2)
                root = (square / (1 - beta2**count)).sqrt() + group["eps"]
                update = mean / (1 - beta1**count) / root + decay * weight
                length, size = weight.norm(), update.norm()
                ratio = length / size if length > 0 and size > 0 else 1.0
                weight -= group["lr"] * ratio * update


@dataclass(frozen=True)
class WrittenOut(Single):
    """One process in place of many."""

    make: Callable[[Parts], Trainable] | None = None

    def build(self, parts: Parts) -> Trainable:
        assert self.make is not None
        return self.make(parts)


def written_out(strategy: Any, count: int) -> Strategy | None:
    """`count` ranks of a strategy that changes the step; None where its algorithm is not here."""
    if isinstance(strategy, LocalSgd):
        return WrittenOut(make=lambda parts: Replicas(parts, count, strategy))
    if isinstance(strategy, ParameterServer):
        return WrittenOut(make=lambda parts: Late(parts, strategy.staleness))
    combine: dict[str, Callable[[], Combine]] = {
        "fp16": lambda: narrow_mean(torch.float16),
        "bf16": lambda: narrow_mean(torch.bfloat16),
        "powersgd": lambda: PowerSgd(strategy.powersgd_rank, strategy.powersgd_start),
    }
    if (make := combine.get(getattr(strategy, "compression", ""))) is None:
        return None
    return WrittenOut(make=lambda parts: Combined(parts, count, make()))


def shares(microbatches: Sequence[Batch], count: int) -> list[list[Batch]]:
    """The micro-batches of each rank: consecutive sequences of the global batch, cut as often."""
    given = [batch.given for batch in microbatches]
    wholes = [torch.cat(parts) for parts in zip(*given, strict=True)]
    each = zip(*(whole.chunk(count) for whole in wholes), strict=True)
    cut = ([part.chunk(len(given)) for part in share] for share in each)
    return [[Batch(*piece) for piece in zip(*share, strict=True)] for share in cut]


Combine = Callable[[list[list[Tensor]], list[int]], list[Tensor]]
"""Gradients of each rank, and in which order they came -> those that all ranks step with."""


class Combined(Stepper):
    """The shared step, with gradients of all ranks made one by `combine`."""

    def __init__(self, parts: Parts, count: int, combine: Combine) -> None:
        super().__init__(parts.prepare())
        self.count, self.combine = count, combine
        self.parameters = list(self.model.parameters())
        self.order: list[int] = []
        for place, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(
                lambda _, place=place: self.order.append(place)
            )

    def accumulate(self, microbatches: Sequence[Batch]) -> Tensor:
        """Mean loss of all ranks; leaves the gradients that they would have."""
        each, total = [], torch.zeros(())
        for share in shares(microbatches, self.count):
            total += super().accumulate(share) / self.count
            each.append([parameter.grad for parameter in self.parameters])
        gradients: Any = each
        combined = self.combine(gradients, self.order[: len(self.parameters)])
        for parameter, gradient in zip(self.parameters, combined, strict=True):
            parameter.grad = gradient
        return total


def narrow_mean(dtype: torch.dtype) -> Combine:
    """Each is narrowed, then divided, and added up as narrow as it is."""

    def combine(each: list[list[Tensor]], order: list[int]) -> list[Tensor]:
        narrow = [[one.to(dtype) / len(each) for one in own] for own in each]
        return [sum(ones[1:], ones[0]).float() for ones in zip(*narrow, strict=True)]

    return combine


class PowerSgd:
    """Algorithms 1 and 2 of Vogels et al. 2019 (arXiv 1905.13727), in one bucket.

    As torch has it: the first `start` steps are exact, first factors are random and the same on all
    ranks, in the order in which gradients come, and a matrix that saves too little is sent whole.
    """

    def __init__(self, rank: int, start: int) -> None:
        self.rank, self.exact = rank, start
        self.errors: dict[tuple[int, int], Tensor] = {}
        self.factors: dict[int, Tensor] = {}

    def __call__(self, each: list[list[Tensor]], order: list[int]) -> list[Tensor]:
        means = [sum(ones) / len(each) for ones in zip(*each, strict=True)]
        if self.exact:
            self.exact -= 1
            return means
        if not self.factors:
            self._draw(means, order)
        for place, q in self.factors.items():
            shape = (len(means[place]), -1)
            wanted = [
                own[place].view(shape) + self.errors.get((rank, place), 0)
                for rank, own in enumerate(each)
            ]
            q = torch.linalg.qr(q)[0]
            p = torch.linalg.qr(sum(one @ q for one in wanted))[0]
            q = sum(one.T @ p for one in wanted) / len(each)
            sent = p @ q.T
            for rank, one in enumerate(wanted):
                self.errors[rank, place] = one - sent
            self.factors[place], means[place] = q, sent.view_as(means[place])
        return means

    def _draw(self, like: list[Tensor], order: list[int]) -> None:
        """Second factors of the matrices, those of one shape after one another."""
        by_shape: dict[tuple[int, int], list[int]] = {}
        for place in order:
            rows = len(like[place])
            columns = like[place].numel() // rows
            rank = min(rows, columns, self.rank)
            if 2 * rank * (rows + columns) < rows * columns:
                by_shape.setdefault((rows, columns), []).append(place)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(np.random.RandomState(0).randint(1_000_000_000))
            for (rows, columns), places in by_shape.items():
                for place in places:
                    self.factors[place] = torch.randn(columns, min(rows, columns, self.rank))


class Late(Stepper):
    """Delayed SGD (Langford et al. 2009, algorithm 2) on one device: a gradient at old weights.

    Step t makes a gradient at version t - `staleness` of the weights, and version t by that of step
    t - 1. All versions and gradients are kept.
    """

    def __init__(self, parts: Parts, staleness: int) -> None:
        super().__init__(parts.prepare())
        self.parameters, self.staleness = list(self.model.parameters()), staleness
        self.versions = [self.copies()]
        self.gradients: list[Any] = []

    def copies(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def have(self, version: int) -> None:
        for parameter, value in zip(self.parameters, self.versions[version], strict=True):
            parameter.copy_(value)

    def accumulate(self, microbatches: Sequence[Batch]) -> Tensor:
        step = len(self.gradients)
        self.have(max(0, step - self.staleness))
        loss = super().accumulate(microbatches)
        self.gradients.append([parameter.grad for parameter in self.parameters])
        self.have(-1)
        before = self.gradients[step - 1] if step else [None] * len(self.parameters)
        for parameter, gradient in zip(self.parameters, before, strict=True):
            parameter.grad = gradient
        return loss

    def update(self) -> Tensor:
        norm = super().update()  # of nothing in the first step
        if len(self.gradients) > 1:
            self.versions.append(self.copies())
        return norm


class Replicas:
    """Algorithm 1 of Douillard et al. 2023 (arXiv 2311.08105): `count` workers, each a model.

    Its loss and norm are means over the workers; gradients that the suite sees are the first's.
    """

    def __init__(self, parts: Parts, count: int, plan: LocalSgd) -> None:
        models = [parts.model, *(deepcopy(parts.model) for _ in range(count - 1))]
        self.workers = [Stepper(replace(parts, model=model).prepare()) for model in models]
        self.plan, self.model, self.optimiser = plan, parts.model, self.workers[0].optimiser
        self.outer = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        self.momentum: dict[str, Tensor] = {}
        self.alone = 0
        self.result = StepResult(0.0, 0.0, 0)

    def barrier(self) -> None:
        """Nobody else is there."""

    def agree(self, good: bool) -> bool:
        return good

    def step(self, microbatches: Sequence[Batch]) -> None:
        losses, norms = list[Tensor](), list[Tensor]()
        each = shares(microbatches, len(self.workers))
        for at, share in reversed([*enumerate(each)]):
            worker = self.workers[at]
            for group in worker.optimiser.param_groups:
                group["lr"] = self.optimiser.param_groups[0]["lr"]
            losses.append(worker.accumulate(share))
            norms.append(worker.update() if at else self.update())
        self.alone += 1
        if self.alone == self.plan.inner_steps:
            self.synchronise()
        tokens = sum(ids.numel() for ids, *_ in microbatches)
        loss, norm = (float(torch.stack(values).mean()) for values in (losses, norms))
        self.result = StepResult(loss, norm, tokens)

    def update(self) -> Tensor:
        """Clip and step the first worker, whose turn is the last; the suite looks on."""
        return self.workers[0].update()

    @torch.no_grad()
    def synchronise(self) -> None:
        """Nesterov momentum on the mean of what the workers have moved by, away from it."""
        rate, friction = self.plan.outer_learning_rate, self.plan.outer_momentum
        for name, outer in self.outer.items():
            moved = [worker.model.get_parameter(name) for worker in self.workers]
            gradient = sum(outer - local for local in moved) / len(moved)
            if friction:
                gathered = friction * self.momentum.get(name, torch.zeros_like(outer)) + gradient
                self.momentum[name], gradient = gathered, gradient + friction * gathered
            outer -= rate * gradient
            for local in moved:
                local.copy_(outer)
        self.alone = 0

    def report(self) -> StepResult:
        return self.result

    def squares(self) -> dict[str, float]:
        return self.workers[0].squares()

    def state(self) -> Iterator[tuple[str, list[Tensor]]]:
        """Tensors of a checkpoint by name: one, or one of each worker."""
        for name, outer in self.outer.items():
            yield f"weights/{name}", [outer]
            if name in self.momentum:
                yield f"optimiser/{name}/outer_momentum_buffer", [self.momentum[name]]
            each = [(worker.optimiser, worker.model.get_parameter(name)) for worker in self.workers]
            yield f"optimiser/{name}/local", [local.detach() for _, local in each]
            kept = [optimiser.state[local] for optimiser, local in each]
            for slot in kept[0]:
                yield f"optimiser/{name}/{slot}", [one[slot] for one in kept]

    def shards(self) -> Shards:
        pieces = []
        for name, tensors in self.state():
            shared = name.startswith("weights/") or name.endswith("/outer_momentum_buffer")
            whole = tensors[0].clone() if shared else torch.stack(tensors)
            pieces.append(Piece(name, tuple(whole.shape), (0,) * whole.dim(), whole))
        return Shards(pieces, {"steps_alone": float(self.alone)})

    def load(self, state: SavedState) -> None:
        raise NotImplementedError("its checkpoint is compared, not continued")

    def close(self) -> str:
        if self.alone:
            self.synchronise()
        return sha256_of((n, p.detach()) for n, p in self.model.named_parameters())
