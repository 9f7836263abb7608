"""The recorder of a profiled run: which phase of a step takes how long on this rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

from pipeline.profiling import BACKWARD, DATA, MARKED, REST
from pipeline.strategies.base import Phases

T = TypeVar("T")


class Stamps(Protocol):
    """What is asked of a clock: moments, and the seconds from one to a later one."""

    def stamp(self) -> Any:
        """The moment at which the device has done all that it was given so far."""

    def between(self, start: Any, stop: Any) -> float:
        """Seconds from `start` to `stop`, once the device has passed both."""


class PhaseTimer(Phases):
    """Keeps each change of phase with its moment, so that phases lie end to end in a step.

    Nothing is synchronised at a mark, so that what overlaps in a timed run overlaps here too.
    """

    def __init__(self, clock: Stamps) -> None:
        self._clock = clock
        self._marks: list[tuple[str, Any]] = []
        self._after_gradients: str | None = None

    def record(self, step: Callable[[], T]) -> T:
        """Run a step whose phases are wanted; `split` gives them."""
        self._marks.clear()
        self.begin(REST)
        result = step()
        self.begin(REST)
        return result

    def split(self, seconds: float, data_seconds: float) -> dict[str, float]:
        """Seconds of each phase of the last step, which took `seconds` once the batch was read."""
        found = dict.fromkeys(MARKED, 0.0)
        for (phase, start), (_, stop) in zip(self._marks, self._marks[1:], strict=False):
            if phase != REST:
                found[phase] += self._clock.between(start, stop)
        # Stamps of a GPU tick in half microseconds, so the parts may exceed the whole by a little.
        found[REST] = max(0.0, seconds - sum(found.values()))
        return {**found, DATA: data_seconds}

    def begin(self, phase: str, *, after_gradients: str | None = None) -> None:
        """As the base says."""
        self._after_gradients = after_gradients
        self._marks.append((phase, self._clock.stamp()))

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """As the base says."""
        before = self._marks[-1][0] if self._marks else REST
        self.begin(phase)
        try:
            yield
        finally:
            self.begin(before)

    def watch(self, model: nn.Module) -> None:
        """As the base says; the hook runs before DDP's own, which sends the gradient on its way."""
        parameters: Iterator[Any] = model.parameters()
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._gradient_ready)

    def _gradient_ready(self, _: Tensor) -> None:
        if self._after_gradients is None:
            return
        if self._marks[-1][0] != BACKWARD:
            # Not the first gradient: until here it was still the backward pass.
            self._marks.pop()
        self._marks.append((self._after_gradients, self._clock.stamp()))
