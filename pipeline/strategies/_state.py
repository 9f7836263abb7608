"""A run's state as tensors by name, so that a checkpoint needs no pickle."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline.errors import StudyError
from pipeline.precision import Precision
from pipeline.precision.master import MasterWeights
from pipeline.strategies.base import TrainState


def capture(model: nn.Module, optimiser: Optimizer, precision: Precision) -> TrainState:
    """Copies of the weights, of every optimiser slot, and the loss scaler's numbers."""
    slots = {
        f"{name}.{slot}": value.detach().clone()
        for name, state in _slots(model, optimiser)
        for slot, value in state.items()
    }
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    return TrainState(weights, slots, precision.scalars())


def restore(
    state: TrainState, model: nn.Module, optimiser: Optimizer, precision: Precision
) -> None:
    """Copy `state` into model and optimiser; raises StudyError when a name is missing."""
    try:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(state.weights[name])
            _restore_slots(state, model, optimiser)
    except KeyError as error:
        raise StudyError(
            f"checkpoint holds no {error}; it was made by another model, remove it to start anew"
        ) from None
    precision.load_scalars(dict(state.scalars))


def _restore_slots(state: TrainState, model: nn.Module, optimiser: Optimizer) -> None:
    owner = optimiser.inner if isinstance(optimiser, MasterWeights) else optimiser
    for name, target in _targets(model, optimiser):
        prefix = f"{name}."
        for key, value in state.optimiser.items():
            slot = key.removeprefix(prefix)
            if not key.startswith(prefix) or "." in slot:
                continue
            if slot == "master":
                target.copy_(value)
            else:
                # the fused AdamW wants its step counter on the parameter's device too
                owner.state[target][slot] = value.to(target.device).clone()


def _slots(model: nn.Module, optimiser: Optimizer) -> Iterator[tuple[str, dict[str, Tensor]]]:
    owner = optimiser.inner if isinstance(optimiser, MasterWeights) else optimiser
    for name, target in _targets(model, optimiser):
        slots = {k: v for k, v in owner.state[target].items() if isinstance(v, Tensor)}
        if owner is not optimiser:
            slots["master"] = target
        yield name, slots


def _targets(model: nn.Module, optimiser: Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Parameter names with the tensor that the optimiser's state belongs to."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group in optimiser.param_groups:
        owners = group.get("masters", group["params"])
        for parameter, owner in zip(group["params"], owners, strict=True):
            yield names[parameter], owner
