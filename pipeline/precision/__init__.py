"""Precision is an axis of a study, not a strategy: number formats, loss scaling, master weights.

| name | library | compute | weights | loss scaling |
|---|---|---|---|---|
| fp32, tf32 | torch | float32 (tf32: TensorFloat-32 products, CUDA only) | float32 | no |
| bf16 | torch autocast | bfloat16 | float32 | no |
| fp16 | torch autocast | float16 | float32 | yes |
| amp_o1 | torch autocast | float16 on CUDA, bfloat16 on a CPU | float32 | where float16 |
| amp_o2 | torch | as amp_o1 | as compute, with float32 master weights | where float16 |
| bf16_masters | torch | bfloat16 | bfloat16, with float32 master weights | no |
| bf16_reduced | torch | bfloat16 | as bf16_masters | no |
| apex_o1, apex_o2 | NVIDIA Apex `amp` | float16 | float32; O2: float16 with masters | yes |

In bf16_masters a pass is bfloat16 but for its loss, without autocast. Gradients add up and are
reduced in float32, as by default in Megatron-LM; in bf16_reduced they travel as bfloat16.

Nothing is substituted: a name that cannot run here raises UnsupportedError.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


def make_precision(name: str, device: str) -> Precision:
    """The precision `name` on `cpu` or `cuda`; raises UnsupportedError where it cannot run."""
    if name.startswith("apex_"):
        from pipeline.precision.apex import ApexAmp

        return ApexAmp(name, device)
    from pipeline.precision.native import Native

    return Native(name, device)


@dataclass(frozen=True)
class PrecisionInfo:
    """Formats that really run, for the record; dtypes are torch's names without the prefix."""

    name: str
    library: str
    compute_dtype: str
    weights_dtype: str
    master_weights: bool
    loss_scaling: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


class Precision(ABC):
    """Used by every strategy in this order: `prepare`, then step by step the rest.

    A step is `zero_grad`, then `autocast` and `scaled` for each micro-batch, `clip_parameters`,
    `step`.
    """

    info: PrecisionInfo

    narrow_weights: Any = None
    """The dtype of the weights in the passes, where the optimiser has wider ones (not Apex's).

    A strategy that narrows them itself leaves `prepare` out.
    """

    gradients: Any = None
    """The dtype in which gradients of narrow weights add up; None without such weights."""

    reduced: Any = None
    """The dtype in which they travel; None for that which they have."""

    @property
    def wide_gradients(self) -> bool:
        """True where gradients add up in another type than that of the weights."""
        return bool(self.gradients != self.narrow_weights)

    @abstractmethod
    def prepare(self, model: nn.Module, optimiser: Optimizer) -> Optimizer:
        """Cast the weights in place where the precision says so; returns the optimiser to use."""

    def zero_grad(self, optimiser: Optimizer) -> None:
        """Drop the gradients of the last step: every `.grad` of the model is None afterwards."""
        optimiser.zero_grad()

    @abstractmethod
    def autocast(self) -> AbstractContextManager[Any]:
        """Context of the forward pass."""

    @abstractmethod
    def scaled(
        self, loss: Tensor, optimiser: Optimizer, *, last: bool
    ) -> AbstractContextManager[Tensor]:
        """Context that gives the loss to back-propagate, a micro-batch's share, scaled.

        Within it the strategy runs the backward pass and, where `last`, makes the gradients of all
        ranks one. It ends by unscaling these, after which `clip_parameters` hold fp32 gradients. A
        context and no pair of calls, because Apex unscales where its own one ends.
        """

    @abstractmethod
    def clip_parameters(self, optimiser: Optimizer) -> Iterable[Tensor]:
        """The tensors whose `.grad` is the unscaled mean gradient (master weights where kept)."""

    @abstractmethod
    def step(self, optimiser: Optimizer) -> None:
        """Let the optimiser step, unless scaled gradients overflowed."""

    @abstractmethod
    def overflowed(self, optimiser: Optimizer, norm: Tensor) -> None:
        """Skip the coming `step` where the norm over all ranks is not finite.

        For a rank whose own part of the gradients has no infinity, but another's has.
        """

    def owners(
        self, model: nn.Module, optimiser: Optimizer
    ) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Name, weight, and the tensor that the optimiser's state belongs to.

        The last is the weight itself, its master where one is kept, or this rank's rows of it.
        """
        names = {parameter: name for name, parameter in model.named_parameters()}
        for group in optimiser.param_groups:
            weights = group.get("wholes", group["params"])
            owners = group.get("masters", group["params"])
            for parameter, owner in zip(weights, owners, strict=True):
                yield names[parameter], parameter, owner

    @abstractmethod
    def scalars(self) -> dict[str, float]:
        """The loss scaler's numbers, for a checkpoint; empty without one."""

    def follow(self, scalars: dict[str, float]) -> None:
        """Instead of `step`, on a rank that did not step: adopt the root's loss scale."""
        self.load_scalars(scalars)

    @abstractmethod
    def load_scalars(self, scalars: dict[str, float]) -> None:
        """Continue with the loss scaler's numbers of a checkpoint."""
