"""Operators and messages of a run's step, by its strategy's arithmetic: what `calibrate` times.

An operator is a kind, a number format and sizes; its seconds are those of both passes. The family
has them for a micro-batch (`operators` of its arithmetic), the strategy how many there are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from pipeline import models
from pipeline.errors import StudyError
from pipeline.parallel.mesh import CONTEXT, DATA, PIPELINE, TENSOR, Degrees
from pipeline.precision.widths import widths
from pipeline.resolved import ResolvedRun

PRODUCT_FORMATS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16",
                   "amp_o1": "bfloat16", "amp_o2": "bfloat16"}  # fmt: skip
"""Number format of products on a CPU."""

TOKENWISE = ("layer_norm", "add")
"""Kinds of which a rank has its own tokens alone where sequences are cut over the tensor axis."""

OF_PARAMETERS = ("unit", "update", "reduction", "backward")
"""Kinds around passes, first of whose sizes is the number of numbers, or of groups of weights."""

BY_WAY = ("backward", "reduction")
"""Kinds whose last size says in which of its ways the work is done: their times are subtracted."""

NARROW = ("product", "attention", "gelu")
"""Kinds that autocast narrows; sums and losses stay in fp32."""


@dataclass(frozen=True, order=True)
class Operator:
    """A kind of operator, the format of its numbers, and its sizes."""

    kind: str
    dtype: str
    sizes: tuple[int, ...]

    @property
    def work(self) -> float:
        """FLOPs or numbers, up to a factor: times of one kind grow with it."""
        if self.kind in OF_PARAMETERS:
            return float(self.sizes[0])
        size = float(math.prod(self.sizes))
        if self.kind == "attention":
            return size * self.sizes[2]
        return size / self.sizes[-1] if self.kind == "embedding" else size


Counted = Counter[Operator]


@dataclass(frozen=True)
class Work:
    """Operators of a step: of a micro-batch on each stage, and of the update, once."""

    stages: tuple[Counted, ...]
    update: Counted
    pieces: int
    halves: Counted = field(default_factory=Counter)
    """The surplus of a micro-batch's backward pass where it is split in two."""
    reduction: Counted = field(default_factory=Counter)
    """The host's work in a step of putting gradients into buckets; what is sent is not in it."""

    @property
    def operators(self) -> set[Operator]:
        """All of them."""
        parts = *self.stages, self.update, self.halves, self.reduction
        return {one for part in parts for one in part}


def work_of(run: ResolvedRun) -> Work:
    """The operators of a run; raises StudyError for a family that does not state its own."""
    spec, layout = run.spec, run.layout
    sizes = models.family(spec.model)
    if spec.objective or spec.compile:
        raise StudyError(
            f"{spec.run_id}: steps of compiled blocks and of other objectives than causal are not "
            "predicted"
        )
    if spec.precision not in PRODUCT_FORMATS:
        raise StudyError(f"{spec.run_id}: precision {spec.precision} is not timed on a CPU")
    if CONTEXT in dict(layout.axes):
        raise StudyError(f"{spec.run_id}: steps over pieces of sequences are not predicted")
    pieces = run.strategy.pieces(spec, layout)
    sequences = -(-spec.workload.global_batch // (layout.data_devices * pieces))
    tensor, count = layout.size(TENSOR), layout.size(PIPELINE)
    first, block, last = sizes.operators(spec.model, sequences, tensor)
    parameters = models.num_parameters(spec.model)
    degrees = run.strategy.degrees(spec, layout) or Degrees()
    cut, narrow = tensor if degrees.sequence else 1, PRODUCT_FORMATS[spec.precision]
    stages = []
    for stage in range(count):
        layers = len(range(stage, spec.model.num_layers, count))
        if degrees.layers:
            layers = sum(degrees.layers[stage::count])
        work = Counter({key: layers * n for key, n in block.items()})
        work.update(first if stage == 0 else {})
        work.update(last if stage == count - 1 else {})
        stages.append(Counter[Operator]())
        for (kind, (first_size, *others)), n in work.items():
            own = first_size // cut if kind in TOKENWISE else first_size
            dtype = narrow if kind in NARROW else "float32"
            stages[-1][Operator(kind, dtype, (own, *others))] = n
        if degrees.zero > 1:
            # FSDP2's groups: each block, and the rest, which it never frees within a step.
            shapes = sizes.parameter_shapes(spec.model)
            numbers = sizes.layer_parameters(spec.model)
            rest = parameters - spec.model.num_layers * numbers
            tensors = sum(".0." in name for name in shapes)
            outside = len(shapes) - spec.model.num_layers * tensors
            group = (numbers // tensor, tensors, degrees.zero)
            stages[-1][Operator("unit", "float32", group)] = layers
            stages[-1][Operator("unit", "float32", (rest, outside, 2))] = 1
    gradients = widths(spec.precision).gradient * parameters
    held = run.strategy.footprint(spec, layout, 0, gradients)
    numbers = max(1, round(held.optimiser_share * parameters))
    tensors = max(1, len(sizes.parameter_shapes(spec.model)) // count)
    update = Counter({Operator("update", "float32", (numbers, tensors)): 1})
    halves = Counted()
    if degrees.schedule == "zero_bubble":
        # A weight and its bias make a group.
        split, whole = (Operator("backward", "float32", (-(-tensors // 2), n)) for n in (2, 1))
        halves = Counter({split: 1, whole: -1})
    reduction = Counted()
    # A rank alone, too, has what its strategy reduces with.
    if degrees.zero < 2 and (
        layout.size(DATA) > 1
        or (layout.num_processes == 1 and (held.buffer_bytes or held.holds_gradients))
    ):
        shared = max(1, round(held.held_share * parameters))
        reduced, bare = (Operator("reduction", "float32", (shared, tensors, n)) for n in (2, 1))
        reduction = Counter({reduced: 1, bare: -1})
    return Work(tuple(stages), update, pieces, halves, reduction)


def of_study(runs: Iterable[ResolvedRun]) -> list[Operator]:
    """All operators of the runs that can be predicted, in a fixed order."""
    needed: set[Operator] = set()
    for run in runs:
        with suppress(StudyError):
            needed |= work_of(run).operators
    return sorted(needed)
