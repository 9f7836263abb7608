"""The shared step over DistributedOptimizer; only `build` loads this, for it imports Horovod."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline.emulation import pacing
from pipeline.errors import UnsupportedError
from pipeline.parallel.collectives import collective
from pipeline.parallel.group import Ranks
from pipeline.parallel.step import Stepper
from pipeline.parallel.types import Batch, Defects, Parts, Prepared, SavedState
from pipeline.strategies.horovod import job
from pipeline.strategies.horovod.plan import settled
from pipeline.study.profiling import COMMUNICATION

ROOT = 0


class WireBfloat16:
    """Gradients as they are, bfloat16 as float32: Horovod 0.28 cannot reduce bfloat16."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        """The tensor that travels, and the type to come back to."""
        wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        return wide, tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """The mean in the gradient's own type."""
        return tensor.to(dtype)


COMPRESSIONS: dict[str, Any] = {"none": WireBfloat16, "fp16": hvd.Compression.fp16}


def distribute(parts: Parts, compression: Any) -> Prepared:
    """The parts with Horovod's optimiser, which averages gradients during the backward pass.

    Apex patches the very object that steps, so it comes after the wrapping; torch's own precisions
    come before it.
    """

    def wrap(optimiser: Optimizer) -> Any:
        return hvd.DistributedOptimizer(
            optimiser,
            named_parameters=parts.model.named_parameters(),
            compression=compression,
            op=hvd.Average,
            # Divided before they are added, as DDP does: a sum of scaled float16 may overflow.
            gradient_predivide_factor=float(hvd.size()),
        )

    optimiser, prepare = parts.make_optimiser(parts.model.parameters()), parts.precision.prepare
    if parts.precision.info.library == "apex":
        return parts.prepared(prepare(parts.model, wrap(optimiser)))
    return parts.prepared(wrap(prepare(parts.model, optimiser)))


def broadcast_weights(model: nn.Module) -> None:
    """Give every rank the root's parameters and buffers, bit for bit. Collective."""
    with torch.no_grad():
        named = [*model.named_parameters(), *model.named_buffers()]
        # The same memory as a type that Horovod can send.
        bits = [
            (name, one.detach().view(torch.int16) if one.dtype == torch.bfloat16 else one.detach())
            for name, one in named
        ]
        hvd.broadcast_parameters(bits, ROOT)


class HorovodRanks(Ranks):
    """The ranks of the Horovod job."""

    @collective
    def mean(self, value: Tensor, name: str = "mean_over_ranks") -> Tensor:
        """The mean of a tensor over all ranks. Collective; `name` tells one kind from others."""
        handle = hvd.allreduce_async(value, name=name, op=hvd.Average)
        job.wait_asleep([handle])
        mean: Tensor = hvd.synchronize(handle)
        return mean

    def barrier(self) -> None:
        """Return when every rank has come here. Collective; `hvd.barrier` would spin."""
        self.mean(torch.zeros(()), "barrier")

    def leave(self) -> None:
        """Wait until every rank is done. Collective."""
        hvd.barrier()


class HorovodStepper(Stepper):
    """Reduces in `optimiser.synchronize()`, before unscaling and clipping, and steps without it."""

    def __init__(
        self, parts: Parts, settings: Mapping[str, str], compression: str, defects: Defects
    ) -> None:
        """Join the job and wrap the optimiser. Collective.

        Weights are broadcast before they are narrowed, so that master weights are equal too.
        """
        if parts.layout.device == "cuda" and not hvd.nccl_built():
            raise UnsupportedError(
                "Horovod is built without NCCL, the spec says device cuda; install the CUDA "
                "toolkit and NCCL, then run `python -m envs.build_horovod --retry`"
            )
        self.log: Path | None = None
        self.autotuned: dict[str, float] | None = None
        """Settings that the search of Horovod kept, on the root once the run is closed."""
        if settings.get("HOROVOD_AUTOTUNE"):
            self.log = Path(tempfile.mkdtemp(prefix="samestep-horovod-"), "points.csv")
            settings = {**settings, "HOROVOD_AUTOTUNE_LOG": str(self.log)}
        job.join(parts.layout, settings)
        broadcast_weights(parts.model)
        parts.phases.watch(parts.model)  # its hooks come before Horovod's
        self.compression = COMPRESSIONS[compression]
        prepared, ranks = distribute(parts, self.compression), HorovodRanks(hvd.rank(), hvd.size())
        super().__init__(prepared, ranks, reduce=self.synchronise, defects=defects)
        self.distributed: Any = prepared.optimiser

        def exchange() -> None:
            """Reduce zeros, as many as there are gradients."""
            numbers = sum(one.numel() for one in self.model.parameters())
            gradients = next(self.model.parameters()).new_zeros(numbers)
            ranks.mean(self.compression.compress(gradients)[0], "exchange")

        pacing.time_spinning(exchange)

    def synchronise(self) -> None:
        """Wait for the mean gradients; the study's first code clipped its own ones before."""
        if self.defects.clip_before_synchronise:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
        if self.phases.counted is not None:
            self.phases.counted.sent("all_reduce", self.payloads)
        with self.phases.during(COMMUNICATION):
            job.wait_asleep([handle for handle, _ in self.distributed._handles.values()])
            self.distributed.synchronize()

    def payloads(self) -> Iterator[int]:
        """Bytes of each gradient as it travels; Horovod fuses them into fewer messages."""
        for parameter in self.distributed._handles:
            empty = torch.empty(0, dtype=parameter.grad.dtype)
            wide, _ = self.compression.compress(empty)
            yield parameter.grad.numel() * wide.element_size()

    def accumulate(self, microbatches: Sequence[Batch]) -> Tensor:
        """Forward and backward passes; Horovod reduces from the last micro-batch's backward on."""
        if self.distributed.backward_passes_per_step != len(microbatches):
            self.distributed.set_backward_passes_per_step(len(microbatches))
        return super().accumulate(microbatches)

    def update(self) -> Tensor:
        """Clip and step; the gradients are the global mean already."""
        with self.distributed.skip_synchronize():
            return super().update()

    def close(self) -> str:
        """Besides, read what was tuned; raises LaunchError where Horovod is still searching."""
        if self.log is not None:
            try:
                if self.is_root:
                    points = self.log.read_text(encoding="utf-8")
                    self.autotuned = settled(points, pacing.dilation())
            finally:
                shutil.rmtree(self.log.parent, ignore_errors=True)
        return super().close()

    def load(self, state: SavedState) -> None:
        """Continue from `state`, which every rank reads; the root's weights count. Collective.

        Nothing of the optimiser is sent: `broadcast_optimizer_state` takes a step with zero
        gradients on an optimiser without slots, which moves AdamW's weights, and
        `broadcast_object` pickles, which ends at 2 GiB.
        """
        super().load(state)
        broadcast_weights(self.model)
