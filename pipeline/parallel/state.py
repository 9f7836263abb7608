"""A run's state as tensors by name, so that a checkpoint needs no pickle."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline.errors import StudyError
from pipeline.parallel.types import TrainState
from pipeline.precision import Precision
from pipeline.precision.master import MasterWeights


def capture(model: nn.Module, optimiser: Optimizer, precision: Precision) -> TrainState:
    """Copies, on the host, of the weights, every optimiser slot and the loss scaler's numbers."""
    slots: dict[str, Tensor] = {}
    for name, weight, owner in precision.owners(model, optimiser):
        kept = {k: v for k, v in _state_of(optimiser)[owner].items() if isinstance(v, Tensor)}
        if owner is not weight:
            kept["master"] = owner
        slots |= {f"{name}.{slot}": _on_host(value) for slot, value in kept.items()}
    weights = {name: _on_host(p) for name, p in model.named_parameters()}
    return TrainState(weights, slots, precision.scalars())


def restore(
    state: TrainState, model: nn.Module, optimiser: Optimizer, precision: Precision
) -> None:
    """Copy `state` into model and optimiser; raises StudyError when a name is missing."""
    slots: dict[str, dict[str, Tensor]] = {}
    for key, value in state.optimiser.items():
        name, _, slot = key.rpartition(".")
        slots.setdefault(name, {})[slot] = value
    try:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(state.weights[name])
            for name, weight, owner in precision.owners(model, optimiser):
                kept = dict(slots[name])
                if owner is not weight:
                    owner.copy_(kept.pop("master"))
                # the fused AdamW wants its step counter on the parameter's device too
                moved = {slot: value.to(owner.device).clone() for slot, value in kept.items()}
                _state_of(optimiser)[owner].update(moved)
    except KeyError as error:
        raise StudyError(
            f"checkpoint holds no {error}; it was made by another model, remove it to start anew"
        ) from None
    precision.load_scalars(dict(state.scalars))


def _on_host(tensor: Tensor) -> Tensor:
    """A copy; the device has no room for a second set of weights and slots."""
    return tensor.detach().to("cpu", copy=True)


def _state_of(optimiser: Optimizer) -> Any:
    return (optimiser.inner if isinstance(optimiser, MasterWeights) else optimiser).state
