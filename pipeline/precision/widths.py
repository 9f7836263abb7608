"""Bytes of the numbers of a precision: arithmetic, no torch."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.models import FP32, HALF


@dataclass(frozen=True)
class Widths:
    """Bytes of a number: of a weight in the passes, of its gradient, and of both as they travel.

    `weight` is kept, gathered and sent; `gradient` adds up over micro-batches, `reduced` is what of
    it travels. `stream` is what blocks hand on and norms give, `product` what products do.
    """

    weight: int = FP32
    gradient: int = FP32
    reduced: int = FP32
    stream: int = FP32
    product: int = HALF

    @property
    def wide_gradients(self) -> bool:
        """True where gradients have another type than their weights."""
        return self.gradient != self.weight


def widths(name: str) -> Widths:
    """Those of the precision `name`; no torch is loaded."""
    return _WIDTHS.get(name, Widths())


_WIDTHS = {
    "fp32": Widths(product=FP32),
    "tf32": Widths(product=FP32),
    "amp_o2": Widths(HALF, HALF, HALF),
    "apex_o2": Widths(HALF, HALF, HALF, HALF),
    "bf16_masters": Widths(HALF, FP32, FP32, HALF),
    "bf16_reduced": Widths(HALF, FP32, HALF, HALF),
}
"""Of precisions that do not narrow products, or more than these."""
