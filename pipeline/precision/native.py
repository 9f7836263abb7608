"""Precisions of torch itself: plain types, autocast with a GradScaler, low-precision weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline.errors import UnsupportedError
from pipeline.models import FP32
from pipeline.precision import Precision, PrecisionInfo
from pipeline.precision.master import MasterWeights
from pipeline.precision.widths import widths

WIDE_GRADIENTS = hasattr(torch.Tensor, "grad_dtype")
"""True where this torch lets gradients have another type than their weights."""


class Native(Precision):
    """All that are not Apex's; see the table in `pipeline.precision`."""

    def __init__(self, name: str, device: str) -> None:
        amp_dtype = torch.float16 if device == "cuda" else torch.bfloat16
        wide, bf16 = torch.float32, torch.bfloat16
        dtypes = {
            "fp32": wide, "tf32": wide, "bf16": bf16, "bf16_masters": bf16, "bf16_reduced": bf16,
            "fp16": torch.float16, "amp_o1": amp_dtype, "amp_o2": amp_dtype,
        }  # fmt: skip
        if name == "tf32" and device != "cuda":
            raise UnsupportedError("precision tf32 needs a CUDA device; use fp32 on a CPU")
        self.device, self.dtype, width = device, dtypes[name], widths(name)
        if width.wide_gradients and not WIDE_GRADIENTS:
            raise UnsupportedError(
                f"precision {name} needs Tensor.grad_dtype, which torch {torch.__version__} lacks; "
                "use the torch of the lock (`make setup`), or precision bf16"
            )
        self.narrow_weights = self.dtype if width.weight < FP32 else None
        self.gradients = wide if width.wide_gradients else self.narrow_weights
        self.reduced = self.dtype if width.reduced < width.gradient else None
        self.casts = self.dtype != wide and not width.wide_gradients
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        scaled = self.dtype == torch.float16
        self.scaler = torch.amp.GradScaler(device) if scaled else None
        self.info = PrecisionInfo(
            name=name,
            library="torch",
            compute_dtype="tf32" if name == "tf32" else str(self.dtype).removeprefix("torch."),
            weights_dtype=str(self.narrow_weights or wide).removeprefix("torch."),
            master_weights=self.narrow_weights is not None,
            loss_scaling=scaled,
        )

    def prepare(self, model: nn.Module, optimiser: Optimizer) -> Optimizer:
        """Narrow the weights in place and keep fp32 masters in the optimiser, where it says so."""
        narrow = self.narrow_weights
        if narrow is None:
            return optimiser
        return MasterWeights.narrow(optimiser, narrow, self.gradients)

    def autocast(self) -> AbstractContextManager[Any]:
        """torch's autocast, or nothing where weights and compute share a type.

        O2 casts all the same: it keeps the layer norms' and the loss's reductions in fp32.
        """
        return torch.autocast(self.device, dtype=self.dtype) if self.casts else nullcontext()

    @contextmanager
    def scaled(self, loss: Tensor, optimiser: Optimizer, *, last: bool) -> Iterator[Tensor]:
        """Scale where float16; at the end of the last one widen to the masters and unscale."""
        yield self.scaler.scale(loss) if self.scaler else loss
        if not last:
            return
        if isinstance(optimiser, MasterWeights):
            optimiser.widen_gradients()
        if self.scaler:
            self.scaler.unscale_(_stepped(optimiser))

    def clip_parameters(self, optimiser: Optimizer) -> Iterable[Tensor]:
        """Parameters, or the masters where they are kept."""
        for group in _stepped(optimiser).param_groups:
            yield from group["params"]

    def step(self, optimiser: Optimizer) -> None:
        """Step; with a scaler skip on overflow and adapt the scale."""
        if self.scaler is None:
            optimiser.step()
            return
        self.scaler.step(_stepped(optimiser))
        self.scaler.update()
        if isinstance(optimiser, MasterWeights):
            optimiser.publish()

    def overflowed(self, optimiser: Optimizer, norm: Tensor) -> None:
        """Tell the scaler, which has checked this rank's gradients alone."""
        if self.scaler is not None:
            flags = self.scaler._found_inf_per_device(_stepped(optimiser))
            for flag in flags.values():
                flag.logical_or_(~norm.isfinite())

    def scalars(self) -> dict[str, float]:
        """The GradScaler's scale and growth tracker."""
        if self.scaler is None:
            return {}
        state = self.scaler.state_dict()
        return {key: float(state[key]) for key in ("scale", "_growth_tracker")}

    def follow(self, scalars: dict[str, float]) -> None:
        """Close the scaler's step without an optimiser step, then adopt the root's numbers."""
        if self.scaler is not None:
            self.scaler.update(new_scale=scalars["scale"])
            self.load_scalars(scalars)

    def load_scalars(self, scalars: dict[str, float]) -> None:
        """Inverse of `scalars`."""
        if self.scaler is not None and scalars:
            tracker = int(scalars["_growth_tracker"])
            state = self.scaler.state_dict() | {"scale": scalars["scale"]}
            self.scaler.load_state_dict(state | {"_growth_tracker": tracker})


def _stepped(optimiser: Optimizer) -> Optimizer:
    return optimiser.inner if isinstance(optimiser, MasterWeights) else optimiser
