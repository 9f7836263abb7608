"""The planner's tables as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

_WORDS = ("cell", "layout", "series")


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width: words to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if heading in _WORDS else cell.rjust(width)
            for cell, width, heading in zip(row, widths, rows[0], strict=True)
        ).rstrip()
        for row in rows
    ]
