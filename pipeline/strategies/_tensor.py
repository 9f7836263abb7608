"""What strategies with a tensor axis share: what it must divide, what a rank holds, what it sends.

A block is cut twice: before attention and MLP by columns, after them by rows (Shoeybi et al. 2019).
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline import models
from pipeline.errors import StudyError
from pipeline.models import FP32, HALF
from pipeline.parallel.schedule import nearest
from pipeline.study.spec import RunSpec

END_NUMBERS = 3
"""All-reduced for each token by the loss: the largest logit, the sum, and that of the target."""


@dataclass(frozen=True)
class Part:
    """The layers of a rank: how many of the repeating ones, and whether both ends are among them.

    `sequence`: between the cuts sequences lie in parts on the ranks of the axis.
    """

    layers: int
    is_first: bool
    is_last: bool
    sequence: bool

    def parameters(self, spec: RunSpec) -> tuple[float, float]:
        """Of these layers what a tensor axis leaves whole, and what it cuts.

        An embedding that both ends share counts once, also where one alone is here.
        """
        model = spec.model
        before, after = models.end_parameters(model)
        tied = model.vocab_size * model.width
        cut = self.layers * (models.cut_parameters(model) - tied) / model.num_layers
        cut += tied * (self.is_first or self.is_last)
        held = self.layers * models.layer_parameters(model)
        held += before * self.is_first + after * self.is_last
        held -= tied * (self.is_first and self.is_last)
        return held - cut, cut

    def all_reduced(self, spec: RunSpec, tokens: float) -> float:
        """Bytes of activations and their gradients that the axis adds up in a step of so many.

        Each block its two inputs' gradients and its two outputs, the embedding its output, the last
        layer its input's gradient, the loss its numbers. What leaves a product is narrow under
        autocast, what enters it comes from a norm. Cut sequences halve each into an all-gather and
        a reduce-scatter.
        """
        activation = tokens * spec.model.width
        product = FP32 if spec.precision in ("fp32", "tf32") else HALF
        block = 2 * (FP32 + product) + self._again(spec, product, FP32)
        ends = (self.is_first + self.is_last) * FP32 * activation
        return self.layers * block * activation + ends + self.is_last * END_NUMBERS * FP32 * tokens

    def _again(self, spec: RunSpec, product: float, norm: float) -> float:
        """What a recomputed block adds: its first output, or half of that and both its inputs."""
        if not spec.workload.recompute:
            return 0.0
        return norm + product / 2 if self.sequence else product

    def blocks(self, spec: RunSpec) -> str:
        """The part of the formula that is its blocks': `4L`, in activations of fp32."""
        return f"{4 + self._again(spec, 1, 1):g}L"


def check_tensor_axis(spec: RunSpec, option: str, ranks: int, *, sequence: bool) -> None:
    """Raise StudyError where a tensor axis does not divide heads, or sequences that it cuts."""
    wanted = [("attention heads", "num_heads", spec.model.num_heads)]
    if sequence:
        wanted.append(("tokens of a sequence", "context", spec.model.context))
    for what, key, count in wanted:
        if count % ranks:
            raise StudyError(
                f"{spec.run_id}: {ranks} tensor ranks do not divide {count} {what}; the nearest "
                f"option {option} is {nearest(ranks, count)}, or set model.{key}"
            )


def kept_of_block(ranks: int, *, sequence: bool) -> float:
    """What a tensor axis leaves on a rank of a block's activations, 16 values of the width a token.

    The 12 between a column and a row cut are parts. Where sequences are cut too, so are the inputs
    of both layer norms; their outputs are gathered.
    """
    return ((2 + 14 / ranks) if sequence else (4 + 12 / ranks)) / 16
