"""Single Parameter Server: one root holds the parameters and the optimiser.

Before each step the replicas get the parameters from the root; after their backward pass they send
it their gradients, so every byte passes the root's link: 2 x (ranks - 1) x model size per step. The
root also computes a replica's share, as nn.DataParallel's first device does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline import models
from pipeline.cost.traffic import ANSWERED, SEND, Traffic
from pipeline.errors import StudyError, UnsupportedError, refuse
from pipeline.models import FP32
from pipeline.parallel.mesh import DATA, Layout
from pipeline.parallel.types import Defects, Parts, Trainable
from pipeline.precision.widths import widths
from pipeline.strategies.base import PLAIN, Footprint, Strategy
from pipeline.study.spec import RunSpec, WorldSpec


@dataclass(frozen=True)
class ParameterServer(Strategy):
    """`engine`: `process_group` or `data_parallel`; `empty_cache`: see `parallel.types.Defects`.

    `process_group` sends over torch.distributed, on any device and number of nodes;
    `data_parallel` is torch.nn.DataParallel, one process that owns all devices of one node.
    `staleness`: updates that the weights of a step's passes lack. 0 is the step of `single`; with 1
    gradients travel under the next passes, with 2 the weights too.
    """

    whole_forward = True
    published = False
    split = "optimiser state, which the root alone holds"
    use = "to compare with: the root's link carries everything"
    choices = (("engine", ("process_group", "data_parallel")), ("staleness", (0, 1, 2)))
    changes_the_step = ("staleness",)

    engine: str = "process_group"
    empty_cache: bool = False
    staleness: int = 0

    @property
    def unlike(self) -> tuple[int, str]:
        """The first step, which has no gradients to take."""
        return min(1, self.staleness), "have no late gradients"

    @property
    def resumes(self) -> bool:
        """Not where gradients of the step before wait on every rank."""
        return not self.staleness

    def layout(self, world: WorldSpec) -> Layout:
        """One rank per device, or one process with all of a node's devices."""
        if self.engine == "process_group":
            return super().layout(world)
        refuse(StudyError, "parameter_server ", [
            (self.staleness,
             f"staleness {self.staleness} needs engine process_group; torch.nn.DataParallel waits "
             "for all gradients; set that, or staleness 0"),
            (world.nodes != 1,
             f"engine data_parallel is one process on one node, given {world.nodes} nodes; set the "
             "cell's nodes to [1] or use engine process_group"),
        ])  # fmt: skip
        one = Layout.of(world, (DATA, 1))
        return replace(one, processes_per_node=1, devices_per_process=world.ranks_per_node)

    def one_graph(self, spec: RunSpec) -> bool:
        """True: gradients are pushed after the passes. DataParallel takes no compiled modules."""
        return self.engine == "process_group"

    def check_precision(self, name: str) -> None:
        """Raise UnsupportedError where torch.nn.DataParallel would add up narrower gradients.

        And for late gradients that are narrow, or have a loss scale: when they arrive it may be
        another one.
        """
        refuse(UnsupportedError, "", [
            (self.staleness and name not in PLAIN,
             f"parameter_server staleness {self.staleness} takes fp32 weights and gradients "
             f"without a loss scale, which {name} has not; use {', '.join(PLAIN)}, or staleness 0"),
            (self.engine == "data_parallel" and widths(name).wide_gradients,
             f"engine data_parallel adds gradients up in the type of the weights, and {name} in "
             "fp32; use engine process_group, or precision bf16"),
        ])  # fmt: skip

    def footprint(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Footprint:
        """The root's flat sum, what comes in, and the mean; a worker flattens once.

        Late ones stay while the passes run: on the root those of all ranks, and with a staleness of
        2 the weights that travel.
        """
        if self.engine == "data_parallel":
            return Footprint(gradients)
        is_root = rank == 0
        slots = 1.0 if is_root else 0.0
        if not self.staleness:
            return Footprint(gradients * (3 if is_root else 1), optimiser_share=slots)
        late = gradients * (layout.num_processes if is_root else 1)
        weights = FP32 * models.num_parameters(spec.model) if self.staleness == 2 else 0
        return Footprint(gradients, optimiser_share=slots, gathered_bytes=late + weights)

    def sends(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Sequence[Traffic]:
        """The weights from the root to each other rank, and their gradients to the root.

        Weights travel in the type that the passes have them in. What DataParallel copies between
        devices of one process is not counted. The first step of a late server sends no gradients.
        """
        others = layout.num_processes - 1
        if others == 0:
            return ()
        weights = widths(spec.precision).weight * models.num_parameters(spec.model)
        sent = others * weights if rank == 0 else gradients
        messages = others if rank == 0 else 1
        kind = SEND if self.staleness == 2 else ANSWERED  # both ways are taken at once
        overlap = self.staleness > 0
        return (Traffic(DATA, "root: (n-1) W, others: G", sent, messages, kind, overlap),)

    def build(self, parts: Parts) -> Trainable:
        """A star of sends and receives, or nn.DataParallel around the shared step."""
        from pipeline.strategies.parameter_server import step

        defects = Defects(self.empty_cache)
        if self.staleness:
            return step.LateStar(parts, defects, self.staleness)
        make = step.Star if self.engine == "process_group" else step.data_parallel
        return make(parts, defects)
