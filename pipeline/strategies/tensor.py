"""Tensor parallelism: Megatron-LM's column and row cuts (Shoeybi et al. 2019), with a data axis.

Every pair of cut layers costs an all-reduce of its activations in each pass; embedding and loss are
cut over the vocabulary. Along the data axis DDP averages the gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline import models
from pipeline.errors import StudyError, UnsupportedError
from pipeline.parallel.mesh import DATA, Layout
from pipeline.parallel.types import Parts, Trainable
from pipeline.strategies.base import Footprint, Strategy

if TYPE_CHECKING:
    from pipeline.study.spec import RunSpec, WorldSpec

TENSOR = "tensor"


@dataclass(frozen=True)
class Tensor(Strategy):
    """`ranks`: size of the tensor axis, 0 for all ranks; the rest are data-parallel."""

    precisions: ClassVar[tuple[str, ...]] = ("fp32", "tf32", "bf16", "fp16", "amp_o1")
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({"ranks": 2},)

    ranks: int = 0

    def layout(self, world: WorldSpec) -> Layout:
        """Axes (data, tensor), neighbours along the latter; StudyError where they do not fit."""
        size = self.ranks or world.size
        if size < 1 or world.size % size:
            raise StudyError(
                f"strategy tensor: {self.ranks} tensor ranks do not divide {world.size} ranks; set "
                "the cell's option ranks to a divisor of every world size, or to 0"
            )
        return Layout(
            axes=((DATA, world.size // size), (TENSOR, size)),
            processes_per_node=world.ranks_per_node,
            device=world.device,
            backend=world.backend,
        )

    def check_spec(self, spec: RunSpec) -> None:
        """Raise StudyError where the tensor axis does not divide the attention heads."""
        size = dict(self.layout(spec.world).axes)[TENSOR]
        if spec.model.num_heads % size:
            raise StudyError(
                f"{spec.run_id}: {size} tensor ranks do not divide {spec.model.num_heads} "
                "attention heads; set the cell's option ranks, or model.num_heads"
            )

    def footprint(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Footprint:
        """Weights of products are cut; norms, positions and the biases of rows are not."""
        size = dict(layout.axes)[TENSOR]
        count = models.num_parameters(spec.model)
        cut = models.product_weights(spec.model)
        share = (count - cut + cut / size) / count
        return Footprint(
            buffer_bytes=0,
            holds_gradients=layout.data_parallel > 1,
            weight_share=share,
            gradient_share=share,
            optimiser_share=share,
            # of a block's 16 values of the width, the 12 between a column and a row cut are parts
            activation_share=(4 + 12 / size) / 16,
            logit_share=1 / size,
        )

    def build(self, parts: Parts) -> Trainable:
        """Cut the layers along the tensor axis, wrap what is left along the data axis."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.nn.parallel import DistributedDataParallel

        from pipeline.parallel.group import Group
        from pipeline.parallel.tensor import TensorAxis, TensorStepper, cut_layers

        names, sizes = zip(*parts.layout.axes, strict=True)
        if not hasattr(parts.model, "tensor_cuts"):
            raise UnsupportedError(
                f"{type(parts.model).__name__} names no tensor_cuts; add them to its family"
            )
        group = Group.join(parts.layout)
        mesh = init_device_mesh(parts.layout.device, sizes, mesh_dim_names=names)
        axis = TensorAxis(mesh[TENSOR].get_group(), parts.phases)
        cut_layers(parts.model, axis)
        forward = None
        if parts.layout.data_parallel > 1:
            forward = DistributedDataParallel(
                parts.model, process_group=mesh[DATA].get_group(), gradient_as_bucket_view=True
            )
        return TensorStepper(
            parts.prepare(),
            axis=axis,
            forward=forward,
            data_parallel=parts.layout.data_parallel,
            is_root=group.rank == 0,
            reduces_in_backward=forward is not None,
            **({} if forward is None else {"accumulating": forward.no_sync}),
            mean_over_ranks=group.mean,
            barrier=group.barrier,
            leave=group.leave,
        )
