"""Hybrid: data x tensor x pipeline on one mesh, the 3D layout of Megatron-LM and MT-NLG.

Layers are stages of a pipeline, each of them is cut over the tensor axis (Narayanan et al. 2021,
arXiv 2104.04473; Smith et al. 2022, arXiv 2201.11990), and gradients are averaged along the data
axis, over which ZeRO's stage 1 may shard the optimiser's state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline import models
from pipeline.errors import StudyError, UnsupportedError
from pipeline.parallel.mesh import DATA, PIPELINE, TENSOR, Layout
from pipeline.parallel.schedule import check_name, nearest
from pipeline.parallel.types import Parts, Prepared
from pipeline.parallel.wire import Sends
from pipeline.strategies._pipeline import Pipelined
from pipeline.strategies.base import Footprint

if TYPE_CHECKING:
    from pipeline.study.spec import RunSpec, WorldSpec


@dataclass(frozen=True)
class Hybrid(Pipelined):
    """`pipeline`, `tensor` and `data` are the sizes of the axes, `data` 0 for all ranks left over.

    `zero_stage`: 0, or 1 to shard the optimiser's state along the data axis.
    """

    variants: ClassVar[tuple[dict[str, Any], ...]] = (
        {"tensor": 1, "zero_stage": 1},
        {"pipeline": 1, "zero_stage": 1},
    )

    use: ClassVar[str] = "no single axis makes the model fit: tensor within a node, stages between"
    sends_unstated: ClassVar[str] = (
        "as `tensor` of a stage's layers and `pipeline_parallel`: no formula of its own"
    )

    pipeline: int = 2
    tensor: int = 2
    data: int = 0
    zero_stage: int = 0

    def layout(self, world: WorldSpec) -> Layout:
        """Axes (pipeline, data, tensor), tensor ranks neighbours; StudyError unless they fit."""
        check_name(self.schedule, self.chunks)
        if self.zero_stage not in (0, 1):
            raise StudyError(
                f"strategy hybrid: zero_stage {self.zero_stage} is unknown; use 0 or 1"
            )
        sizes = {"pipeline": self.pipeline, "tensor": self.tensor}
        for name, size in sizes.items():
            if size < 1:
                raise StudyError(f"strategy hybrid: {name} is {size}; set it to 1 or more")
        data = self.data or max(1, world.size // (self.pipeline * self.tensor))
        if self.pipeline * self.tensor * data != world.size:
            raise StudyError(
                f"strategy hybrid: pipeline {self.pipeline} x tensor {self.tensor} x data {data} "
                f"are {self.pipeline * self.tensor * data} ranks, the world has {world.size}; the "
                f"nearest layout is {self._nearest(world.size)}"
            )
        return Layout(
            axes=((PIPELINE, self.pipeline), (DATA, data), (TENSOR, self.tensor)),
            processes_per_node=world.ranks_per_node,
            device=world.device,
            backend=world.backend,
        )

    def _nearest(self, ranks: int) -> str:
        """Sizes that multiply up to `ranks`: tensor's nearest divisor, then pipeline's."""
        tensor = nearest(self.tensor, ranks)
        stages = nearest(self.pipeline, ranks // tensor)
        return f"pipeline {stages} x tensor {tensor} x data {ranks // tensor // stages}"

    def check_spec(self, spec: RunSpec) -> None:
        """Raise StudyError where layers, heads and sequences do not fit the axes."""
        super().check_spec(spec)
        if spec.model.num_heads % self.tensor:
            raise StudyError(
                f"{spec.run_id}: {self.tensor} tensor ranks do not divide {spec.model.num_heads} "
                f"attention heads; the nearest option tensor is "
                f"{nearest(self.tensor, spec.model.num_heads)}, or set model.num_heads"
            )

    def footprint(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Footprint:
        """Shares of a stage, cut as with strategy tensor; its products are taken to be the mean."""
        stage = super().footprint(spec, layout, rank, gradients)
        count = models.num_parameters(spec.model)
        products = models.product_weights(spec.model)
        cut = (count - products + products / self.tensor) / count
        weights = stage.weight_share * cut
        data = layout.data_parallel if self.zero_stage else 1
        return replace(
            stage,
            buffer_bytes=int(stage.buffer_bytes * cut),
            weight_share=weights,
            gradient_share=weights,
            held_share=weights,
            optimiser_share=weights / data,
            gathered_bytes=int(weights * gradients / data) if self.zero_stage else 0,
            activation_share=stage.activation_share * (4 + 12 / self.tensor) / 16,
            logit_share=stage.logit_share / self.tensor,
        )

    @property
    def split(self) -> str:
        """Layers by stages, each of them by its products."""
        state = ", the optimiser state once more over data" * bool(self.zero_stage)
        return f"layers, by stages and within them{state}"

    def sends(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> tuple[Sends, ...]:
        """Nothing is stated, see `sends_unstated`."""
        return ()

    def cut_tensors(self, parts: Parts, mesh: Any) -> None:
        """Cut the layers that the family names, where the tensor axis has more than one rank."""
        from pipeline.parallel.tensor import TensorAxis, cut_layers

        if self.tensor == 1:
            return
        if not hasattr(parts.model, "tensor_cuts"):
            raise UnsupportedError(
                f"{type(parts.model).__name__} names no tensor_cuts; add them to its family"
            )
        cut_layers(parts.model, TensorAxis(mesh[TENSOR].get_group(), parts.phases))

    def prepare(self, parts: Parts, mesh: Any) -> Prepared:
        """Make the optimiser, under ZeRO's stage 1 of this rank's rows of each weight."""
        from pipeline.parallel.sharded import ShardedOptimiser

        if not self.zero_stage or parts.layout.data_parallel == 1:
            return super().prepare(parts, mesh)
        parts.materialise()
        return parts.prepared(
            ShardedOptimiser(
                parts.model.parameters(), parts.make_optimiser, mesh[DATA], parts.phases
            )
        )
