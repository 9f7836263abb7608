"""An optimiser over low-precision weights that keeps and updates fp32 master weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


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
        pairs = [(master, p.grad) for master, p in self._pairs() if p.grad is not None]
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

    def publish(self) -> None:
        """Copy the masters back into the model's weights."""
        with torch.no_grad():
            pairs = list(self._pairs())
            _copy([parameter for _, parameter in pairs], [master for master, _ in pairs])

    def step(self, closure: Any = None) -> Any:
        """Step the masters, then publish them."""
        loss = self.inner.step(closure)
        self.publish()
        return loss

    def _pairs(self) -> Iterable[tuple[Tensor, Tensor]]:
        for group in self.param_groups:
            yield from zip(group["masters"], group["params"], strict=True)


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
