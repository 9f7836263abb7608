"""Horovod: the ring all-reduce of Sergeev and Del Balso (arXiv 1802.05799), the real package.

Started by torchrun like every strategy. Where Horovod is not built for the installed torch, the
cell is `unsupported` with the reason.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cost.traffic import Traffic
from pipeline.emulation import pacing
from pipeline.errors import LaunchError, MissingError, StudyError, UnsupportedError
from pipeline.models import FP32
from pipeline.parallel.mesh import DATA, Degrees, Layout
from pipeline.parallel.types import Defects, Parts, Trainable
from pipeline.precision.widths import widths
from pipeline.strategies.base import Footprint, Strategy, along
from pipeline.study.spec import RunSpec, WorldSpec

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import Store  # type: ignore[attr-defined]

UNSUPPORTED_FILE = "horovod-unsupported.txt"
"""File of the environment's folder in which envs/build_horovod.py leaves the reason."""

TUNING = {
    "HOROVOD_AUTOTUNE": "1",
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "0",
    "HOROVOD_TORUS_ALLREDUCE": "0",
    "HOROVOD_CACHE_CAPACITY": "1024",
}
"""Variables with which Horovod's search has fusion and cycle alone to tune: what is stated in the
environment it leaves, here at its own defaults."""

TUNED_POINTS, TUNED_MB = 21, 64
"""Points that the search tries (the first, and its default of 20), and its largest fusion."""

TUNING_STEPS = 1_250
"""Steps in which it has settled: 3 points to warm up and these, each 5 times 10 all-reduces of a
gradient, of which a step has one; 1,223 were counted on two ranks."""


@dataclass(frozen=True)
class Horovod(Strategy):
    """`compression`: what gradients travel as. The defaults are Horovod's own.

    Horovod polls for ready gradients every `cycle_time_ms` and fuses up to `fusion_threshold_mb`
    MiB. With `autotune` its own search sets both in the first steps of a run, and keeps the best;
    a record says which. `empty_cache` to `clip_before_synchronise` are defects of the study's first
    code, see `parallel.types.Defects`.
    """

    requires = ("horovod",)
    install = "python -m envs.build_horovod --retry"
    modules = ("horovod.torch",)
    whole_forward = True
    use = "as `ddp`, by another library"
    lost_peer = ("horovodinternalerror",)

    changes_the_step = ("clip_before_synchronise", "compression", "optimiser_steps")
    lossy_wire = (("compression", "fp16"),)
    choices = (("compression", ("none", "fp16")),)
    # Every rank has a buffer of the threshold, at most over thirty times Horovod's own; a step
    # waits for a cycle.
    ranges = (("fusion_threshold_mb", 0, 4096), ("cycle_time_ms", 0, 1000),
              ("optimiser_steps", 1, 100))  # fmt: skip

    compression: str = "none"
    fusion_threshold_mb: int = 128
    cycle_time_ms: float = 1.0
    empty_cache: bool = False
    optimiser_steps: int = 1
    clip_before_synchronise: bool = False
    autotune: bool = False

    @property
    def unlike(self) -> tuple[int, str]:
        """Steps in which Horovod tries what it may settle on."""
        return TUNING_STEPS * self.autotune, "tune Horovod (autotune)"

    def layout(self, world: WorldSpec) -> Layout:
        """One process per device; raises StudyError where the tuned knobs are stated too."""
        stated = self.fusion_threshold_mb, self.cycle_time_ms
        if self.autotune and stated != (Horovod.fusion_threshold_mb, Horovod.cycle_time_ms):
            raise StudyError(
                f"horovod options fusion_threshold_mb {stated[0]} and cycle_time_ms {stated[1]} do "
                "nothing with autotune, which sets both; leave them out, or set it to false"
            )
        return super().layout(world)

    def degrees(self, spec: RunSpec, layout: Layout) -> Degrees | None:
        """None with a fault, or with gradients that travel as another type."""
        usual = Horovod(fusion_threshold_mb=self.fusion_threshold_mb,
                        cycle_time_ms=self.cycle_time_ms, autotune=self.autotune)  # fmt: skip
        return super().degrees(spec, layout) if self == usual else None

    def footprint(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Footprint:
        """A copy that travels, where of another type, and the fusion buffer, at most as large."""
        travels = self._travels(spec, gradients)
        copy = 0 if travels == gradients else travels
        largest = TUNED_MB if self.autotune else self.fusion_threshold_mb
        return Footprint(copy + min(largest * 2**20, travels))

    def sends(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Sequence[Traffic]:
        """The gradients once, all-reduced as they become ready; the negotiation is not counted."""
        return along(layout, DATA, "2(n-1)/n G", 2 * self._travels(spec, gradients), overlap=True)

    def _travels(self, spec: RunSpec, gradients: int) -> int:
        """Bytes of the gradients in the type that travels."""
        if self.compression == "fp16" and widths(spec.precision).reduced == FP32:
            return gradients // 2
        if spec.precision == "amp_o2" and spec.world.device == "cpu":
            return 2 * gradients  # bfloat16 travels as fp32
        return gradients

    def check_precision(self, name: str) -> None:
        """Raise UnsupportedError where gradients would travel as bfloat16."""
        if name == "bf16_reduced":
            raise UnsupportedError(
                "Horovod 0.28 cannot reduce bfloat16; set the precision to bf16_masters, or the "
                "strategy to ddp"
            )

    def check(self) -> None:
        """Raise MissingError where Horovod is missing or built for another torch."""
        reason = why_unusable()
        if reason is not None:
            raise MissingError(f"Horovod is {reason}")

    @property
    def all_reduces_by(self) -> str:
        """Horovod with its settings; on a node of one core its threads delay the computation."""
        return f"horovod, {self.fusion_threshold_mb} MiB, {self.cycle_time_ms:g} ms"

    @contextmanager
    def all_reduce(self, layout: Layout, store: Store) -> Iterator[Callable[[Tensor], None]]:
        """Horovod's, in a job of its own."""
        import horovod.torch as hvd

        from pipeline.strategies.horovod import job

        job.join(layout, self._settings(), store)

        def reduced(tensor: Tensor) -> None:
            handle = hvd.allreduce_async_(tensor, name="reduced", op=hvd.Average)
            job.wait_asleep([handle])
            hvd.synchronize(handle)

        yield reduced
        hvd.shutdown()

    def _settings(self) -> dict[str, str]:
        """Horovod's variables, whose cycle is stretched as time is."""
        return {
            "HOROVOD_FUSION_THRESHOLD": str(self.fusion_threshold_mb * 2**20),
            "HOROVOD_CYCLE_TIME": str(self.cycle_time_ms * pacing.dilation()),
        }

    def build(self, parts: Parts) -> Trainable:
        """Join, broadcast the weights, wrap the optimiser."""
        from pipeline.strategies.horovod.step import HorovodStepper

        settings = TUNING if self.autotune else self._settings()
        defects = Defects(self.empty_cache, self.optimiser_steps, self.clip_before_synchronise)
        return HorovodStepper(parts, settings, self.compression, defects)


def settled(log: str, dilation: float) -> dict[str, float]:
    """Settings that Horovod's search keeps: the row of its log after those of the points it tried.

    Raises LaunchError where there is none. Milliseconds are the cluster's, by `dilation`.
    """
    rows = list(csv.DictReader(log.splitlines(), skipinitialspace=True))
    if len(rows) <= TUNED_POINTS:
        raise LaunchError(
            f"Horovod had tried {len(rows)} of {TUNED_POINTS} points when the run ended, so timed "
            "steps were tuned too; raise workload.untimed_steps"
        )
    return {
        "cycle_time_ms": float(rows[-1]["cycle_time_ms"]) / dilation,
        "fusion_threshold_mb": float(rows[-1]["tensor_fusion_threshold"]),
        "points": len(rows) - 1,
    }


def why_unusable() -> str | None:
    """None where Horovod fits the installed torch, else the reason (imports neither of them)."""
    package = importlib.util.find_spec("horovod")
    if package is None or package.origin is None:
        reason_file = Path(sys.prefix, UNSUPPORTED_FILE)
        if reason_file.is_file():
            told = reason_file.read_text(encoding="utf-8", errors="replace").splitlines()
            return f"not installed: {(told or ['its reason was lost; run `make setup`'])[0]}"
        return "not installed: it was never built here; run `python -m envs.build_horovod`"
    folder = Path(package.origin).parent
    if not list((folder / "torch").glob("mpi_lib_v2*.so")):
        return "installed without its torch library; run `python -m envs.build_horovod --retry`"
    try:
        recorded = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
        built_for = str(recorded["pytorch"])
    except (OSError, ValueError, KeyError, TypeError):
        built_for = "unknown"
    # torch's version with its local tag, which the package's metadata may lack.
    torch = importlib.util.find_spec("torch")
    assert torch is not None and torch.origin is not None
    present = runpy.run_path(str(Path(torch.origin).with_name("version.py")))["__version__"]
    if built_for != present:
        return (
            f"built for torch {built_for}, but torch {present} is installed; "
            "run `python -m envs.build_horovod`"
        )
    return None
