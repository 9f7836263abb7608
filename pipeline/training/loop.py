"""The one training loop: the same for every strategy, model and precision."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pipeline.emulation import tcp
from pipeline.errors import StoppedError
from pipeline.models import stored
from pipeline.models.build import build_model, compile_model, deferred_model, recompute_blocks
from pipeline.parallel.collectives import heard_by
from pipeline.parallel.counted import Counted
from pipeline.parallel.state import materialise, read_weights
from pipeline.parallel.types import NOT_PROFILED, Batch, Phases, SavedState, Trainable, already
from pipeline.precision import make_precision
from pipeline.records import Step
from pipeline.strategies.base import Strategy
from pipeline.study.spec import RunSpec
from pipeline.training.clock import Clock
from pipeline.training.optimiser import parts_of
from pipeline.training.phases import Paced, PhaseTimer
from pipeline.training.sampler import Sampler, memory_bytes

if TYPE_CHECKING:
    from pipeline.corpus.batches import Batches


class Loop:
    """One run on one rank; after `run`, `model` holds what this rank has of the final weights."""

    def __init__(
        self, spec: RunSpec, strategy: Strategy, batches: Batches, rank: int, clock: Clock
    ) -> None:
        self.spec, self.batches, self.rank, self.clock = spec, batches, rank, clock
        self.strategy = strategy
        self.device = device = clock.device
        self.layout = strategy.layout(spec.world)
        strategy.check_precision(spec.precision)
        self.precision = make_precision(spec.precision, device.type)
        self.base_memory_bytes = memory_bytes(device)
        self.model, fill = _model(spec, strategy, device, clock.pacer.has_yardstick)
        self.sampler = Sampler(device, clock.pacer.dilation)
        self.tcp: dict[str, int] | None = None
        """Counters of an emulated node's TCP over the timed steps."""
        self.weights_sha256 = ""
        """Hash of the final weights, once `run` is done."""
        self.counted = Counted(self.layout, rank, strategy.period) if spec.profile else None
        self.sent: dict[str, Any] | None = None
        """Bytes that this rank sent in a step of a profiled run, once `run` is done."""
        self.free_running: dict[str, float] | None = None
        """Steps, and seconds of one, that nothing waited for between, where they are asked for."""
        self.padding: list[float] = []
        """Share of padding in each timed step's part of this rank, where sequences have any."""
        self.phases = PhaseTimer(self.clock, self.counted) if spec.profile else None
        paced = clock.pacer.paces or clock.pacer.has_yardstick
        self.listener = self.phases or (Paced(clock.pacer) if paced else NOT_PROFILED)
        self.between_steps = NOT_PROFILED
        if self.counted is not None:
            self.between_steps = Phases()  # which marks no phase
            self.between_steps.counted = self.counted
        self.trainable = strategy.build(
            parts_of(spec, self.model, self.layout, self.precision, self.listener, fill)
        )

    def run(
        self,
        on_step: Callable[[Step], object],
        on_checkpoint: Callable[[int, Trainable], object] = lambda *_: None,
        *,
        stops: Callable[[Trainable], bool] = lambda _: False,
        free_steps: int = 0,
        done: int = 0,
        state: SavedState | None = None,
    ) -> None:
        """Train from step `done` (whose `state` is then given) to the last step, then close.

        `on_checkpoint` keeps the state after so many steps. `stops` is collective: True on every
        rank where the run is to end at a checkpoint now. After a timed run up to `free_steps`
        further steps are timed together.
        """
        work = self.spec.workload
        if state is not None:
            self.trainable.load(state)
        timed_from, before = work.first_timed(done), None
        self.clock.pacer.start()
        for step in range(done, work.steps):
            self.clock.pacer.begin_step(step)
            rate = self.spec.rate(step)
            for group in self.trainable.optimiser.param_groups:
                group["lr"] = rate
            if self.phases is None:
                microbatches, data_seconds = self.read(step), 0.0
            else:
                microbatches, (data_seconds, _) = self.clock.time(partial(self.read, step))
            if step == timed_from:
                before = tcp.counters()
                self.sampler.start()
                if self.counted is not None:
                    self.counted.start()
            _, (seconds, cpu_seconds) = self.clock.time(
                partial(self._step, microbatches), self.trainable.barrier
            )
            with heard_by(self.between_steps):
                result = self.trainable.report()
            self.sampler.sample()
            loss, norm = (n if math.isfinite(n) else None for n in (result.loss, result.grad_norm))
            timed = step >= timed_from
            profile: dict[str, Any] = {}
            if self.phases is not None:
                profile["phases"] = self.phases.split(seconds, data_seconds)
                profile["passes"] = self.phases.split_passes()
                profile["squares"] = by_block(self.trainable.squares())
                # On emulated nodes one thread runs all phases. On a GPU autograd runs backward
                # passes, and their marks, in a thread with another clock.
                if self.spec.world.network == "emulated":
                    profile["cpu_phases"] = self.phases.split_cpu(cpu_seconds)
            row = step, self.rank, seconds, result.tokens, loss, norm, rate, timed
            on_step(Step(*row, cpu_seconds=cpu_seconds, **profile))
            if timed and self.spec.objective and self.spec.objective.pads:
                segments = [batch.segments for batch in microbatches if batch.segments is not None]
                self.padding += [float((part == 0).float().mean()) for part in segments]
            ends = step + 1 < work.steps and stops(self.trainable)
            if ends or (work.checkpoint_every and (step + 1) % work.checkpoint_every == 0):
                on_checkpoint(step + 1, self.trainable)
            if ends:
                raise StoppedError(
                    f"the job was asked to end; a checkpoint keeps its {step + 1} steps, start it "
                    "again and it resumes from there"
                )
        self.tcp = tcp.since(before)
        self.sent = None if self.counted is None else self.counted.summary()
        if free_steps and self.phases is None:
            # Whole rounds of a strategy that sends in some of its steps alone.
            period = self.strategy.period
            count = min(work.steps - timed_from, free_steps) // period * period
            self.free_running = self._run_freely(max(count, period))
        self.weights_sha256 = self.trainable.close()

    def _run_freely(self, count: int) -> dict[str, float]:
        """Time `count` further steps, each with its batch read, between two synchronisations.

        The recorded steps each begin at a barrier and with an idle device: there no rank, and on a
        GPU no host, runs ahead, so many small kernels cost most. At a learning rate of 0 these
        leave the weights as they are, to the bit, and do the same work.
        """
        for group in self.trainable.optimiser.param_groups:
            group["lr"] = 0.0
        first = self.spec.workload.steps

        def steps() -> None:
            for step in range(first, first + count):
                self.trainable.step(self.read(step))

        _, spent = self.clock.time(steps, self.trainable.barrier)
        return {"steps": count, "step_seconds": spent.seconds / count}

    def read(self, step: int) -> list[Batch]:
        """This rank's slice of the global batch of `step`, cut into micro-batches."""
        _, phase = self.spec.at(step)
        batch, pieces = phase.workload.global_batch, phase.workload.accumulation_steps
        start, stop = self.layout.batch_slice(self.rank, batch)
        parts = self.batches.of(phase.model.context, batch).slice(step, start, stop)
        cut: list[Any] = []
        for part in parts:
            whole = None if part is None else torch.from_numpy(part)
            if whole is not None and self.device.type == "cuda":
                # Copied in the order of the GPU's work: from pageable memory it would wait.
                whole = whole.pin_memory().to(self.device, non_blocking=True)
            cut.append([None] * pieces if whole is None else whole.chunk(pieces))
        return [Batch(*piece) for piece in zip(*cut, strict=True)]

    def _step(self, microbatches: list[Batch]) -> None:
        """One step, its phases recorded where the run is a profiled one."""
        step = partial(self.trainable.step, microbatches)
        with heard_by(self.listener):
            if self.phases is None:
                step()
            else:
                self.phases.record(step)


def by_block(squares: Mapping[str, float]) -> dict[str, float] | None:
    """Sums over each block, `h.0`, and each other module; None without any, or if not finite."""
    sums: dict[str, float] = {}
    for name, square in squares.items():
        block = re.sub(r"^(.*?\.\d+)\..*|\.[^.]*$", r"\1", name)
        sums[block] = sums.get(block, 0.0) + square
    return sums if sums and math.isfinite(sum(sums.values())) else None


def _model(
    spec: RunSpec, strategy: Strategy, device: torch.device, has_yardstick: bool
) -> tuple[nn.Module, Callable[[], None]]:
    """The model of a run, and what gives it memory and weights where the strategy cuts these."""
    fill: Callable[[], None] = already
    read = None if spec.model.weights is None else stored.reader(spec.model)
    if strategy.cuts_weights:
        model, initial = deferred_model(spec.model, spec.seed)
        fill = partial(materialise, model, initial.values, device, read)
    else:
        model = build_model(spec.model, spec.seed)
        if read is not None:
            read_weights(model, read)
        model = model.to(device)
    recompute_blocks(model, spec.workload.recompute)
    if spec.compile:
        # Blocks are what is recomputed, and what a yardstick of all strategies has.
        by_block = spec.workload.recompute or has_yardstick
        compile_model(model, whole=not by_block and strategy.one_graph(spec))
    return model, fill
