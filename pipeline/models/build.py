"""A model of any family: whole and the same on every rank, or without memory, to be cut.

A rank that keeps a part of the weights cuts a model without memory first and takes its part of each
weight as it is drawn, so it never holds the whole. The values are those of `build_model`, bit for
bit: the random draws of building are noted, and repeated in their order from the same seed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from pipeline.errors import StudyError
from pipeline.models import family
from pipeline.study.spec import ATTENTION, ModelSpec

OVERWRITES = ("normal_", "uniform_", "zero_", "fill_")
"""Operators after which nothing is left of what a tensor held."""


def build_model(spec: ModelSpec, seed: int) -> nn.Module:
    """A fresh model on the CPU; the same seed gives the same weights on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return family(spec).build(spec)


def deferred_model(spec: ModelSpec, seed: int) -> tuple[nn.Module, Initial]:
    """The model with parameters on the meta device, and the values that `seed` gives them.

    Raises StudyError where its family initialises a parameter otherwise than in place.
    """
    notes = _Notes()
    with register_module_parameter_registration_hook(notes.register), notes, _Asked(notes):
        model = family(spec).build(spec)
    names: dict[int, tuple[str, int]] = {}
    for name, parameter in model.named_parameters():
        names[id(getattr(parameter, "samestep_pads", parameter))] = name, len(parameter)
    written = {id(write.parameter) for write in notes.writes}
    strange = [name for key, (name, _) in names.items() if key not in written]
    if strange or notes.refused or not written <= {id(p) for p in notes.registered}:
        what = strange[0] if strange else notes.refused or "a part of a parameter"
        raise StudyError(
            f"model family {spec.family} initialises {what} in a way that a part of it cannot "
            "repeat; use torch.nn.init on each whole parameter after it has been assigned"
        )
    return model, Initial(seed, names, tuple(notes.writes))


class Write(NamedTuple):
    """One operator that building ran on a parameter, in place."""

    parameter: Any
    operator: Any
    given: tuple[Any, ...]

    @property
    def is_random(self) -> bool:
        """True where it draws from the generator."""
        return torch.Tag.nondeterministic_seeded in self.operator.tags

    @property
    def overwrites(self) -> bool:
        """True where the tensor's former values are of no meaning to it."""
        return self.operator.overloadpacket.__name__ in OVERWRITES


@dataclass(frozen=True)
class Initial:
    """The initial weights of a model; `writes` are all that building did, in order.

    `names` are those of the parameters, with their rows, by the `id` of what was written; where a
    parameter has more rows than that, zeros follow.
    """

    seed: int
    names: dict[int, tuple[str, int]]
    writes: tuple[Write, ...]

    def values(self, wanted: Collection[str]) -> Iterator[tuple[str, Tensor]]:
        """Names and whole weights on the CPU, each when its last write is done.

        Of other names only the random draws are made, which move the generator on, and so of what
        is overwritten later: else each layer's default values would lie in memory until then.
        """
        generator, held = torch.Generator().manual_seed(self.seed), dict[str, Tensor]()
        last = {id(write.parameter): n for n, write in enumerate(self.writes)}
        first = {id(w.parameter): n for n, w in enumerate(self.writes) if w.overwrites}
        for number, write in enumerate(self.writes):
            key = id(write.parameter)
            name, rows = self.names.get(key, ("", 0))  # a tied weight replaced some
            counts = name in wanted and number >= first.get(key, 0)
            if not counts and not write.is_random:
                continue
            tensor = held.pop(name, None) if counts else None
            if tensor is None:
                tensor = torch.empty(write.parameter.shape, dtype=write.parameter.dtype)
            drawn = {"generator": generator} if write.is_random else {}
            write.operator(tensor, *write.given, **drawn)
            if counts and number == last[key]:
                more = rows - len(tensor)
                yield name, F.pad(tensor, (0, 0, 0, more)) if more else tensor
            elif counts:
                held[name] = tensor


class _Notes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operator that changes a tensor without memory, or draws random numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.writes: list[Write] = []
        self.registered: list[nn.Parameter] = []
        self.refused = ""

    def register(self, module: nn.Module, name: str, parameter: Any) -> Any:
        """The parameter without memory; one that has none stays the same object when it is tied."""
        if parameter is None or parameter.device.type == "meta":
            return None
        empty = torch.empty_like(parameter, device="meta")
        self.registered.append(nn.Parameter(empty, parameter.requires_grad))
        return self.registered[-1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, unless all it does is to give values to a tensor without memory.

        torch would do a draw of values for such a tensor in Python: a millisecond for nothing.
        """
        target = args[0] if args and isinstance(args[0], Tensor) else None
        if target is not None and target.device.type == "meta" and func._schema.is_mutable:
            write = Write(target, func, tuple(args[1:]))
            self.writes.append(write)
            if any(isinstance(given, Tensor) for given in args[1:]) or kwargs:
                self.refused = f"a parameter by {func}"
            elif write.overwrites:
                return target
        elif torch.Tag.nondeterministic_seeded in func.tags:
            self.refused = f"a tensor by {func}"
        return func(*args, **(kwargs or {}))


class _Asked(TorchFunctionMode):
    """Refuses code that does something else where a tensor has no memory, as trunc_normal_ does."""

    def __init__(self, notes: _Notes) -> None:
        super().__init__()
        self.notes = notes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function; only who asks whether a tensor is on the meta device is noted."""
        if func == torch.Tensor.is_meta.__get__:  # type: ignore[attr-defined]
            self.notes.refused = "a parameter by code that asks for its values"
        return func(*args, **(kwargs or {}))


def compile_model(model: nn.Module, *, whole: bool = False) -> None:
    """Compile each block by itself, or the `whole` model, embedding and loss too, as one graph.

    One graph has one backward pass, after which all gradients are there at once, and nothing is
    left with which Horovod could overlap its reduction; torch cuts it at the buckets of its DDP.
    """
    import torch._dynamo  # slow, and seldom needed

    # Blocks need no cuts, for which torch knows no buckets under 1 MiB.
    torch._dynamo.config.optimize_ddp = whole
    blocks: Any = [model] if whole else model.blocks
    for block in blocks:
        block.compile()


def recompute_blocks(model: nn.Module, what: bool | str | tuple[int, ...] = True) -> None:
    """Have the backward pass compute again what `WorkloadSpec.recompute` says, and keep less.

    By default all of a block but its input, of every block. `ATTENTION`: what attention computes of
    query, key and value, a function without weights (Korthikanti et al. 2022, section 5). For that
    one torch's list of operators to save (`create_selective_checkpoint_contexts`) is no fit: it
    holds the results of all others, of which autograd keeps a part, and walks through the block
    again.

    Blocks stay the same objects with the same names of parameters, so that any strategy may cut or
    wrap them afterwards, and copies made for other devices recompute with weights of their own.
    Compile them after this.
    """
    any_model: Any = model
    if what == ATTENTION:
        any_model.wrap_attention(partial(checkpoint, use_reentrant=False))
        return
    for number, block in enumerate(any_model.blocks if what else ()):
        if isinstance(what, tuple) and number not in what:
            continue
        kind = type(block)
        block.__class__ = type(f"Recomputed{kind.__name__}", (_Recomputed, kind), {})


class _Recomputed(nn.Module):
    """Put before a block's own class, whose forward pass it runs twice (Chen et al. 2016).

    The second one has the random numbers and the autocast of the first (arXiv 1604.06174).
    """

    def forward(self, *given: Any, **named: Any) -> Any:
        return checkpoint(super().forward, *given, use_reentrant=False, **named)
