"""Bytes of the numbers of a precision: arithmetic, no torch."""

from __future__ import annotations

from pipeline.models import FP32, HALF, Widths


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
