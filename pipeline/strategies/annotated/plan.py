"""Annotated tensors: a few are cut over mesh axes by hand, DTensor places the rest.

GSPMD's idea (Xu et al. 2021, arXiv 2105.04663). An annotation names, for each dim of a tensor, the
axis over whose ranks that dim is cut, or null: its `mesh_split`. Names may be patterns of
`fnmatch`. What is sent follows from the placements: `python -m pipeline placements` prints them,
and the record holds them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from pipeline import models
from pipeline.cost.traffic import Traffic
from pipeline.errors import StudyError
from pipeline.parallel.mesh import DATA, Degrees, Layout, nearest, product
from pipeline.parallel.types import Parts, Trainable
from pipeline.precision.widths import widths
from pipeline.strategies.base import Footprint, Strategy
from pipeline.study.spec import ModelSpec, RunSpec, WorldSpec

if TYPE_CHECKING:
    from pipeline.cost.sharding import Cuts, Prices

AXIS = "model"
"""Name of the axis over which `plan --auto` cuts operators."""

Shape = tuple[int | None, ...]
"""Lengths of the dims; None is the number of sequences, which every axis divides."""

Annotation = tuple[str | None, ...]
"""For each dim the axis that cuts it, or None."""

Annotations = dict[str, Annotation]
Axes = tuple[tuple[str, int], ...]

MAX_AXES = 4


@dataclass(frozen=True)
class Annotated(Strategy):
    """`axes`: size of each mesh axis by name, 0 for what the others leave of the world.

    `annotations`: for each dim of a parameter, or of the output of a module, the axis that cuts it
    or null, by names or patterns. Sequences are cut over the axis `data`.
    `updates`: the same for the update of a parameter: its reduced gradient, the optimiser's state
    and the weights themselves between two steps. The passes have it as annotated.
    """

    modules = ("torch.distributed.tensor", "torch.distributed.tensor.experimental")
    weighs = False
    by_operator = True
    cuts_weights = True  # the annotated ones
    split = "what is annotated"
    precisions = ("fp32", "tf32", "bf16", "fp16", "amp_o1", "bf16_masters")
    variants = (
        {
            "axes": {"data": 0, "model": 2},
            "annotations": {
                "*.mlp.c_fc.weight": ["model", None],
                "*.mlp.c_fc.bias": ["model"],
                "*.mlp.c_proj.weight": [None, "model"],
                "*.attn.c_proj.weight": ["data", "model"],
                "wte.weight": ["model", None],
                "*.mlp": ["data", None, None],
            },
            "updates": {
                "*.attn.c_attn.weight": ["model", None],
                "*.mlp.c_fc.weight": ["model", "data"],
                "*.ln_2.weight": ["data"],
            },
        },
    )

    use = "to try a layout without writing one"

    axes: dict[str, int] = field(default_factory=lambda: {"data": 0})
    annotations: dict[str, list[str | None]] = field(default_factory=dict)
    updates: dict[str, list[str | None]] = field(default_factory=dict)

    def layout(self, world: WorldSpec) -> Layout:
        """The axes, `data` first; StudyError where they do not fit."""
        return Layout.of(world, *mesh_axes(self.axes, world.size))

    def check_spec(self, spec: RunSpec) -> None:
        """Raise StudyError where an annotation does not fit the model's tensors.

        Also for micro-batches of one sequence: DTensor cuts no dim of one, not even into one part.
        """
        axes, work = self.layout(spec.world).axes, spec.workload
        if work.global_batch == work.accumulation_steps:
            raise StudyError(
                f"{spec.run_id}: strategy annotated takes no micro-batches of one sequence in all, "
                f"given {work.global_batch} of them; set workload.accumulation_steps to a smaller "
                "divisor of workload.global_batch"
            )
        self.resolved(spec.model, axes)

    def resolved(self, model: ModelSpec, axes: Axes) -> tuple[Annotations, Annotations]:
        """Annotations of the model's tensors, and of updates; raises StudyError as `resolve`."""
        weights = models.family(model).parameter_shapes(model)
        chosen = resolve(self.annotations, axes, models.tensor_shapes(model))
        return chosen, resolve(self.updates, axes, weights)

    def footprint(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Footprint:
        """Shares of the annotated parameters; activations count whole, as no axis cuts them all.

        Of those whose update is cut otherwise a rank keeps its part, and the passes have them as
        annotated besides, with their gradients.
        """
        shapes, sizes = models.family(spec.model).parameter_shapes(spec.model), dict(layout.axes)
        chosen, updates = self.resolved(spec.model, layout.axes)
        count = sum(map(math.prod, shapes.values()))

        def held(annotations: Annotations, names: Iterable[str]) -> float:
            parts = ((shapes[k], annotations.get(k, ())) for k in names)
            return sum(math.prod(shape) * share(shape, own, sizes) for shape, own in parts)

        kept = held(chosen | updates, shapes) / count
        return Footprint(
            buffer_bytes=0,
            weight_share=kept,
            gradient_share=held(chosen, shapes) / count,
            optimiser_share=kept,
            gathered_bytes=int(widths(spec.precision).weight * held(chosen, updates)),
        )

    def knobs(self, degrees: Degrees) -> dict[str, Any] | None:
        """Two axes, and nothing that is cut over the second one."""
        others = degrees.pipeline > 1 or degrees.zero > 0 or degrees.sequence
        if degrees.tensor == 1 or others:
            return None
        return {"axes": {DATA: 0, AXIS: degrees.tensor}}

    def cut_operators(
        self, model: ModelSpec, sequences: int, prices: Prices, most: float = math.inf
    ) -> Cuts | None:
        """The best annotations of a block's linear layers, those of all blocks alike."""
        from pipeline.strategies.annotated.search import search

        return search(model, sequences, prices, most)

    @property
    def sends_unstated(self) -> str:
        """Annotations leave the choice of collectives to DTensor."""
        if not (self.annotations or self.updates):
            return ""
        return (
            "no formula: for each operator DTensor chooses, while it runs, the redistribution that "
            "its own cost model holds to be cheapest; it is counted, and placements are recorded"
        )

    def degrees(self, spec: RunSpec, layout: Layout) -> Degrees | None:
        """None where annotations cut something: DTensor chooses what is sent."""
        return None if self.sends_unstated else super().degrees(spec, layout)

    def sends(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Sequence[Traffic]:
        """Gradients over the data axis; not stated where annotations cut something."""
        return () if self.sends_unstated else super().sends(spec, layout, rank, gradients)

    def build(self, parts: Parts) -> Trainable:
        """Place the parameters; the forward pass places all else, the backward pass follows."""
        from pipeline.strategies.annotated.step import AnnotatedStepper

        return AnnotatedStepper(parts, self)


def mesh_axes(axes: Mapping[str, Any], world_size: int) -> Axes:
    """(name, size) of each axis: `data` first, the others by name, the last varies fastest.

    Size 0 is what the others leave of the world. Raises StudyError where they do not multiply up.
    """
    for name, size in axes.items():
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,19}", name) or type(size) is not int or size < 0:
            raise StudyError(
                f"axis {name!r} of size {size!r} is none; name it by small letters and give a "
                "whole number of ranks, or 0 for what the other axes leave"
            )
    sizes = {DATA: 1} | dict(sorted(axes.items()))
    rest = [name for name, size in sizes.items() if not size]
    stated = math.prod(size for size in sizes.values() if size)
    error = f"axes {product(sizes)} do not make {world_size} ranks"
    if len(sizes) > MAX_AXES or len(rest) > 1:
        raise StudyError(
            f"{error}; name at most {MAX_AXES}, one of them of size 0 for what the others leave"
        )
    if world_size % stated or (stated != world_size and not rest):
        left, near = world_size, dict(sizes)
        for name in sorted(sizes, key=lambda name: name == DATA):  # data gets what the others leave
            near[name] = left if name == DATA else nearest(max(1, sizes[name]), left)
            left //= near[name]
        raise StudyError(
            f"{error}; the nearest layout is {product(near)}, or set data to 0 for what the "
            "others leave"
        )
    if rest:
        sizes[rest[0]] = world_size // stated
    return tuple(sizes.items())


def resolve(annotations: Mapping[str, Any], axes: Axes, shapes: Mapping[str, Shape]) -> Annotations:
    """The annotation of each tensor that a pattern names.

    Raises StudyError for one that is no list of axes of the mesh, a pattern that names no tensor,
    two that contradict each other, and a dim that its axis does not divide.
    """
    sizes, chosen = dict(axes), Annotations()
    for pattern, annotation in sorted(annotations.items()):
        if not isinstance(annotation, list | tuple):
            raise StudyError(
                f"annotation of {pattern} is {annotation!r}; give a list with an axis or null for "
                "each dim"
            )
        used = [name for name in annotation if name is not None]
        for name in used:
            if name not in list(sizes):  # which also takes what has no hash
                raise StudyError(
                    f"annotation of {pattern} names the axis {name!r}; use one of "
                    f"{', '.join(sizes)}, or add it to the option axes"
                )
        if len(set(used)) < len(used):
            raise StudyError(
                f"annotation of {pattern} uses an axis for two dims ({', '.join(used)}); use each "
                "once"
            )
        names = [name for name in shapes if fnmatchcase(name, pattern)]
        if not names:
            end = pattern.rpartition(".")[2]
            near = [name for name in shapes if name.endswith(end)] or list(shapes)
            raise StudyError(
                f"annotation of {pattern}: no such tensor; the model has {', '.join(near[:3])} and "
                f"{len(shapes) - len(near[:3])} more"
            )
        for name in names:
            if chosen.setdefault(name, tuple(annotation)) != tuple(annotation):
                earlier = ", ".join(axis or "null" for axis in chosen[name])
                raise StudyError(
                    f"annotation of {pattern} contradicts an earlier one of {name} ([{earlier}]); "
                    "annotate each tensor once"
                )
            _check_shape(name, shapes[name], tuple(annotation), sizes)
    return chosen


def _check_shape(name: str, shape: Shape, annotation: Annotation, sizes: Mapping[str, int]) -> None:
    dims = ", ".join("sequences" if length is None else str(length) for length in shape)
    if len(annotation) != len(shape):
        raise StudyError(
            f"annotation of {name} has {len(annotation)} dims, the tensor ({dims}) has "
            f"{len(shape)}; give an axis or null for each"
        )
    for dim, (length, axis) in enumerate(zip(shape, annotation, strict=True)):
        if length is not None and axis is not None and length % sizes[axis]:
            raise StudyError(
                f"axis {axis} of {sizes[axis]} ranks does not divide dim {dim} of {name} ({dims}); "
                f"set {axis} to a divisor of {length}, or annotate another dim"
            )


def share(shape: Shape, annotation: Annotation, sizes: Mapping[str, int]) -> float:
    """The share of a tensor of that shape that one rank holds."""
    return 1 / math.prod(sizes[axis] for axis in annotation[: len(shape)] if axis is not None)
