"""How ranks, devices and the global batch are laid out: pure arithmetic, no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pipeline.errors import StudyError
from pipeline.study.spec import WorldSpec


@dataclass(frozen=True)
class Layout:
    """How ranks, devices and the batch lie: pure arithmetic, the same on every rank.

    `num_processes` ranks are started, `processes_per_node` on each node; each owns
    `devices_per_process` devices. The global batch is cut into `data_parallel` equal slices.
    """

    num_processes: int
    processes_per_node: int
    devices_per_process: int
    data_parallel: int
    device: str
    backend: str

    def batch_slice(self, rank: int, global_batch: int) -> tuple[int, int]:
        """First and past-the-last sequence of the global batch that `rank` reads."""
        if global_batch % self.data_parallel:
            raise StudyError(
                f"global batch {global_batch} is not a multiple of {self.data_parallel} "
                "data-parallel ranks; set workload.global_batch to a multiple of it"
            )
        share = global_batch // self.data_parallel
        start = (rank % self.data_parallel) * share
        return start, start + share

    def processes_per_machine(self, world: WorldSpec) -> int:
        """Ranks that share one machine: those of all its nodes."""
        return self.num_processes // world.num_machines

    def gpus_per_machine(self, world: WorldSpec) -> int:
        """GPUs that the ranks on one machine take, none on a CPU."""
        if world.device != "cuda":
            return 0
        return self.processes_per_machine(world) * self.devices_per_process

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, for the record."""
        return asdict(self)
