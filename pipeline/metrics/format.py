"""Numbers as text, in tables and in the paper: enough digits, never more."""

from __future__ import annotations

import math

from pipeline.text import NONE, significant


def with_interval(value: float, low: float, high: float) -> str:
    """`value [low, high]`, all with the decimals of the value; `value` alone without bounds."""
    if not math.isfinite(value + low + high) or value == 0:
        return significant(value)
    decimals = max(2 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{decimals}f} [{low:,.{decimals}f}, {high:,.{decimals}f}]"


def ratio_interval(value: float, low: float, high: float, decimals: int = 2) -> str:
    """`value [low, high]` of a ratio, with as many decimals throughout a column, or `value`."""
    if not math.isfinite(value):
        return significant(value)
    if not math.isfinite(low + high):
        return f"{value:.{decimals}f}"
    return f"{value:.{decimals}f} [{low:.{decimals}f}, {high:.{decimals}f}]"


def scientific(value: float) -> str:
    """A deviation such as `3.1e-7`; `0` only when it is exactly 0."""
    if not math.isfinite(value):
        return NONE if math.isnan(value) else "infinite"
    return "0" if value == 0 else _short_exponent(f"{value:.1e}")


def probability(value: float) -> str:
    """A p-value such as `0.032` or `5.2e-5`."""
    return NONE if math.isnan(value) else _short_exponent(f"{value:.2g}")


def limit(value: float) -> str:
    """A declared tolerance such as `1e-5`, `2e-4` or `0.001`."""
    if value == 0 or value >= 1e-3:
        return f"{value:g}"
    mantissa, _, exponent = f"{value:e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def _short_exponent(text: str) -> str:
    mantissa, e, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if e else text
