"""The yardstick of a study: how fast this machine computes when nothing disturbs it.

On emulated nodes a rank is held to its CPU seconds, and these are not the same for the same work: a
rank that waits loses its caches to its neighbours, and to whatever else the machine's host runs.
Here the passes of a study's model are measured once, before its runs: a process on each core, steps
one after another, as a cluster's nodes would do them. Sizes of micro-batches and precisions take
turns in each round, so that what disturbs the machine hits them alike. A run then counts its CPU
seconds by how long its own forward passes take compared with these (`pipeline.emulation.pacing`).

After a wait the forward pass, which comes first, loses more to cold caches than the rest of a step.
So steps are measured after waits as well, and the reference is their forward pass, scaled by how
much of a step's CPU seconds the waits cost.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import schemas, strategies
from pipeline.emulation.dilation import places
from pipeline.errors import LaunchError
from pipeline.machine.facts import hardware
from pipeline.machine.processes import at_once, keep_freed_memory
from pipeline.machine.source import provenance
from pipeline.parallel.types import Batch, Phases
from pipeline.resolved import ResolvedRun
from pipeline.study.profiling import FORWARD
from pipeline.study.spec import RunSpec, WorldSpec
from pipeline.training import worker

if TYPE_CHECKING:
    from pipeline.parallel.types import Trainable

VERSION = 1
SHAPE_SECONDS = 5
"""For each shape: the machine's speed changes within a second, so a median needs many rounds."""
MIN_ROUNDS = 6
WAIT_SECONDS = 0.02
"""Before a step, about as long as ranks of the default study wait for one another."""

FIX = "remove the file; the workflow, or `python -m pipeline yardstick`, measures it again"

Shape = tuple[str, int]
"""A precision, and the number of sequences of a rank's micro-batch."""

Round = dict[str, float]
"""CPU seconds of a step at once, of one after a wait, and of that one's forward pass."""


def shape_of(run: ResolvedRun) -> Shape:
    """Precision and sequences that a rank of the run computes at a time."""
    share = run.spec.workload.global_batch // run.layout.data_parallel
    return run.spec.precision, share // run.spec.workload.accumulation_steps


def measured(
    runs: Iterable[ResolvedRun], cores: Sequence[int], seconds: int | None = None
) -> dict[str, Any]:
    """Measure what all runs that have the yardstick need, on these cores, for so many seconds.

    By default `SHAPE_SECONDS` for each shape. Some run has it: the command refuses other studies.
    """
    having = {shape_of(run): run.spec for run in runs if run.spec.world.yardstick}
    first = next(iter(having.values()))
    worker.import_heavy([first.model])
    width = first.world.cores_per_node or 1
    lasting = seconds or SHAPE_SECONDS * len(having)
    own = places(len(cores) // width or 1, width, cores)
    results = at_once([partial(_rounds, having, len(place), lasting) for place in own], own)
    # A process that made more rounds than another has them left out.
    by_shape: dict[Shape, list[Round]] = {shape: [] for shape in having}
    for n, rounds in enumerate(by_shape.values()):
        for same in zip(*(one[n] for one in results), strict=False):
            medians = {name: statistics.median(one[name] for one in same) for name in same[0]}
            # The forward pass of an undisturbed step.
            scaled = medians["waited_forward"] * medians["step"] / medians["waited_step"]
            rounds.append(medians | {"forward_seconds": scaled})
    return {
        "version": VERSION,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(),
        "git_commit": provenance()["git_commit"],
        "cores_per_node": first.world.cores_per_node,
        "model": asdict(first.model),
        "compile": first.compile,
        "torch": version("torch"),
        "environment": dict(first.environment),
        "passes": [
            {
                "precision": precision,
                "sequences": sequences,
                "forward_seconds": statistics.median(one["forward_seconds"] for one in rounds),
                "step_seconds": statistics.median(one["step"] for one in rounds),
                "rounds": rounds,
            }
            for (precision, sequences), rounds in sorted(by_shape.items())
        ],
    }


def forward_seconds(path: Path | None, run: ResolvedRun) -> float | None:
    """Seconds of a forward pass of the run by the yardstick in the file; None where it has none.

    A run in real time has one where its study does.
    Raises LaunchError where the file is missing or is of another model, machine or study.
    """
    spec = run.spec
    if path is None and not spec.world.yardstick:
        return None
    if path is None:
        raise LaunchError(
            f"{spec.run_id} counts CPU seconds by a yardstick, and none was given; "
            "add --yardstick FILE, which `python -m pipeline yardstick` writes"
        )
    content = schemas.read(path, "yardstick", "python -m pipeline yardstick")
    precision, sequences = shape_of(run)
    own = dict(spec.environment)
    for name, had, wanted in (
        ("cpu_model", content["hardware"].get("cpu_model"), hardware()["cpu_model"]),
        ("cores_per_node", content["cores_per_node"], spec.world.cores_per_node),
        ("model", content["model"], asdict(spec.model)),
        ("compile", content["compile"], spec.compile),
        # An earlier version of this project noted neither.
        ("torch", content.get("torch", version("torch")), version("torch")),
        ("environment", content.get("environment", own), own),
    ):
        if had != wanted:
            raise LaunchError(f"{path} has {name} {had}, {spec.run_id} {wanted}; {FIX}")
    for one in content["passes"]:
        if (one["precision"], one["sequences"]) == (precision, sequences):
            rounds = [each["forward_seconds"] for each in one["rounds"]]
            if one["forward_seconds"] != statistics.median(rounds):
                raise LaunchError(f"{path} has other forward_seconds than its rounds give; {FIX}")
            return float(one["forward_seconds"])
    raise LaunchError(
        f"{path} has no passes of {sequences} sequences in {precision}, which {spec.run_id} "
        f"computes at a time; {FIX}"
    )


class _Listener(Phases):
    """CPU seconds of this thread in the forward passes of a step."""

    def __init__(self) -> None:
        self.forward, self._phase, self._since = 0.0, "", 0.0

    def begin(self, phase: str, *, after_gradients: str | None = None) -> None:
        now = time.thread_time()
        if self._phase == FORWARD:
            self.forward += now - self._since
        self._phase, self._since = phase, now

    def step(self, trainable: Trainable, batch: Batch, wait: float = 0.0) -> tuple[float, float]:
        """CPU seconds of a step after a wait, and those of its forward pass."""
        time.sleep(wait)
        self.forward, self._phase = 0.0, ""
        before = time.thread_time()
        trainable.step([batch])
        return time.thread_time() - before, self.forward


def _rounds(having: Mapping[Shape, RunSpec], threads: int, seconds: int) -> list[list[Round]]:
    """For each shape its rounds, in this process; shapes of one precision share their model."""
    import torch

    keep_freed_memory()
    torch.set_num_threads(threads)
    listener = _Listener()
    precisions = {precision: run for (precision, _), run in having.items()}
    trainables = {one: _trainable(run, listener) for one, run in precisions.items()}

    def step_of(shape: Shape, run: RunSpec) -> Callable[[float], tuple[float, float]]:
        seeded = torch.Generator().manual_seed(run.seed)
        size = (shape[1], run.model.context)
        tokens = torch.randint(0, run.model.vocab_size, size, generator=seeded)
        padded = run.objective is not None and run.objective.pads
        # A mask of padding takes time, wherever the padding is.
        segments = (torch.arange(size[1]) > 0).long().expand(size) if padded else None
        batch = Batch(tokens, tokens, segments=segments)
        return partial(listener.step, trainables[shape[0]], batch)

    def round_of(step: Callable[[float], tuple[float, float]], times: int) -> Round:
        """Medians of so many steps at once and after waits; the first step fills the caches."""
        step(0.0)
        at_once = [step(0.0) for _ in range(times)]
        waited = [step(WAIT_SECONDS) for _ in range(times)]
        return {
            "step": statistics.median(whole for whole, _ in at_once),
            "waited_step": statistics.median(whole for whole, _ in waited),
            "waited_forward": statistics.median(forward for _, forward in waited),
        }

    steps = [step_of(shape, run) for shape, run in having.items()]
    first = [round_of(step, 1)["step"] for step in steps]
    # Short steps vary more, and cost less: where a step is a quarter as long, twice as many.
    times = [max(1, round(math.sqrt(max(first) / own))) for own in first]
    rounds: list[list[Round]] = [[] for _ in steps]
    end = time.monotonic() + seconds
    while len(rounds[0]) < MIN_ROUNDS or time.monotonic() < end:
        for step, often, own in zip(steps, times, rounds, strict=True):
            own.append(round_of(step, often))
    return rounds


def _trainable(run: RunSpec, listener: Phases) -> Trainable:
    """The study's model on one device, built as the training loop builds it."""
    from pipeline.models.build import build_model, compile_model
    from pipeline.precision import make_precision
    from pipeline.training.optimiser import parts_of

    single = strategies.load("single", {})
    layout = single.layout(WorldSpec(1, 1, "cpu", "gloo", "loopback"))
    model, precision = build_model(run.model, run.seed), make_precision(run.precision, "cpu")
    if run.compile:
        compile_model(model)
    return single.build(parts_of(run, model, layout, precision, listener))
