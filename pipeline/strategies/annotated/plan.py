"""Annotated tensors: a few are cut over mesh axes by hand, DTensor places the rest.

GSPMD's idea (Xu et al. 2021). What is sent follows from the placements: `python -m pipeline
placements` prints them, and the record holds them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipeline import models
from pipeline.cost.traffic import Traffic
from pipeline.errors import StudyError
from pipeline.parallel.mesh import DATA, Degrees, Layout
from pipeline.parallel.types import Parts, Trainable
from pipeline.precision.widths import widths
from pipeline.strategies.annotated.annotations import Annotation, mesh_axes, resolve, share
from pipeline.strategies.base import Footprint, Strategy
from pipeline.study.spec import ModelSpec, RunSpec, WorldSpec

if TYPE_CHECKING:
    from pipeline.cost.sharding import Cuts, Prices

AXIS = "model"
"""Name of the axis over which `plan --auto` cuts operators."""


@dataclass(frozen=True)
class Annotated(Strategy):
    """`axes`: size of each mesh axis by name, 0 for what the others leave of the world.

    `annotations`: for each dim of a parameter, or of the output of a module, the axis that cuts it
    or null, by names or patterns. Sequences are cut over the axis `data`.
    `updates`: the same for the update of a parameter: its reduced gradient, the optimiser's state
    and the weights themselves between two steps. The passes have it as annotated.
    """

    modules = (
        "torch.distributed.tensor",
        "torch.distributed.tensor.experimental",
    )
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
        resolve(self.annotations, axes, models.tensor_shapes(spec.model))
        resolve(self.updates, axes, models.family(spec.model).parameter_shapes(spec.model))

    def footprint(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Footprint:
        """Shares of the annotated parameters; activations count whole, as no axis cuts them all.

        Of those whose update is cut otherwise a rank keeps its part, and the passes have them as
        annotated besides, with their gradients.
        """
        shapes, sizes = models.family(spec.model).parameter_shapes(spec.model), dict(layout.axes)
        chosen = resolve(self.annotations, layout.axes, models.tensor_shapes(spec.model))
        updates = resolve(self.updates, layout.axes, shapes)
        count = sum(map(math.prod, shapes.values()))

        def held(annotations: Mapping[str, Annotation], names: Iterable[str]) -> float:
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

        return AnnotatedStepper(parts, self.annotations, self.updates)
