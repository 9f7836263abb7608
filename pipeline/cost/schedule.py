"""Layers of each stage, and the seconds of a pipeline's step by a closed form of 1F1B."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import accumulate


def stages(layers: int, pp: int, head_in_layers: float, balance: bool) -> list[int]:
    """Layers of each stage: even, the rest to the middle; or by cost, the head in the last one."""
    if pp == 1:
        return [layers]
    if balance:
        # Each stage takes layers until it has its share of the cost, so the first have most.
        share = (layers + head_in_layers) / pp
        cuts = [min(layers, math.ceil(share * (stage + 1) - 1e-9)) for stage in range(pp)]
        return [b - a for a, b in zip([0, *cuts[:-1]], cuts, strict=True)]
    least, rest = divmod(layers, pp)
    first = (pp - rest) // 2
    return [least + (first <= i < first + rest) for i in range(pp)]


@cache
def even(seconds: tuple[float, ...], count: int) -> tuple[int, ...]:
    """Sizes of `count` consecutive stages of layers that take `seconds`: the slowest is fastest.

    By dynamic programming. A pipeline's step is all of one micro-batch and the slowest stage of the
    others, so that this cut is the fastest too. Raises ValueError for fewer layers than stages.
    """
    until = [0.0, *accumulate(seconds)]
    if len(seconds) < count:
        raise ValueError(f"{len(seconds)} layers do not make {count} stages")
    # Of the first `end` layers in so many stages: the slowest, the squares, which prefer equal ones
    # where the slowest are, and where the last stage begins.
    slowest = {0: (0.0, 0.0)}
    begins: list[dict[int, int]] = []
    for stage in range(count):
        before, slowest = slowest, {}
        begins.append({})
        for end in range(stage + 1, len(seconds) - count + stage + 2):
            for start, (worst, squares) in before.items():
                own = until[end] - until[start]
                found = (max(worst, own), squares + own**2)
                if start < end and found <= slowest.get(end, (math.inf, 0.0)):
                    slowest[end], begins[stage][end] = found, start
    sizes, end = [0] * count, len(seconds)
    for stage in reversed(range(count)):
        start = begins[stage][end]
        sizes[stage], end = end - start, start
    return tuple(sizes)


def one_forward_one_backward(seconds: Sequence[float], accum: float, vpp: int) -> float:
    """Seconds of `accum` micro-batches through stages that take `seconds` each (both passes).

    The slowest stage works on all of them; the first micro-batch enters and the last one leaves
    through the others, of which interleaving lets wait only for one of `vpp` chunks.
    """
    slowest = max(seconds)
    return accum * slowest + (sum(seconds) - slowest) / max(1, vpp)


def exposed(whole: float, hideable: float, buckets: float) -> float:
    """Seconds of a reduction in buckets, `whole` in all, that a backward pass does not hide.

    Buckets travel as the pass makes them, beside at most `hideable` seconds of it; the last one
    begins when it has ended.
    """
    buckets = max(1.0, buckets)
    return max(whole - hideable * (1 - 1 / buckets), whole / buckets)
