"""torch's DistributedDataParallel: every rank holds all weights, gradients are averaged.

By all-reduces that overlap the backward pass (Li et al., VLDB 2020), or compressed by one of
torch's communication hooks. Bai 2022 calls it Distributed Parameter Server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipeline import models
from pipeline.cost.traffic import Traffic
from pipeline.errors import StudyError, UnsupportedError
from pipeline.models import FP32, HALF
from pipeline.parallel.mesh import BUCKET_BYTES, DATA, Degrees, Layout
from pipeline.parallel.types import Defects, Parts, Trainable
from pipeline.precision.widths import widths
from pipeline.strategies.base import PLAIN, Footprint, Strategy, along, bucket_bytes
from pipeline.study.spec import RunSpec, WorldSpec

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

NONE, POWERSGD = "none", "powersgd"
FIRST_BUCKET_BYTES = 2**20
"""torch's, under its own default of the others, so that something is sent early."""
LEAST_SAVING = 2
"""PowerSGD leaves a matrix whole whose factors have over a half of its numbers: torch's default."""


@dataclass(frozen=True)
class Ddp(Strategy):
    """`bucket_cap_mb`: gradients are all-reduced in buckets of this many MiB.

    The default is torch's own, where the first bucket has 1 MiB so that it is sent early.

    `compression`: `fp16` or `bf16` are what gradients travel as; `powersgd` sends of each matrix
    two factors of rank `powersgd_rank` (Vogels et al. 2019, arXiv 1905.13727), after the first
    `powersgd_start` steps, which are sent in full. It changes the step.

    `empty_cache`: see `parallel.types.Defects`.
    """

    whole_forward = True
    use = "the model and its optimiser fit one device"
    changes_the_step = ("compression", "powersgd_rank", "powersgd_start")
    lossy_wire = (("compression", "fp16"),)  # for bf16 no band was measured
    choices = (("compression", (NONE, "fp16", "bf16", POWERSGD)),)
    # DDP lays out its buckets anew after the first step, so PowerSGD starts with the third.
    ranges = (("bucket_cap_mb", 0.001, 1_000_000), ("powersgd_rank", 1, 1_000_000),
              ("powersgd_start", 2, 1_000_000))  # fmt: skip

    bucket_cap_mb: float = 25.0
    compression: str = NONE
    powersgd_rank: int = 1
    powersgd_start: int = 2
    empty_cache: bool = False

    @property
    def unlike(self) -> tuple[int, str]:
        """Steps that are sent in full before PowerSGD starts."""
        start = self.powersgd_start if self.compression == POWERSGD else 0
        return start, "are sent in full (powersgd_start)"

    @property
    def resumes(self) -> bool:
        """Not with PowerSGD: what each rank held back lies in the order of DDP's buckets."""
        return self.compression != POWERSGD

    def layout(self, world: WorldSpec) -> Layout:
        """One process per device; raises StudyError on a compression that no run can have."""
        if self.compression != POWERSGD and (self.powersgd_rank, self.powersgd_start) != (1, 2):
            raise StudyError(
                f"ddp options powersgd_rank {self.powersgd_rank} and powersgd_start "
                f"{self.powersgd_start} do nothing with compression {self.compression}; leave them "
                "out, or set it to powersgd"
            )
        return super().layout(world)

    def check_precision(self, name: str) -> None:
        """Raise UnsupportedError for a compression of gradients that are narrow or scaled."""
        if self.compression != NONE and name not in PLAIN:
            raise UnsupportedError(
                f"ddp compression {self.compression} takes fp32 gradients without a loss scale, "
                f"which {name} has not; use {', '.join(PLAIN)}, or precision bf16_reduced "
                "without compression"
            )

    def one_graph(self, spec: RunSpec) -> bool:
        """True where DDP itself reduces: torch cuts the graph at its buckets, of 1 MiB at least."""
        return self.bucket_cap_mb >= 1 and not widths(spec.precision).wide_gradients

    def knobs(self, degrees: Degrees) -> dict[str, Any] | None:
        """None of its own, along the data axis alone."""
        data, pieces = degrees.data, degrees.microbatches
        return {} if data > 1 and degrees == Degrees(data, microbatches=pieces) else None

    def degrees(self, spec: RunSpec, layout: Layout) -> Degrees | None:
        """None where the cache is emptied or gradients are compressed."""
        plain = self.compression == NONE and not self.empty_cache
        return super().degrees(spec, layout) if plain else None

    def footprint(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Footprint:
        """Gradients are views of DDP's buckets, which stay for the whole run; ours do not."""
        bucket = bucket_bytes(spec.model, gradients, self.bucket_cap_mb * 2**20)
        if widths(spec.precision).wide_gradients:
            return Footprint(bucket)
        if self.compression == NONE:
            return Footprint(0, holds_gradients=True)
        if self.compression != POWERSGD:  # narrow copies of the buckets that are on their way
            return Footprint(gradients // 2, holds_gradients=True)
        # What was held back stays for the next step; of one bucket at a time there is a copy.
        return Footprint(bucket, holds_gradients=True, gathered_bytes=gradients)

    def sends(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Sequence[Traffic]:
        """One all-reduce of the gradients, or of their factors, in buckets in the backward pass."""
        sizes = self._buckets(spec)
        count, last = len(sizes), sizes[-1] / sum(sizes)
        formula, payload = "2(n-1)/n G", gradients
        if self.compression == POWERSGD:
            formula += ", of matrices their factors"
            payload, count = self._factors(spec), 3 * count
        elif self.compression != NONE:
            payload = gradients * HALF // FP32
        sent = along(layout, DATA, formula, 2 * payload, count, overlap=True)
        return [replace(one, last=last) for one in sent]

    def _buckets(self, spec: RunSpec) -> list[int]:
        """Numbers in each bucket, which the weight that fills it closes, last weights first."""
        cap, own = self.bucket_cap_mb * 2**20, widths(spec.precision).wide_gradients
        limit = FIRST_BUCKET_BYTES if cap == BUCKET_BYTES and not own else cap
        found, width = [0], widths(spec.precision).gradient
        for shape in [*models.family(spec.model).parameter_shapes(spec.model).values()][::-1]:
            if width * found[-1] >= limit:
                found.append(0)
                limit = cap
            found[-1] += math.prod(shape)
        return found

    def _factors(self, spec: RunSpec) -> int:
        """Bytes of the factors of the matrices, and of what is sent whole.

        Of (n, m) numbers the factors have r (n + m); a tensor of one dimension is a column.
        """
        numbers = 0
        for shape in models.family(spec.model).parameter_shapes(spec.model).values():
            rows, columns = shape[0], math.prod(shape[1:])
            rank = min(rows, columns, self.powersgd_rank)
            low = rank * (rows + columns)
            numbers += low if LEAST_SAVING * low < rows * columns else rows * columns
        return FP32 * numbers

    def build(self, parts: Parts) -> Trainable:
        """Wrap the model, whose last backward pass in a step then reduces."""
        from pipeline.parallel.group import Group
        from pipeline.parallel.reduction import averaged
        from pipeline.parallel.step import Stepper

        group, prepared = Group.join(parts.layout), parts.prepare()
        reducing = averaged(parts, bucket_bytes=self.bucket_cap_mb * 2**20)
        if self.compression != NONE:
            self._compress(reducing["forward"])
        return Stepper(prepared, group, defects=Defects(self.empty_cache), **reducing)

    def _compress(self, wrapped: DistributedDataParallel) -> None:
        """Reduce by a hook of torch's, which divides before it adds."""
        import torch.distributed.algorithms.ddp_comm_hooks.default_hooks as narrowing
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

        from pipeline.parallel.collectives import collective

        if self.compression != POWERSGD:
            # Under its own name torch refuses the bf16 hook on a CPU, where Gloo reduces bfloat16.
            hook: Callable[..., Any] = getattr(narrowing, f"{self.compression}_compress_hook")
            wrapped.register_comm_hook(None, lambda state, bucket: hook(state, bucket))
            return
        factors = powersgd.PowerSGDState(
            None, self.powersgd_rank, self.powersgd_start, LEAST_SAVING
        )

        @collective
        def reduce(state: Any, bucket):  # type: ignore[no-untyped-def]
            reduced = powersgd.powerSGD_hook(state, bucket)
            if bucket.buffer().device.type == "cpu":
                # Its callbacks wait in Gloo's threads for further messages. Those of two buckets
                # would hold both threads, and neither message would ever be sent.
                reduced.wait()
            return reduced

        wrapped.register_comm_hook(factors, reduce)
