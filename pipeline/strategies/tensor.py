"""Tensor parallelism: Megatron-LM's column and row cuts (Shoeybi et al. 2019), with a data axis.

Every pair of cut layers costs an all-reduce of its activations in each pass; embedding and loss are
cut over the vocabulary. Along the data axis DDP averages the gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline import models
from pipeline.errors import StudyError
from pipeline.parallel.mesh import DATA, Layout
from pipeline.parallel.schedule import nearest
from pipeline.parallel.types import Parts, Trainable
from pipeline.parallel.wire import Sends
from pipeline.strategies._tensor import Part, check_tensor_axis, kept_of_block
from pipeline.strategies.base import Footprint, Strategy, along

if TYPE_CHECKING:
    from pipeline.study.spec import RunSpec, WorldSpec

TENSOR = "tensor"


@dataclass(frozen=True)
class Tensor(Strategy):
    """`ranks`: size of the tensor axis, 0 for all ranks; the rest are data-parallel.

    `sequence`: sequence parallelism; between pairs of cut layers tokens are cut over the axis.
    """

    precisions: ClassVar[tuple[str, ...]] = ("fp32", "tf32", "bf16", "fp16", "amp_o1")
    variants: ClassVar[tuple[dict[str, Any], ...]] = (
        {"ranks": 2},
        {"ranks": 2, "sequence": True},
    )

    use: ClassVar[str] = "a layer or its activations do not fit, and links are fast"

    ranks: int = 0
    sequence: bool = False

    @property
    def cuts_weights(self) -> bool:
        """Products and the vocabulary, along the tensor axis."""
        return True

    @property
    def split(self) -> str:
        """The cut layers with all that belongs to them."""
        most = "" if self.sequence else "most "
        return f"layers: weights, gradients, optimiser state, {most}activations"

    def layout(self, world: WorldSpec) -> Layout:
        """Axes (data, tensor), neighbours along the latter; StudyError where they do not fit."""
        size = self.ranks or world.size
        if size < 1 or world.size % size:
            raise StudyError(
                f"strategy tensor: {self.ranks} tensor ranks do not divide {world.size} ranks; set "
                "the cell's option ranks to a divisor of every world size, or to 0; the nearest "
                f"that divides these is {nearest(self.ranks, world.size)}"
            )
        return Layout(
            axes=((DATA, world.size // size), (TENSOR, size)),
            processes_per_node=world.ranks_per_node,
            device=world.device,
            backend=world.backend,
        )

    def settings(self, devices: int) -> tuple[dict[str, Any], ...]:
        """Tensor axes of every power of two."""
        sizes = (2**power for power in range(1, devices.bit_length()))
        cuts = tuple({"ranks": size} for size in sizes)
        return (*cuts, *({**cut, "sequence": True} for cut in cuts))

    def check_spec(self, spec: RunSpec) -> None:
        """Raise StudyError where the tensor axis does not divide heads, or sequences to be cut."""
        size = dict(self.layout(spec.world).axes)[TENSOR]
        check_tensor_axis(spec, "ranks", size, sequence=self.sequence)

    def footprint(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Footprint:
        """Weights of products are cut; norms, positions and the biases of rows are not."""
        size = dict(layout.axes)[TENSOR]
        share, kept = self._share(spec, size), kept_of_block(size, sequence=self.sequence)
        return Footprint(
            buffer_bytes=0,
            holds_gradients=layout.data_parallel > 1,
            weight_share=share,
            gradient_share=share,
            optimiser_share=share,
            copy_share=1 / size,
            activation_share=kept,
            input_share=1 / size if self.sequence else 1.0,
            block_share=kept,
            logit_share=1 / size,
        )

    def sends(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> tuple[Sends, ...]:
        """Activations, all-reduced along the tensor axis; gradients of the parts along the other.

        With cut sequences also the gradients of what no axis cuts.
        """
        tokens = spec.global_batch_tokens // layout.data_parallel
        part, size = self._part(spec), dict(layout.axes)[TENSOR]
        payload = part.all_reduced(spec, tokens)
        if self.sequence:
            payload += gradients * part.parameters(spec)[0] / models.num_parameters(spec.model)
        formula = f"({part.blocks(spec)} + 2) A + 12 T{' + R' * self.sequence}"
        own = self._share(spec, size) * gradients
        return (
            *along(layout, TENSOR, f"2(n-1)/n ({formula})", 2 * payload),
            *along(layout, DATA, "2(n-1)/n G", 2 * own),
        )

    def _part(self, spec: RunSpec) -> Part:
        """The part of the model that the tensor axis cuts: all layers and both ends."""
        return Part(spec.model.num_layers, True, True, self.sequence)

    def _share(self, spec: RunSpec, size: int) -> float:
        """What a rank holds of all parameters."""
        whole, cut = self._part(spec).parameters(spec)
        return (whole + cut / size) / models.num_parameters(spec.model)

    def build(self, parts: Parts) -> Trainable:
        """Cut the layers along the tensor axis, wrap what is left along the data axis."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.nn.parallel import DistributedDataParallel

        from pipeline.parallel.group import Group
        from pipeline.parallel.tensor import TensorAxis, TensorStepper, cut_layers

        names, sizes = zip(*parts.layout.axes, strict=True)
        group = Group.join(parts.layout)
        mesh = init_device_mesh(parts.layout.device, sizes, mesh_dim_names=names)
        axis = TensorAxis(mesh[TENSOR].get_group(), sequence=self.sequence)
        cut_layers(parts.model, axis)
        parts.materialise()
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
            rank=group.rank,
            mean_over_ranks=group.mean,
            barrier=group.barrier,
            leave=group.leave,
        )
