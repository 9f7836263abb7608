"""Precisions of torch itself: plain types, autocast with a GradScaler, low-precision weights.

What a strategy asks of any precision is here too; `apex.py` has another that answers it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline.errors import UnsupportedError
from pipeline.models import FP32
from pipeline.precision import PrecisionInfo
from pipeline.precision.widths import widths

WIDE_GRADIENTS = hasattr(torch.Tensor, "grad_dtype")
"""True where this torch lets gradients have another type than their weights."""


class Precision:
    """Used by every strategy in this order: `prepare`, then step by step the rest.

    A step is `zero_grad`, then `autocast` and `scaled` for each micro-batch, `clip_parameters`,
    `step`. This class has all precisions that are not Apex's; see the table in
    `pipeline.precision`.
    """

    info: PrecisionInfo

    narrow_weights: torch.dtype | None = None
    """The dtype of the weights in the passes, where the optimiser has wider ones (not Apex's).

    A strategy that narrows them itself leaves `prepare` out.
    """

    gradients: torch.dtype | None = None
    """The dtype in which gradients of narrow weights add up; None without such weights."""

    reduced: torch.dtype | None = None
    """The dtype in which they travel; None for that which they have."""

    casts = False
    """True where the forward pass is under torch's autocast."""

    scaler: torch.amp.GradScaler | None = None

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
        # amp_o2 casts all the same: it keeps the layer norms' and the loss's reductions in fp32.
        self.casts = self.dtype != wide and not width.wide_gradients
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        if self.dtype == torch.float16:
            self.scaler = torch.amp.GradScaler(device)
        self.info = PrecisionInfo(
            name=name,
            library="torch",
            compute_dtype="tf32" if name == "tf32" else str(self.dtype).removeprefix("torch."),
            weights_dtype=str(self.narrow_weights or wide).removeprefix("torch."),
            master_weights=self.narrow_weights is not None,
            loss_scaling=self.scaler is not None,
        )

    @property
    def wide_gradients(self) -> bool:
        """True where gradients add up in another type than that of the weights."""
        return self.gradients != self.narrow_weights

    def prepare(self, model: nn.Module, optimiser: Optimizer) -> Optimizer:
        """Cast the weights in place where the precision says so; returns the optimiser to use.

        It then keeps fp32 masters of narrow weights.
        """
        if self.narrow_weights is None:
            return optimiser
        return MasterWeights.narrow(optimiser, self.narrow_weights, self.gradients)

    def zero_grad(self, optimiser: Optimizer) -> None:
        """Drop the gradients of the last step: every `.grad` of the model is None afterwards."""
        optimiser.zero_grad()

    def autocast(self) -> AbstractContextManager[Any]:
        """Context of the forward pass."""
        return torch.autocast(self.device, dtype=self.dtype) if self.casts else nullcontext()

    @contextmanager
    def scaled(self, loss: Tensor, optimiser: Optimizer, *, last: bool) -> Iterator[Tensor]:
        """Context that gives the loss to back-propagate, a micro-batch's share, scaled.

        Within it the strategy runs the backward pass and, where `last`, makes the gradients of all
        ranks one. It ends by unscaling these, after which `clip_parameters` hold fp32 gradients. A
        context and no pair of calls, because Apex unscales where its own one ends.
        """
        yield self.scaler.scale(loss) if self.scaler else loss
        if not last:
            return
        if isinstance(optimiser, MasterWeights):
            optimiser.widen_gradients()
        if self.scaler:
            self.scaler.unscale_(_stepped(optimiser))

    def clip_parameters(self, optimiser: Optimizer) -> Iterable[Tensor]:
        """The tensors whose `.grad` is the unscaled mean gradient (master weights where kept)."""
        for group in _stepped(optimiser).param_groups:
            yield from group["params"]

    def step(self, optimiser: Optimizer) -> None:
        """Let the optimiser step, unless scaled gradients overflowed; then adapt the scale."""
        if self.scaler is None:
            optimiser.step()
            return
        self.scaler.step(_stepped(optimiser))
        self.scaler.update()
        if isinstance(optimiser, MasterWeights):
            optimiser.publish()

    def overflowed(self, optimiser: Optimizer, norm: Tensor) -> None:
        """Skip the coming `step` where the norm over all ranks is not finite.

        For a rank whose own part of the gradients, all that a scaler checks, has no infinity, but
        another's has.
        """
        if self.scaler is not None:
            flags = self.scaler._found_inf_per_device(_stepped(optimiser))
            for flag in flags.values():
                flag.logical_or_(~norm.isfinite())

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

    def scalars(self) -> dict[str, float]:
        """The loss scaler's numbers, for a checkpoint; empty without one."""
        if self.scaler is None:
            return {}
        state = self.scaler.state_dict()
        return {key: float(state[key]) for key in ("scale", "_growth_tracker")}

    def load_scalars(self, scalars: dict[str, float]) -> None:
        """Continue with the loss scaler's numbers of a checkpoint."""
        if self.scaler is not None and scalars:
            tracker = int(scalars["_growth_tracker"])
            state = self.scaler.state_dict() | {"scale": scalars["scale"]}
            self.scaler.load_state_dict(state | {"_growth_tracker": tracker})

    def follow(self, scalars: dict[str, float]) -> None:
        """Instead of `step`, on a rank that did not step: adopt the root's loss scale."""
        if self.scaler is not None:
            self.scaler.update(new_scale=scalars["scale"])  # torch has it that a step ends so
        self.load_scalars(scalars)


def _stepped(optimiser: Optimizer) -> Optimizer:
    return optimiser.inner if isinstance(optimiser, MasterWeights) else optimiser


class MasterWeights(Optimizer):
    """Wraps another optimiser: its parameters are the model's narrow weights, its state is fp32.

    Each parameter group carries its masters under `masters` and the wrapped optimiser's class under
    `inner_class`, so the object can be rebuilt from `param_groups` alone, which is how Horovod's
    DistributedOptimizer makes its subclass.
    """

    def __init__(self, params: Iterable[dict[str, Any]]) -> None:
        groups = list(params)
        super().__init__(groups, {})
        inner_groups = []
        for group in groups:
            options = {k: v for k, v in group.items() if k not in ("masters", "inner_class")}
            inner_groups.append(options | {"params": group["masters"]})
        # A group's own `fused` is not enough: only with the argument does GradScaler hand over its
        # scale and the infinities that it found on the device, instead of waiting for them.
        fused = {key: groups[0][key] for key in ("fused",) if key in groups[0]}
        self.inner: Optimizer = groups[0]["inner_class"](inner_groups, **fused)
        self.masters: list[Tensor] = [one for group in groups for one in group["masters"]]
        self.weights: list[Tensor] = [one for group in groups for one in group["params"]]

    @classmethod
    def narrow(
        cls, optimiser: Optimizer, dtype: torch.dtype, gradients: torch.dtype | None = None
    ) -> MasterWeights:
        """Keep fp32 copies of the optimiser's parameters, then cast these in place to `dtype`.

        Gradients add up in the type `gradients`, or in that. A master is cut as its parameter is.
        """
        groups = []
        for group in optimiser.param_groups:
            masters = [p.detach().clone().requires_grad_() for p in group["params"]]
            for master, parameter in zip(masters, group["params"], strict=True):
                own = vars(parameter).items()
                vars(master).update({k: v for k, v in own if k.startswith("samestep_")})
                narrow(parameter, parameter.detach().to(dtype), gradients or dtype)
            groups.append({**group, "masters": masters, "inner_class": type(optimiser)})
        return cls(groups)

    def widen_gradients(self) -> None:
        """Give the masters' optimiser the reduced gradients, widened, and the learning rate."""
        for outer, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            inner["lr"] = outer["lr"]
        both = zip(self.masters, self.weights, strict=True)
        pairs = [(master, weight.grad) for master, weight in both if weight.grad is not None]
        wide = [gradient for _, gradient in pairs]
        if any(gradient.dtype != master.dtype for master, gradient in pairs):
            wide = [torch.empty_like(master) for master, _ in pairs]
            _copy(wide, [gradient for _, gradient in pairs])
        for (master, _), gradient in zip(pairs, wide, strict=True):
            master.grad = gradient

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of the weights and of their masters."""
        super().zero_grad(set_to_none)
        self.inner.zero_grad(set_to_none)

    @torch.no_grad()
    def publish(self) -> None:
        """Copy the masters back into the model's weights."""
        _copy(self.weights, self.masters)

    def step(self, closure: Any = None) -> Any:
        """Step the masters, then publish them."""
        loss = self.inner.step(closure)
        self.publish()
        return loss


def _copy(to: list[Tensor], source: list[Tensor]) -> None:
    """Copy tensors of another type in a few kernels instead of one for each."""
    if to:
        torch._foreach_copy_(list(map(local, to)), list(map(local, source)))


def local(tensor: Tensor) -> Tensor:
    """This rank's numbers of a tensor that may be cut over ranks."""
    shards: Any = tensor.detach()
    own: Tensor = shards.to_local() if hasattr(shards, "to_local") else shards
    return own


def narrow(parameter: Tensor, values: Tensor, gradients: torch.dtype) -> None:
    """Give a parameter narrower values; its gradients add up in the type `gradients`."""
    if hasattr(parameter, "to_local"):  # of a DTensor `data` is not what its operators see
        swap: Any = torch.utils.swap_tensors
        swap(parameter, torch.nn.Parameter(values))
    else:
        parameter.data = values
    if gradients != values.dtype:
        parameter.grad_dtype = gradients
