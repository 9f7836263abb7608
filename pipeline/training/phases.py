"""Listeners to a step's phases: the recorder of a profiled run, the pacing of emulated nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any, TypeVar

from torch import Tensor, nn

from pipeline.emulation.pacing import Pacer
from pipeline.parallel.counted import Counted
from pipeline.parallel.types import Phases
from pipeline.study.profiling import BACKWARD, DATA, FORWARD, MARKED, REST
from pipeline.training.clock import Clock

T = TypeVar("T")


class Paced(Phases):
    """On an emulated node: pay for the CPU seconds so far before others can see what they made."""

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        self._phase = REST
        self._after_gradients: str | None = None
        self._within = False

    def begin(self, phase: str, *, after_gradients: str | None = None) -> None:
        """Pay for the phase that ends; a backward pass that reduces ends with a collective."""
        if self._phase == FORWARD:
            # First, since what is paid from here on counts by the speed that this pass shows.
            self._pacer.forward_ended()
        if self._after_gradients is None:
            self._pacer.settle()
        else:
            self._pacer.waited()
        self._phase, self._after_gradients = phase, after_gradients

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Pay for what comes before the collective, and for the collective itself."""
        # Of a function of several messages each message tells of itself too: it was paid for.
        if self._within:
            yield
            return
        self._within = True
        self._pacer.settle()
        self._mark(phase)
        try:
            yield
        finally:
            self._pacer.waited()
            self._mark(self._phase)
            self._within = False

    def watch(self, model: nn.Module) -> None:
        """Pay before each gradient, which the backward pass may send as soon as it is there.

        Every parameter must get a gradient in every backward pass: counting finds the last.
        """
        parameters: list[Any] = [p for p in model.parameters() if p.requires_grad]
        seen = 0

        def count(_: Tensor) -> None:
            nonlocal seen
            seen = (seen + 1) % len(parameters)
            self._gradient_ready(last=seen == 0)

        # It runs before the hooks of DDP and Horovod, which send the gradient on its way.
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(count)

    def _mark(self, phase: str) -> None:
        """The step is in another phase from now on."""

    def _gradient_ready(self, *, last: bool) -> None:
        if last:
            self._pacer.settle()
        else:
            self._pacer.on_the_way()


class PhaseTimer(Paced):
    """Keeps each change of phase with its moment, so that phases lie end to end in a step.

    Nothing is synchronised at a mark, so that what overlaps in a timed run overlaps here too. On an
    emulated node each mark is paid for, as in a timed run.
    """

    def __init__(self, clock: Clock, counted: Counted | None = None) -> None:
        super().__init__(clock.pacer)
        self._clock, self.counted = clock, counted
        self._marks: list[tuple[str, Any, float]] = []
        self._last_gradient: tuple[int, Any, float] | None = None
        self._passes: list[tuple[str, int, int, int]] = []
        self._begun_ns = 0
        self._untimed = False

    def record(self, step: Callable[[], T]) -> T:
        """Run a step whose phases are wanted; `split` and `split_cpu` give them."""
        self._marks.clear()
        self._passes.clear()
        self._last_gradient = None
        with nullcontext() if self.counted is None else self.counted.step():
            self.begin(REST)
            result = step()
            self.begin(REST)
        return result

    def split(self, seconds: float, data_seconds: float) -> dict[str, float]:
        """Seconds of each phase of the last step, which took `seconds` once the batch was read."""
        parts = ((phase, taken) for phase, taken, _ in self._spans())
        return {**_sums(parts, seconds), DATA: data_seconds}

    def split_cpu(self, cpu_seconds: float) -> dict[str, float]:
        """CPU seconds of each phase of the last step, of `cpu_seconds` in all; none of the data."""
        return _sums(((phase, cpu) for phase, _, cpu in self._spans()), cpu_seconds)

    def split_passes(self) -> list[list[Any]] | None:
        """(kind, stage, micro-batch, seconds) of each pass through a pipeline's stage, in order.

        Seconds of computation: what is communication within a pass is left out. None where no
        strategy named a pass.
        """
        passes = []
        ends = [*(start + 1 for *_, start in self._passes[1:]), None]
        for (*about, start), end in zip(self._passes, ends, strict=False):
            spans = self._spans(start, end)
            seconds = sum(taken for phase, taken, _ in spans if phase in (FORWARD, BACKWARD))
            passes.append([*about, seconds])
        return passes or None

    def _spans(self, start: int = 0, end: int | None = None) -> list[tuple[str, float, float]]:
        """(Phase, seconds, CPU seconds) between each mark and the next; the last ends the step."""
        return [
            (phase, self._clock.between(begun, ended), later - cpu)
            for (phase, begun, cpu), (_, ended, later) in pairwise(self._marks[start:end])
        ]

    def begin(self, phase: str, *, after_gradients: str | None = None) -> None:
        """Pay for the phase that ends, and mark the beginning of the next."""
        reducing = self._after_gradients
        super().begin(phase, after_gradients=after_gradients)
        if reducing is not None:
            if self._last_gradient is not None:
                # Known only now: while it ran, each gradient might have been the last. What the
                # backward pass did after it was to reduce.
                place, moment, cpu = self._last_gradient
                later = self._marks[place:]
                self._marks[place:] = [(reducing, moment, cpu)]
                self._marks += [
                    (reducing if name == BACKWARD else name, *at) for name, *at in later
                ]
                self._last_gradient = None
            self._communicated(self._begun_ns)
        self._begun_ns = time.time_ns()
        self._mark(phase)

    def untimed(self) -> None:
        """Mark nothing but `rest` from now on."""
        self._untimed = True

    def passing(self, kind: str, stage: int, microbatch: int) -> None:
        """Note that a pass begins at the last mark."""
        self._passes.append((kind, stage, microbatch, len(self._marks) - 1))

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Pay and mark both ends, and tell the counter of the stretch between them."""
        start = time.time_ns()
        with super().during(phase):
            yield
        self._communicated(start)

    def _gradient_ready(self, *, last: bool) -> None:
        super()._gradient_ready(last=last)
        if self._after_gradients is not None:
            moment, cpu = self._clock.stamp(), self._pacer.cpu_seconds()
            self._last_gradient = len(self._marks), moment, cpu

    def _communicated(self, start_ns: int) -> None:
        if self.counted is not None:
            self.counted.communication(start_ns, time.time_ns())

    def _mark(self, phase: str) -> None:
        name = REST if self._untimed else phase
        self._marks.append((name, self._clock.stamp(), self._pacer.cpu_seconds()))


def _sums(parts: Iterable[tuple[str, float]], whole: float) -> dict[str, float]:
    sums = dict.fromkeys(MARKED, 0.0)
    for phase, taken in parts:
        if phase != REST:
            sums[phase] += taken
    # Stamps of a GPU tick in half microseconds, so the parts may exceed the whole by a little.
    sums[REST] = max(0.0, whole - sum(sums.values()))
    return sums
