"""Distributed Parameter Server, as the study calls it: torch's DistributedDataParallel.

Every rank holds all weights; gradients are averaged by an all-reduce that overlaps the backward
pass (Li et al., VLDB 2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.parallel.mesh import DATA, Degrees, Layout
from pipeline.parallel.types import Parts, Trainable
from pipeline.parallel.wire import Sends
from pipeline.precision.widths import widths
from pipeline.strategies.base import Footprint, Strategy, along
from pipeline.study.spec import RunSpec


@dataclass(frozen=True)
class Ddp(Strategy):
    """`bucket_cap_mb`: gradients are all-reduced in buckets of this many MiB.

    The default is torch's own, where the first bucket has 1 MiB so that it is sent early.

    `empty_cache`: see `parallel.faults`.
    """

    whole_forward = True
    use = "the model and its optimiser fit one device"

    bucket_cap_mb: float = 25.0
    empty_cache: bool = False

    def knobs(self, degrees: Degrees) -> dict[str, Any] | None:
        """None of its own, along the data axis alone."""
        data, pieces = degrees.data, degrees.microbatches
        return {} if data > 1 and degrees == Degrees(data, microbatches=pieces) else None

    def degrees(self, spec: RunSpec, layout: Layout) -> Degrees | None:
        """None where the cache is emptied."""
        return None if self.empty_cache else super().degrees(spec, layout)

    def footprint(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Footprint:
        """Gradients are views of DDP's buckets, which stay for the whole run; ours do not."""
        if widths(spec.precision).wide_gradients:
            return Footprint(int(min(self.bucket_cap_mb * 2**20, gradients)))
        return Footprint(0, holds_gradients=True)

    def sends(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> tuple[Sends, ...]:
        """One all-reduce of the gradients, in buckets during the backward pass."""
        buckets = max(1.0, gradients / (self.bucket_cap_mb * 2**20))
        return along(layout, DATA, "2(n-1)/n G", 2 * gradients, buckets, overlap=True)

    def build(self, parts: Parts) -> Trainable:
        """Wrap the model, whose last backward pass in a step then reduces."""
        from torch.nn.parallel import DistributedDataParallel

        from pipeline.parallel.faults import Faults
        from pipeline.parallel.group import Group, mesh_of
        from pipeline.parallel.reduction import mean_of
        from pipeline.parallel.step import Stepper

        group, faults = Group.join(parts.layout), Faults(self.empty_cache)
        prepared = parts.prepare()
        if parts.precision.wide_gradients:  # torch's buckets have the type of the weights
            reduction = mean_of(
                parts, mesh_of(parts.layout).get_group(), self.bucket_cap_mb * 2**20
            )
            return Stepper(prepared, group, reduction=reduction, faults=faults)
        wrapped = DistributedDataParallel(
            parts.model,
            # torch's own default has a smaller first bucket, which it has under no other size.
            bucket_cap_mb=None if self.bucket_cap_mb == 25 else self.bucket_cap_mb,
            gradient_as_bucket_view=True,
        )
        # Buffers are constants here, such as the frequencies of rotary positions.
        wrapped.broadcast_buffers = False
        return Stepper(prepared, group, forward=wrapped, faults=faults)
