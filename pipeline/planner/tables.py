"""The planner's tables as lines of text: layouts of the published sizes, and aligned columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.models import num_parameters
from pipeline.planner.plan import GIBIBYTE
from pipeline.planner.sizes import Candidate, Size

SHORT = {"fits": "fits", "tight": "tight", "does not fit": "no"}
_PARTS = (
    "layout", "axes", "weights", "gradients", "optimiser", "buffers", "activations", "loss",
    "base", "peak", "verdict",
)  # fmt: skip
_WORDS = ("cell", "layout", "axes", "verdict")


def which_fit(layouts: dict[Size, list[Candidate]], limit: int | None) -> list[str]:
    """A row for each layout, a column for each size: the peak in GiB, and whether it fits."""
    rows: dict[tuple[str, str], dict[Size, str]] = {}
    for size, candidates in layouts.items():
        for one in candidates:
            peak = f"{one.plan.memory.peak / GIBIBYTE:,.1f}"
            word = "" if limit is None else f" {SHORT[one.plan.verdict(limit)]:5}"
            rows.setdefault((one.name, one.mesh), {})[size] = peak + word
    table = [[*layout, *(row.get(size, "-") for size in layouts)] for layout, row in rows.items()]
    return align([["layout", "axes", *(size.id for size in layouts)], *sorted(table)])


def parts_of(candidates: Sequence[Candidate], limit: int | None) -> list[str]:
    """What the memory of each layout of one size is made of, in GiB."""
    return align([_PARTS, *(_parts(one, limit) for one in candidates)])


def best_of(layouts: dict[Size, list[Candidate]], limit: int | None) -> Iterator[str]:
    """A line for each size: parameters, how many layouts fit, which needs least, and its source."""
    for size, candidates in layouts.items():
        least = min(candidates, key=lambda one: one.plan.memory.peak)
        fit = sum(limit is not None and one.plan.verdict(limit) == "fits" for one in candidates)
        count = "" if limit is None else f"{fit} of {len(candidates)} layouts fit; "
        yield (
            f"GPT {size.id} ({num_parameters(size.model):,} parameters: {size.model.num_layers} "
            f"layers, width {size.model.width:,}, {size.model.num_heads} heads): {count}least "
            f"memory {least.plan.memory.peak / GIBIBYTE:,.1f} GiB, {least.name} ({least.mesh}). "
            f"{size.source}"
        )


def _parts(one: Candidate, limit: int | None) -> tuple[str, ...]:
    m = one.plan.memory
    parts = (m.parameters, m.gradients, m.optimiser, m.buffers,
             m.activations + m.recomputed, m.logits, m.base, m.peak)  # fmt: skip
    verdict = "-" if limit is None else one.plan.verdict(limit)
    return (one.name, one.mesh, *(f"{part / GIBIBYTE:,.1f}" for part in parts), verdict)


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
