"""The shared step without a reduction, and after every few of them one on the weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.parallel.cut import ROWS_NAME, RowRange
from pipeline.parallel.group import Group, buckets, flattened, mesh_of
from pipeline.parallel.state import fill, pieces_of, reading, slots_of
from pipeline.parallel.step import Stepper
from pipeline.parallel.types import Parts, SavedState, Shards, StepResult, slot_name, weight_name
from pipeline.strategies.local_sgd.plan import LocalSgd

LOCAL, OUTER, ALONE = "local", "outer_", "steps_alone"
"""Names in a checkpoint: a slot of a rank's own weights, the beginning of the outer optimiser's
slots, and the number of steps since the last synchronisation."""


class LocalStepper(Stepper):
    """A step of `single` on this rank's share of the batch; loss and norm are means of all ranks'.

    `anchors` are the weights of the last synchronisation, the same on all ranks, by parameter.
    """

    def __init__(self, parts: Parts, knobs: LocalSgd) -> None:
        """Join the ranks, whose weights are those of one seed. Collective."""
        group = Group.join(parts.layout)
        self.ranks = mesh_of(parts.layout).get_group()
        super().__init__(parts.prepare(), group)
        self.inner_steps, self.alone = knobs.inner_steps, 0
        self.anchors = {p: p.detach().clone() for p in self.model.parameters()}
        self.outer = torch.optim.SGD(
            self.anchors.values(),
            lr=knobs.outer_learning_rate,
            momentum=knobs.outer_momentum,
            nesterov=knobs.outer_momentum > 0,
        )

    def mean_weight(self, weights: Sequence[Tensor]) -> Tensor:
        """Weight of this rank's own share: no other rank's gradients are added."""
        return torch.stack([each.sum(dim=(0, 2)) for each in weights]).sum(dim=0).clamp(min=1)

    def update(self) -> Tensor:
        """Clip and step alone; the last step of a round ends with the outer one."""
        norm = super().update()
        self.alone += 1
        if self.alone == self.inner_steps:
            # At a rate of 0 steps are timed alone, and leave the weights as they are.
            self.synchronise(moves=bool(self.optimiser.param_groups[0]["lr"]))
        return norm

    @torch.no_grad()
    def synchronise(self, *, moves: bool = True) -> None:
        """Step the anchors by the mean of what all ranks have moved by, and begin there again.

        Collective. In buckets, one after the other: no rank keeps all differences at once.
        """
        for parameters in buckets(self.anchors):
            anchors = [self.anchors[parameter] for parameter in parameters]
            # Anchor less weight: SGD subtracts its gradient, and so goes to where the ranks went.
            moved = flattened(anchors).sub_(flattened(parameters)).div_(self.group.size)
            dist.all_reduce(moved, group=self.ranks)
            if not moves:
                continue
            sizes = [anchor.numel() for anchor in anchors]
            for anchor, piece in zip(anchors, torch.split(moved, sizes), strict=True):
                anchor.grad = piece.view_as(anchor)
            self.outer.step()  # those without a gradient stay
            for parameter, anchor in zip(parameters, anchors, strict=True):
                parameter.copy_(anchor)
                anchor.grad = None
        self.alone = 0

    def report(self) -> StepResult:
        """The mean over all ranks of their losses and of the norms of their own gradients."""
        loss, norm = self.mean(torch.stack([self.loss, self.norm])).tolist()
        return StepResult(loss, norm, self.tokens)

    def _kept(self) -> Iterator[tuple[str, Tensor]]:
        """Tensors of a checkpoint by name; one that only this rank has is its row of all ranks'."""
        for name, parameter in self.model.named_parameters():
            anchor = self.anchors[parameter]
            yield weight_name(name), anchor
            for slot, tensor in self.outer.state[anchor].items():
                yield slot_name(name, OUTER + slot), tensor
            for slot, tensor in {LOCAL: parameter, **self.optimiser.state[parameter]}.items():
                row = tensor.detach()[None]
                shape = (self.group.size, *tensor.shape)
                setattr(row, ROWS_NAME, RowRange(self.group.rank, shape, self.ranks))
                yield slot_name(name, slot), row

    def shards(self) -> Shards:
        """This rank's own weights and slots, and of the first rank what all have."""
        first = partial(self.is_first_with, "")
        kept = [pieces_of(name, tensor, tensor, first) for name, tensor in self._kept()]
        return Shards([*chain(*kept)], {ALONE: float(self.alone)})

    def load(self, state: SavedState) -> None:
        """Continue from `state`, of as many ranks; raises StudyError for another state."""
        slots = slots_of(state)
        with reading(state):
            for name, parameter in self.model.named_parameters():
                anchor = self.anchors[parameter]
                for slot in slots[name]:
                    saved = state.wholes[slot_name(name, slot)]
                    if slot.startswith(OUTER):
                        made = self.outer.state[anchor]
                        made[slot.removeprefix(OUTER)] = torch.empty_like(anchor)
                    elif slot != LOCAL:
                        self.optimiser.state[parameter][slot] = torch.empty(
                            saved.shape[1:], dtype=getattr(torch, saved.dtype), device=anchor.device
                        )
            for name, tensor in self._kept():
                fill(tensor, tensor, state, name)
            self.alone = int(state.scalars[ALONE])

    def close(self) -> str:
        """End the round, so that all ranks have the same weights, and leave."""
        if self.alone:
            self.synchronise()
        return super().close()
