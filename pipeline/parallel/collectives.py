"""The one door of collectives: whoever calls one, a step that is listened to is told of it.

torch.distributed, FSDP2, torch's pipelines and DeepSpeed all hand theirs to methods of a process
group and wait for a `Work`; DTensor calls operators of `_c10d_functional`. Within `heard_by` these
tell the listener that they are communication, so a strategy marks nothing. Elsewhere torch is as it
was. What starts in C++ passes by: of DDP the shared step knows, all else `Counted` refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial, wraps
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist

from pipeline.parallel.types import NOT_PROFILED, Phases
from pipeline.study.profiling import COMMUNICATION

P = ParamSpec("P")
R = TypeVar("R")

METHODS = (
    "all", "barrier", "broadcast", "end_coalescing", "gather", "monitored_barrier", "recv",
    "reduce", "scatter", "send",
)  # fmt: skip
"""With which, but for underscores, the names of a process group's collectives begin."""

PEER_TO_PEER = ("send", "recv")
"""Methods whose messages the flight recorder of Gloo leaves out; `Phases.counted` has them."""

EXCHANGES = ("all_to_all_single", "alltoall_base")
"""The same of methods whose pieces, which may differ, it leaves out; older torch has the last."""

FUNCTIONAL, ANY_DEVICE = "_c10d_functional", "CompositeExplicitAutograd"

_listener = NOT_PROFILED


def collective(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function of several messages: all that it does, copies too, is communication."""

    @wraps(function)
    def call(*given: P.args, **named: P.kwargs) -> R:
        with _listener.during(COMMUNICATION):
            return function(*given, **named)

    return call


@contextmanager
def heard_by(phases: Phases) -> Iterator[None]:
    """Tell `phases` of every collective of this process within the context."""
    global _listener
    if phases is NOT_PROFILED:
        yield
        return
    names = [name for name in vars(dist.ProcessGroup) if name.lstrip("_").startswith(METHODS)]
    doors = [(dist.ProcessGroup, name) for name in names] + [(dist.Work, "wait")]
    # Not getattr, which gives a function that would not bind when it is put back.
    originals = [vars(owner)[name] for owner, name in doors]
    _replace_functional()
    _listener = phases
    try:
        for (owner, name), original in zip(doors, originals, strict=True):
            setattr(owner, name, _heard(name, original))
        yield
    finally:
        _listener = NOT_PROFILED
        for (owner, name), original in zip(doors, originals, strict=True):
            setattr(owner, name, original)


def _heard(name: str, original: Any) -> Callable[..., Any]:
    def call(self: Any, *given: Any, **named: Any) -> Any:
        counted = _listener.counted
        if counted is not None and name in PEER_TO_PEER:
            counted.message(name, self, *given[:2])
        elif counted is not None and name in EXCHANGES:
            # What this rank gives, and its rows for each rank; 0 and 2 are what it takes.
            counted.exchange(self, given[1], given[3])
        with _listener.during(COMMUNICATION):
            # As it lies in its class's dictionary, a method of C++ is not bound to any group.
            return original.__get__(self)(*given, **named)

    return call


@cache
def _replace_functional() -> Any:
    """Functional collectives, and their waits, that pass through here; for good, once a process.

    They end in the very kernels that they had: on a device torch runs those of any device.
    """
    library: Any = torch.library.Library(FUNCTIONAL, "IMPL")  # type: ignore[no-untyped-call]
    any_device = getattr(torch._C.DispatchKey, ANY_DEVICE)
    for full in torch._C._dispatch_get_registrations_for_dispatch_key(ANY_DEVICE):
        space, _, name = full.partition("::")
        if space == FUNCTIONAL and "." not in name:
            original = getattr(getattr(torch.ops, FUNCTIONAL), name).default
            for device in ("CPU", "CUDA"):
                library.impl(name, collective(partial(original._op_dk, any_device)), device)
    return library
