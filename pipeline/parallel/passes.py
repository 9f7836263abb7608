"""Passes of micro-batches through a stage, marked as phases.

Between them a rank sends, receives and waits; torch's schedule decides in which order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from torch.distributed.pipelining import PipelineStage

from pipeline.parallel.types import Phases
from pipeline.study.profiling import BACKWARD, COMMUNICATION, FORWARD, WEIGHTS


class Waits:
    """Communication, but for the passes of micro-batches, which interrupt it."""

    def __init__(self, phases: Phases) -> None:
        self.phases = phases
        self._open = ExitStack()

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        """The context of a whole schedule."""
        try:
            self._wait()
            yield
        finally:
            self._open.close()

    @contextmanager
    def not_while(self, phase: str, passing: tuple[str, int, int] | None = None) -> Iterator[None]:
        """A pass: what it made is paid for before a neighbour may see it.

        `passing` is its kind, stage and micro-batch; without it belongs to the pass before.
        """
        self._open.close()
        self.phases.begin(phase)
        if passing is not None:
            self.phases.passing(*passing)
        yield
        self._wait()

    def _wait(self) -> None:
        waiting: AbstractContextManager[None] = self.phases.during(COMMUNICATION)
        self._open.enter_context(waiting)


class MarkedStage(PipelineStage):
    """A stage that marks its passes; what lies between them is communication, and waiting for it.

    `waits` is the context of the latter.
    """

    waits: Waits

    def _validate_fwd_outputs(self, outputs: tuple[Any, ...]) -> None:
        """Hold what is sent on against its stated shape; torch before 2.13 calls it.

        The last stage sends nothing, and its stated shape is not that of its logits.
        """
        if not self.is_last:
            super()._validate_fwd_outputs(outputs)  # type: ignore[misc]

    def forward_one_chunk(self, fwd_chunk_id: int, *given: Any, **options: Any) -> Any:
        """The forward pass of a micro-batch, which has been received.

        An error is raised as it was, without torch's wrapping: a record's status is read from it.
        """
        with self.waits.not_while(FORWARD, (FORWARD, self.stage_index, fwd_chunk_id)):
            try:
                return super().forward_one_chunk(fwd_chunk_id, *given, **options)
            except RuntimeError as error:
                raise (error.__cause__ or error) from None

    def backward_one_chunk(self, bwd_chunk_id: int, *given: Any, **options: Any) -> None:
        """The backward pass of a micro-batch, or the half of it that sends a gradient on."""
        with self.waits.not_while(BACKWARD, (BACKWARD, self.stage_index, bwd_chunk_id)):
            super().backward_one_chunk(bwd_chunk_id, *given, **options)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *given: Any, **options: Any) -> None:
        """The half of a backward pass that computes the gradients of the weights."""
        with self.waits.not_while(BACKWARD, (WEIGHTS, self.stage_index, bwd_chunk_id)):
            super().backward_weight_one_chunk(bwd_chunk_id, *given, **options)
