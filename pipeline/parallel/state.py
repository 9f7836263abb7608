"""A run's state as tensors by name, so that a checkpoint needs no pickle."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline.errors import StudyError
from pipeline.parallel.cut import NAME, cut_of
from pipeline.parallel.types import TrainState
from pipeline.precision import Precision


def capture(
    model: nn.Module, optimiser: Optimizer, precision: Precision, *, keep: bool = True
) -> TrainState:
    """Copies, on the host, of the weights, every optimiser slot and the loss scaler's numbers.

    Shards are put together, tensor by tensor, which is collective; a rank that does not `keep` the
    whole ones drops each at once. So a state has no layout and may be loaded under another one.
    """
    slots: dict[str, Tensor] = {}
    weights: dict[str, Tensor] = {}

    def copy(to: dict[str, Tensor], name: str, tensor: Tensor, like: Tensor) -> None:
        complete = whole(tensor, like)
        if keep:
            to[name] = complete.detach().to("cpu", copy=True)

    for name, weight, owner in precision.owners(model, optimiser):
        for slot, value in _state_of(optimiser).get(owner, {}).items():
            if isinstance(value, Tensor):
                copy(slots, f"{name}.{slot}", value, owner)
        if _is_master(owner, weight):
            copy(slots, f"{name}.master", owner, owner)
    for name, parameter in model.named_parameters():
        copy(weights, name, parameter, parameter)
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
                parameter.copy_(placed_as(parameter, state.weights[name]))
            for name, weight, owner in precision.owners(model, optimiser):
                kept = dict(slots[name])
                if _is_master(owner, weight):
                    owner.copy_(placed_as(owner, kept.pop("master")))
                elif owner is not weight:
                    owner.copy_(placed_as(owner, state.weights[name]))
                _state_of(optimiser)[owner].update(
                    {slot: placed_as(owner, value) for slot, value in kept.items()}
                )
    except KeyError as error:
        raise StudyError(
            f"checkpoint holds no {error}; it was made by another model, remove it to start anew"
        ) from None
    precision.load_scalars(dict(state.scalars))


def materialise(
    model: nn.Module,
    initial: Callable[[Collection[str]], Iterable[tuple[str, Tensor]]],
    device: torch.device,
) -> None:
    """Give the parameters memory on `device`, and this rank's parts of their initial values.

    `initial` gives the whole values of the names that it is asked for, one after the other, so that
    beside the parts one whole weight exists at a time. Nothing is sent. A model that has memory
    already stays as it is.
    """
    parameters = dict(model.named_parameters())
    if not any(parameter.is_meta for parameter in parameters.values()):
        return
    cuts = {name: cut_of(parameter) for name, parameter in parameters.items()}
    # A parameter stays the same object, so tied ones stay tied and hooks stay on them.
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.to_empty(device=device)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
    for name, cut in cuts.items():
        if cut is not None:
            setattr(parameters[name], NAME, cut)
    with torch.no_grad():
        for name, value in initial(parameters.keys()):
            parameters[name].copy_(placed_as(parameters[name], value))


def weights_sha256(model: nn.Module) -> str:
    """Hash of all weights, names and types included; equal on two ranks only if bit-equal."""
    return sha256_of((name, whole(p.detach(), p)) for name, p in model.named_parameters())


def sha256_of(weights: Iterable[tuple[str, Tensor]]) -> str:
    """The same of whole weights, one after the other."""
    digest = hashlib.sha256()
    for name, weight in weights:
        raw = weight.cpu().contiguous().view(torch.uint8).numpy()
        digest.update(f"{name}{weight.dtype}{tuple(weight.shape)}".encode())
        digest.update(raw.tobytes())
    return digest.hexdigest()


def whole(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor, put together where this rank holds a part of it, cut as `like` is. Collective.

    A scalar, such as AdamW's step counter, belongs to the optimiser and is never cut.
    """
    put_together: Callable[[], Tensor] | None = getattr(tensor, "full_tensor", None)
    if put_together is not None:
        tensor = put_together()
    cut = cut_of(like)
    return tensor if cut is None or not tensor.dim() else cut.whole(tensor)


def placed_as(like: Tensor, value: Tensor) -> Tensor:
    """A copy of the whole `value` on the device of `like`, cut as `like` is; nothing is sent."""
    moved = value.to(like.device).clone()
    cut = cut_of(like)
    if cut is not None and moved.dim():
        moved = cut.part(moved)
    if not hasattr(like, "full_tensor") or not moved.dim():
        return moved
    from torch.distributed.tensor import DTensor, distribute_tensor  # slow, and seldom needed

    assert isinstance(like, DTensor)
    return distribute_tensor(moved, like.device_mesh, like.placements, src_data_rank=None)


def _is_master(owner: Tensor, weight: Tensor) -> bool:
    """Whether the optimiser's own tensor is a wider copy of the weight, and not just rows of it."""
    return owner is not weight and owner.dtype != weight.dtype


def _state_of(optimiser: Optimizer) -> Any:
    return getattr(optimiser, "inner", optimiser).state
