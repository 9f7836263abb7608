"""Pipeline parallelism: GPipe, 1F1B, interleaved 1F1B or zero bubble, with a data axis.

Each rank holds consecutive layers. A micro-batch's activations are sent from stage to stage, their
gradients back; ranks wait while the pipeline fills and drains, the bubble, (p - 1) / m of their
computation for p ranks and m micro-batches under GPipe and 1F1B, (p - 1) / (v m) with v interleaved
chunks (Narayanan et al. 2021, arXiv 2104.04473; GPipe: Huang et al. 2019, arXiv 1811.06965).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pipeline.errors import StudyError
from pipeline.parallel.mesh import DATA, PIPELINE, Layout
from pipeline.parallel.schedule import check_name, nearest
from pipeline.strategies._pipeline import Pipelined

if TYPE_CHECKING:
    from pipeline.study.spec import WorldSpec


@dataclass(frozen=True)
class PipelineParallel(Pipelined):
    """`ranks`: size of the pipeline axis, 0 for all ranks; the rest are data-parallel."""

    cuts: ClassVar[str] = "end_parameters"
    variants: ClassVar[tuple[dict[str, Any], ...]] = (
        {"ranks": 2, "schedule": "gpipe"},
        {"ranks": 2, "schedule": "interleaved"},
        {"schedule": "zero_bubble"},
    )

    use: ClassVar[str] = "layers do not fit one device, and links are slow"

    ranks: int = 0

    def layout(self, world: WorldSpec) -> Layout:
        """Axes (pipeline, data); StudyError where the pipeline does not divide the ranks."""
        check_name(self.schedule, self.chunks)
        size = self.ranks or world.size
        if world.size % size:
            raise StudyError(
                f"strategy pipeline_parallel: {size} pipeline ranks do not divide {world.size} "
                f"ranks; the nearest number that does is {nearest(size, world.size)}; set the "
                "cell's option ranks to it, or to 0 for all"
            )
        return Layout(
            axes=((PIPELINE, size), (DATA, world.size // size)),
            processes_per_node=world.ranks_per_node,
            device=world.device,
            backend=world.backend,
        )
