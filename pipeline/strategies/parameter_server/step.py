"""The parameter server's step: pull parameters, push gradients, the root alone updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import DataParallel

from pipeline.errors import UnsupportedError, refuse
from pipeline.parallel.collectives import collective
from pipeline.parallel.group import Group, flattened, unflatten
from pipeline.parallel.step import Stepper, Within
from pipeline.parallel.types import Batch, Defects, Parts, StepResult

ROOT = 0


class Star(Stepper):
    """The engine `process_group`: a process for each device.

    Rank 0 is the server and one of the workers; the others are workers only. The root adds the
    gradients in the order of the ranks, so equal inputs give equal bits.
    """

    def __init__(self, parts: Parts, defects: Defects) -> None:
        group = Group.join(parts.layout)
        super().__init__(parts.prepare(), group, reduce=self.push, defects=defects)

    def step(self, microbatches: Sequence[Batch]) -> None:
        """Pull the parameters, then the shared step."""
        self.pull()
        super().step(microbatches)

    @collective
    @torch.no_grad()
    def pull(self) -> None:
        """Every worker receives the root's parameters, which have one type."""
        parameters = list(self.model.parameters())
        flat = flattened(parameters)
        if self.is_root:
            for rank in range(1, self.group.size):
                dist.send(flat, rank)
        else:
            dist.recv(flat, ROOT)
            unflatten(flat, parameters)

    @collective
    def push(self) -> None:
        """The root receives every worker's gradients and keeps their mean."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        # Divided before they are added, as DDP does: a sum of scaled float16 may overflow.
        flat = flattened(gradients) / self.group.size
        flat = flat.to(self.precision.reduced or flat.dtype)
        if not self.is_root:
            dist.send(flat, ROOT)
            return
        incoming = torch.empty_like(flat)
        for rank in range(1, self.group.size):
            dist.recv(incoming, rank)
            flat += incoming
        unflatten(flat, gradients)

    def update(self) -> Tensor:
        """Clip and step on the root, which tells the others its loss scale where it has one."""
        norm = super().update() if self.is_root else torch.zeros(())
        if names := self.precision.scalars():
            scale = self.loss.new_tensor(list(names.values()), dtype=torch.float64)
            dist.broadcast(scale, ROOT)
            if not self.is_root:
                self.precision.follow(dict(zip(names, scale.tolist(), strict=True)))
        return norm

    def report(self) -> StepResult:
        """The mean loss over all ranks, and the root's gradient norm for all."""
        self.norm = self.norm.detach().to(self.loss.device, torch.float64)
        dist.broadcast(self.norm, ROOT)
        return super().report()

    def close(self) -> str:
        """Pull once more, so that every rank ends with the root's weights; then leave."""
        self.pull()
        return super().close()


class LateStar(Star):
    """The star whose gradients travel under the next step's passes; that step updates by them.

    In step t the gradients of step t - 1 make version t of the weights, and the passes have version
    t - `staleness`: with 1 they wait for the newest weights, with 2 these travel meanwhile too.
    All messages of a step begin and end within its clock. The last gradients are not taken.
    """

    def __init__(self, parts: Parts, defects: Defects, staleness: int) -> None:
        super().__init__(parts, defects)
        self.parameters = list(self.model.parameters())
        # This rank's gradients of the step before, divided by the number of ranks.
        self.late: Tensor | None = None
        self.incoming, self.on_the_way = list[Tensor](), list[Any]()
        self.has_mean = False
        # With a staleness of 2: what the root sends in this step, and the others receive.
        self.newest = flattened(self.parameters).detach() if staleness == 2 else None

    def step(self, microbatches: Sequence[Batch]) -> None:
        """Pull, where the passes wait for it; begin to send; then the shared step."""
        if self.newest is None:
            self.pull()
        self.begin_messages()
        Stepper.step(self, microbatches)

    @collective
    def begin_messages(self) -> None:
        """Hand over what travels while the passes run; `push` waits for it."""
        others = range(1, self.group.size)
        if self.is_root:
            if self.late is not None:
                self.incoming = [torch.empty_like(self.late) for _ in others]
                self.on_the_way += map(dist.irecv, self.incoming, others)
            if self.newest is not None:
                self.on_the_way += [dist.isend(self.newest, rank) for rank in others]
            return
        if self.late is not None:
            self.on_the_way.append(dist.isend(self.late, ROOT))
        if self.newest is not None:
            self.on_the_way.append(dist.irecv(self.newest, ROOT))

    @collective
    def push(self) -> None:
        """Keep this step's gradients; the root takes the mean of those of the step before."""
        gradients: Any = [parameter.grad for parameter in self.parameters]
        own = flattened(gradients).div_(self.group.size)
        for message in self.on_the_way:
            message.wait()
        self.on_the_way.clear()
        mean, self.late = self.late, own
        self.has_mean = mean is not None
        if mean is not None and self.is_root:
            for one in self.incoming:  # in the order of the ranks
                mean += one
            self.incoming.clear()
            unflatten(mean, gradients)
        else:
            for parameter in self.parameters:
                parameter.grad = None

    @torch.no_grad()
    def update(self) -> Tensor:
        """Update the newest weights by the late mean; the passes go on with those that were sent.

        The norm is that of the late mean; of the first step, which has none, it is zero.
        """
        if not self.has_mean:
            return torch.zeros(())
        # With a staleness of 2 the model has the version before, which the passes used.
        if self.newest is not None:
            unflatten(self.newest, self.parameters)
        norm = super().update()
        if self.newest is not None and self.is_root:
            # What the others have received by now is what all passes of the next step use.
            sent, self.newest = self.newest, flattened(self.parameters)
            unflatten(sent, self.parameters)
        return norm

    @torch.no_grad()
    def close(self) -> str:
        """End with the newest weights on every rank."""
        if self.newest is not None:
            unflatten(self.newest, self.parameters)
        return super().close()


def data_parallel(parts: Parts, defects: Defects) -> Stepper:
    """The engine `data_parallel`: torch.nn.DataParallel, whose first device is the root."""
    compiled = [one for one in parts.model.modules() if one._compiled_call_impl is not None]
    refuse(UnsupportedError, "engine data_parallel ", [
        (parts.layout.device != "cuda",
         f"needs CUDA devices, given {parts.layout.device}; use engine process_group"),
        (compiled,
         "copies modules, and copies of compiled ones run on the first device; set compile to "
         "false or use engine process_group"),
    ])  # fmt: skip
    # It runs a thread for each device, which must enter autocast by itself.
    casting = Within(parts.model, parts.precision.autocast)
    wrapped = DataParallel(casting, device_ids=list(range(parts.layout.devices_per_process)))
    return Stepper(parts.prepare(), forward=wrapped, defects=defects)
