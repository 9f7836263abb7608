"""A run's state as pieces of named tensors: a checkpoint needs no pickle, and no gather."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline.errors import StudyError
from pipeline.parallel.cut import NAME, cut_of, held, rows_of, view
from pipeline.parallel.types import SLOTS, Piece, SavedState, Shards, slot_name, weight_name
from pipeline.precision.native import Precision

MASTER = "master"
"""The slot of a wider copy of a narrow weight."""

Read = Callable[[str, Sequence[int], Sequence[int]], Tensor]
"""Reader of a box of a weight, on the host, by the weight's name, its offsets and its shape."""


def capture(
    model: nn.Module,
    optimiser: Optimizer,
    precision: Precision,
    is_first_with: Callable[[str, Collection[str]], bool],
) -> Shards:
    """Copies, on the host, of this rank's pieces of the weights and of every optimiser slot.

    `is_first_with` says of a parameter and the mesh axes that cut it whether this rank is the first
    of those that hold the same: it alone copies. Nothing is put together and nothing is sent.
    """
    pieces: list[Piece] = []
    rows = dict[str, Tensor]()

    def copy(parameter: str, name: str, tensor: Tensor, like: Tensor) -> None:
        pieces.extend(pieces_of(name, tensor, like, partial(is_first_with, parameter)))

    for name, weight, owner in precision.owners(model, optimiser):
        for slot, value in _state_of(optimiser).get(owner, {}).items():
            if isinstance(value, Tensor):
                copy(name, slot_name(name, slot), value, owner)
        if owner is not weight and owner.dtype != weight.dtype:  # wider, not just rows of it
            copy(name, slot_name(name, MASTER), owner, owner)
        if rows_of(owner) is not None:  # the weight itself may be that of the step before
            rows[name] = owner
    for name, parameter in model.named_parameters():
        own = rows.get(name, parameter)
        copy(name, weight_name(name), own.to(parameter.dtype), own)
    return Shards(pieces, precision.scalars())


def pieces_of(
    name: str, tensor: Tensor, like: Tensor, is_first: Callable[[Collection[str]], bool]
) -> Iterator[Piece]:
    """Copies of this rank's boxes of a tensor that is cut as `like` is, where it holds them first.

    `is_first` says so of the mesh axes that cut it.
    """
    own = held(tensor, like)
    for box in own.boxes if is_first(own.axes) else ():
        numbers = torch.empty(box.shape, dtype=own.part.dtype).copy_(box.of(own.part))
        yield Piece(name, own.shape, box.offsets, numbers)


def restore(
    state: SavedState, model: nn.Module, optimiser: Optimizer, precision: Precision
) -> None:
    """Read into model and optimiser what this rank holds, and leave the files.

    Raises StudyError where a name is missing or a tensor has another shape.
    """
    slots = slots_of(state)
    owners = list(precision.owners(model, optimiser))
    # Whole weights of which this rank has rows are gathered before they are used.
    gathered = {name for name, _, owner in owners if rows_of(owner) is not None}
    with reading(state), torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in gathered:
                fill(parameter, parameter, state, weight_name(name))
        for name, weight, owner in owners:
            kept = set(slots[name])
            # FSDP2's narrow weights are no parameters: what it saves as weights are masters.
            if MASTER in kept:
                kept.remove(MASTER)
                fill(owner, owner, state, slot_name(name, MASTER))
            elif owner is not weight:
                fill(owner, owner, state, weight_name(name))
            for slot in sorted(kept):
                saved = state.wholes[slot_name(name, slot)]
                dtype: torch.dtype = getattr(torch, saved.dtype)
                made = torch.empty((), dtype=dtype, device=owner.device)
                if saved.shape:
                    made = torch.empty_like(owner, dtype=dtype, requires_grad=False)
                fill(made, owner, state, slot_name(name, slot))
                _state_of(optimiser)[owner][slot] = made
    precision.load_scalars(dict(state.scalars))


@contextmanager
def reading(state: SavedState) -> Iterator[None]:
    """Leave the files at the end; raises StudyError where the state lacks a name."""
    try:
        yield
    except KeyError as error:
        raise StudyError(
            f"checkpoint holds no {error}; it was made by another model, remove it to start anew"
        ) from None
    finally:
        state.close()


def read_whole(state: SavedState, name: str) -> Tensor:
    """A whole tensor of a checkpoint, on the host."""
    shape = state.wholes[name].shape
    return state.read(name, (0,) * len(shape), shape)


def slots_of(state: SavedState) -> dict[str, list[str]]:
    """The names of the slots of each parameter."""
    slots: dict[str, list[str]] = {}
    for name in state.wholes:
        kind, _, rest = name.partition("/")
        if kind == SLOTS:
            parameter, _, slot = rest.rpartition("/")
            slots.setdefault(parameter, []).append(slot)
    return slots


def fill(tensor: Tensor, like: Tensor, state: SavedState, name: str) -> None:
    """Read this rank's boxes of a tensor cut as `like`; KeyError, or StudyError on its shape."""
    own, saved = held(tensor, like), state.wholes[name]
    if own.shape != saved.shape:
        raise StudyError(
            f"checkpoint holds {name} of shape {saved.shape}, this model has {own.shape}; remove "
            "it to start anew"
        )
    own.fill(partial(state.read, name))


def materialise(
    model: nn.Module,
    initial: Callable[[Collection[str]], Iterable[tuple[str, Tensor]]],
    device: torch.device,
    read: Read | None = None,
) -> None:
    """Give the parameters memory on `device`, and this rank's parts of their initial values.

    Buffers, such as the frequencies of rotary positions, keep the values that they were made with.
    `initial` gives the whole values of the names that it is asked for, one after the other, so that
    besides the parts one whole weight exists at a time; with `read` they are those of files, of
    which this rank reads its parts alone. Nothing is sent. A model that has memory already stays as
    it is.
    """
    parameters = dict(model.named_parameters())
    if not any(parameter.is_meta for parameter in parameters.values()):
        return
    cuts = {name: cut_of(parameter) for name, parameter in parameters.items()}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
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
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
        if read is not None:
            read_weights(model, read)
            return
        for name, value in initial(parameters.keys()):
            held(parameters[name], parameters[name]).fill(partial(view, value))


def read_weights(model: nn.Module, read: Read) -> None:
    """Read this rank's boxes of all weights, by `read` of names, offsets and shapes."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            held(parameter, parameter).fill(partial(read, name))


def sha256_of(weights: Iterable[tuple[str, Tensor]]) -> str:
    """Hash of whole weights, names and types included; equal only if they are bit-equal."""
    digest = hashlib.sha256()
    for name, weight in weights:
        raw = weight.cpu().contiguous().view(torch.uint8).numpy()
        digest.update(f"{name}{weight.dtype}{tuple(weight.shape)}".encode())
        digest.update(raw.data)
    return digest.hexdigest()


def whole(parameter: Tensor) -> Tensor:
    """A parameter's values, put together where this rank holds a part of it. Collective."""
    tensor: Any = parameter.detach()
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    values: Tensor = tensor if (cut := cut_of(parameter)) is None else cut.whole(tensor)
    return values


def _state_of(optimiser: Optimizer) -> Any:
    return getattr(optimiser, "inner", optimiser).state
