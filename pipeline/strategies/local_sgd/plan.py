"""Local SGD and DiLoCo: ranks train alone and make their weights one every few steps.

Another step than that of a single device, and far fewer bytes: the mean of what the ranks' weights
have moved by is the gradient of an outer SGD (Douillard et al. 2023, arXiv 2311.08105).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline import models
from pipeline.cost.traffic import Traffic
from pipeline.models import FP32
from pipeline.parallel.mesh import BUCKET_BYTES, DATA, Layout
from pipeline.parallel.types import Parts, Trainable
from pipeline.strategies.base import PLAIN, Footprint, Strategy, along, bucket_bytes
from pipeline.study.spec import RunSpec


@dataclass(frozen=True)
class LocalSgd(Strategy):
    """`inner_steps`: steps that a rank takes alone, with the study's optimiser, on its own share.

    The outer SGD is DiLoCo's: Nesterov momentum `outer_momentum`, rate `outer_learning_rate`; its
    authors take 500 inner steps. A rate of 1 without momentum averages the weights: local SGD
    (Stich 2019, arXiv 1805.09767), and with one inner step parameter averaging.
    """

    whole_forward = True
    precisions = PLAIN
    published = False
    algorithm = "local steps"
    changes_the_step = ("inner_steps", "outer_learning_rate", "outer_momentum")
    variants = ({"inner_steps": 1, "outer_learning_rate": 1.0, "outer_momentum": 0.0},)
    use = "links are slow, and another step may be taken"
    ranges = (("inner_steps", 1, 10_000), ("outer_learning_rate", 1e-6, 1000),
              ("outer_momentum", 0, 0.999))  # fmt: skip

    inner_steps: int = 2
    outer_learning_rate: float = 0.7
    outer_momentum: float = 0.9

    @property
    def period(self) -> int:
        """A round: all its steps but the last send nothing."""
        return self.inner_steps

    def one_graph(self, spec: RunSpec) -> bool:
        """True: backward passes reduce nothing."""
        return True

    def footprint(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Footprint:
        """The weights of the last synchronisation, the outer momentum, and a bucket on its way."""
        weights = FP32 * models.num_parameters(spec.model)
        kept = weights * (2 if self.outer_momentum else 1)
        return Footprint(bucket_bytes(spec.model, weights), gathered_bytes=kept)

    def sends(self, spec: RunSpec, layout: Layout, rank: int, gradients: int) -> Sequence[Traffic]:
        """One all-reduce of all weights in a round, of which each step has its part."""
        weights, steps = FP32 * models.num_parameters(spec.model), self.inner_steps
        formula = "2(n-1)/n W" + f" / {steps}" * (steps > 1)
        messages = max(1.0, weights / BUCKET_BYTES) / steps
        return along(layout, DATA, formula, 2 * weights / steps, messages)

    def build(self, parts: Parts) -> Trainable:
        """Keep the weights that all ranks begin with. Collective."""
        from pipeline.strategies.local_sgd.step import LocalStepper

        return LocalStepper(parts, self)
