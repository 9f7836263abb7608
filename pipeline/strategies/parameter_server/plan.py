"""Single Parameter Server: one root holds the parameters and the optimiser.

Before each step the replicas get the parameters from the root; after their backward pass they send
it their gradients, so every byte passes the root's link: 2 x (ranks - 1) x model size per step. The
root also computes a replica's share, as nn.DataParallel's first device does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline import models
from pipeline.cost.traffic import ANSWERED, Traffic
from pipeline.errors import StudyError, UnsupportedError
from pipeline.parallel.mesh import DATA, Degrees, Layout
from pipeline.parallel.types import Faults, Parts, Trainable
from pipeline.precision.widths import widths
from pipeline.strategies.base import Footprint, Strategy
from pipeline.study.spec import RunSpec, WorldSpec


@dataclass(frozen=True)
class ParameterServer(Strategy):
    """`engine`: `process_group` or `data_parallel`; `empty_cache`: see `parallel.types.Faults`.

    `process_group` sends over torch.distributed, on any device and number of nodes;
    `data_parallel` is torch.nn.DataParallel, one process that owns all devices of one node.
    """

    whole_forward = True
    split = "optimiser state, which the root alone holds"
    use = "to compare with: the root's link carries everything"
    choices = (("engine", ("process_group", "data_parallel")),)

    engine: str = "process_group"
    empty_cache: bool = False

    def layout(self, world: WorldSpec) -> Layout:
        """One rank per device, or one process with all of a node's devices."""
        if self.engine == "process_group":
            return super().layout(world)
        if world.nodes != 1:
            raise StudyError(
                f"parameter_server engine data_parallel is one process on one node, given "
                f"{world.nodes} nodes; set the cell's nodes to [1] or use engine process_group"
            )
        return Layout(
            axes=((DATA, 1),),
            processes_per_node=1,
            devices_per_process=world.ranks_per_node,
            device=world.device,
            backend=world.backend,
        )

    def one_graph(self, spec: RunSpec) -> bool:
        """True: gradients are pushed after the passes. DataParallel takes no compiled modules."""
        return self.engine == "process_group"

    def check_precision(self, name: str) -> None:
        """Raise UnsupportedError where torch.nn.DataParallel would add up narrower gradients."""
        if self.engine == "data_parallel" and widths(name).wide_gradients:
            raise UnsupportedError(
                f"engine data_parallel adds gradients up in the type of the weights, and {name} in "
                "fp32; use engine process_group, or precision bf16"
            )

    def footprint(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Footprint:
        """The root's flat sum, what comes in, and the mean; a worker flattens once."""
        if self.engine == "data_parallel":
            return Footprint(gradients)
        is_root = rank == 0
        return Footprint(gradients * (3 if is_root else 1), optimiser_share=1.0 if is_root else 0.0)

    def degrees(self, spec: RunSpec, layout: Layout) -> Degrees | None:
        """No published step was made with a star."""
        return None

    def sends(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Sequence[Traffic]:
        """The weights from the root to each other rank, and their gradients to the root.

        Weights travel in the type that the passes have them in. What DataParallel copies between
        devices of one process is not counted.
        """
        others = layout.num_processes - 1
        if others == 0:
            return ()
        weights = widths(spec.precision).weight * models.num_parameters(spec.model)
        sent = others * weights if rank == 0 else gradients
        messages = others if rank == 0 else 1
        return (Traffic(DATA, "root: (n-1) W, others: G", sent, messages, ANSWERED),)

    def build(self, parts: Parts) -> Trainable:
        """A star of sends and receives, or nn.DataParallel around the shared step."""
        from pipeline.strategies.parameter_server import step

        make = step.Star if self.engine == "process_group" else step.data_parallel
        return make(parts, Faults(self.empty_cache))
