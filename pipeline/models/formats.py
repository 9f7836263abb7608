"""Bytes of a number where a model's sizes depend on it: what a precision makes of a device."""

from __future__ import annotations

from dataclasses import dataclass

FP32, HALF, INT64 = 4, 2, 8


@dataclass(frozen=True)
class Formats:
    """Bytes of an input or output of a matrix product, and of a layer norm's.

    `copies_weights`: autocast keeps a narrow copy of each weight of a product.
    """

    product: int
    norm: int
    copies_weights: bool
