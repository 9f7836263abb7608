"""Layers of each stage, the order of a pipeline's passes, and a replay of them.

Schedules: `gpipe`, `1f1b`, `interleaved` and `zero_bubble`, in the orders that torch runs
(`pipeline.strategies.pipeline_parallel`) and Megatron-LM too. Stage s is on rank s modulo ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pipeline.errors import RecordError
from pipeline.study.profiling import BACKWARD, FORWARD, WEIGHTS

Pass = tuple[str, int, int]
"""Kind, stage, micro-batch."""

ONE_STAGE = ("gpipe", "1f1b")
"""Schedules in which a rank has one stage."""

MOST_STAGES = 256
"""Stages of a pipeline that are replayed."""
ROUNDS = 4
"""Rounds of a micro-batch for each rank that are replayed; the others take what the last one does.

Of random stages, a quarter to twice as slow as others, this was within 0.6 % of all passes, once
(interleaved, two ranks, six rounds) 1.4 %.
"""


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


def even(layers: int, head_in_layers: float, pp: int) -> tuple[int, ...]:
    """Layers of each stage so that the slowest is as fast as can be, the head in the last one.

    A pipeline's step is all of one micro-batch and the slowest stage of the others, so that this
    cut is the fastest too. There are no fewer layers than stages.
    """

    def cost(sizes: Sequence[int]) -> tuple[float, float]:
        """Of the slowest stage, then the squares of all, which prefer equal ones."""
        seconds = [*sizes[:-1], sizes[-1] + head_in_layers]
        return max(seconds), sum(each**2 for each in seconds)

    cuts = []
    for last in range(1, layers - pp + 2) if pp > 1 else [layers]:
        # All others are as even as can be, the first ones have more.
        least, more = divmod(layers - last, max(1, pp - 1))
        cuts.append((*[least + 1] * more, *[least] * (pp - 1 - more), last))
    return min(cuts, key=cost)


def _ahead(schedule: str, ranks: int, chunks: int, microbatches: int, rank: int) -> tuple[int, int]:
    """Micro-batches of a round, and forward passes of a rank before its first pair of both."""
    all_of_kind, after = chunks * microbatches, ranks - 1 - rank
    if schedule in ONE_STAGE:
        return microbatches, all_of_kind if schedule == "gpipe" else min(after, all_of_kind)
    a_round = microbatches // max(1, microbatches // ranks)
    apart = 2 if schedule == "interleaved" else 1
    return a_round, min((chunks - 1) * a_round + apart * after, all_of_kind)


def in_flight(schedule: str, ranks: int, chunks: int, microbatches: int, rank: int) -> int:
    """Stages x micro-batches whose activations a pipeline rank keeps at its peak."""
    _, ahead = _ahead(schedule, ranks, chunks, microbatches, rank)
    # What the gradients of the weights wait for is kept: a pass for each rank before this one.
    waiting = rank if schedule == "zero_bubble" else 0
    return min(chunks * microbatches, ahead + 1 + waiting)


def order(schedule: str, ranks: int, chunks: int, microbatches: int, rank: int) -> list[Pass]:
    """Passes of a pipeline rank in their order.

    Interleaved schedules take `chunks` stages in turns, a round of micro-batches each; the rounds
    of about one micro-batch for each rank have to divide all of them.
    """
    passes_of_kind = chunks * microbatches
    a_round, ahead = _ahead(schedule, ranks, chunks, microbatches, rank)

    def passed(kind: str, number: int) -> Pass:
        """The pass of a kind that is the rank's `number`-th; backward passes begin at the end."""
        group, place = divmod(number, a_round * chunks)
        chunk, microbatch = divmod(place, a_round)
        chunk = chunk if kind == FORWARD else chunks - 1 - chunk
        return kind, chunk * ranks + rank, group * a_round + microbatch

    passes = [passed(FORWARD, number) for number in range(ahead)]
    for number in range(passes_of_kind):
        if ahead + number < passes_of_kind:
            passes.append(passed(FORWARD, ahead + number))
        passes.append(passed(BACKWARD, number))
        # Gradients of weights wait for as many passes as there are ranks before this one.
        if schedule == "zero_bubble" and number >= rank:
            passes.append(passed(WEIGHTS, number - rank))
    if schedule == "zero_bubble":
        first = max(0, passes_of_kind - rank)
        passes += [passed(WEIGHTS, number) for number in range(first, passes_of_kind)]
    return passes


def in_turn(lines: Mapping[int, Sequence[Sequence[Any]]]) -> Iterator[tuple[Any, int, int]]:
    """Each pass of the ranks' `lines`, and the places of the two passes that it waits for.

    These are the one before on its rank, and what it needs of another stage: a forward pass that
    of the stage before, a backward pass that of the stage after. Places count from 1 in the order
    that is given, in which both come first; 0 is the beginning of the step. Of a pass only kind,
    stage and micro-batch are read. Raises RecordError where passes wait for one another for ever.
    """
    last_stage = max((one[1] for own in lines.values() for one in own), default=0)
    places: dict[Pass, int] = {}
    place, before = 0, dict.fromkeys(lines, 0)
    left = {rank: list(reversed(own)) for rank, own in lines.items()}
    while any(left.values()):
        moved = False
        for rank, own in left.items():
            while own:
                kind, stage, microbatch, *_ = own[-1]
                # Activations come from the stage before, gradients from the one after. The half of
                # a split backward pass that gives gradients of weights needs its own stage alone.
                source = {FORWARD: stage - 1, BACKWARD: stage + 1}.get(kind, -1)
                needed: int | None = 0
                if 0 <= source <= last_stage:
                    needed = places.get((kind, source, microbatch))
                if needed is None:
                    break
                yield own.pop(), before[rank], needed
                place += 1
                before[rank] = places[kind, stage, microbatch] = place
                moved = True
        # Every rank waits for a pass that no other rank can begin: no schedule does that.
        if not moved:
            rank, own = next((rank, own) for rank, own in left.items() if own)
            raise RecordError(
                f"steps.jsonl: rank {rank} waits for ever before its pass {tuple(own[-1][:3])}; "
                "its passes are not those of one step of a pipeline"
            )


def replayed(turns: Iterable[tuple[float, int, int]], message: float = 0.0) -> float:
    """Seconds from the first pass to the end of the last, where a message takes `message`.

    Of `in_turn`, with the seconds of each pass.
    """
    ended = [0.0]
    for seconds, before, needed in turns:
        rank_free, there = ended[before], ended[needed] + message if needed else 0.0
        ended.append((rank_free if rank_free > there else there) + seconds)
    return max(ended)


@lru_cache(maxsize=128)
def _turns(schedule: str, ranks: int, chunks: int, microbatches: int) -> list[tuple[int, int, int]]:
    """The passes of a schedule in turn; each is a place in the seconds of `pipelined`."""
    lines = {rank: order(schedule, ranks, chunks, microbatches, rank) for rank in range(ranks)}
    first = {FORWARD: 0, BACKWARD: ranks * chunks, WEIGHTS: 2 * ranks * chunks}
    return [(first[one[0]] + one[1], *waits) for one, *waits in in_turn(lines)]


def pipelined(
    schedule: str,
    ranks: int,
    forward: Sequence[float],
    backward: Sequence[float],
    accum: float,
    message: float = 0.0,
) -> float:
    """Seconds of `accum` micro-batches through stages whose passes take so long, by replay.

    A message between two stages takes `message` seconds, during which both may run other passes.
    Many micro-batches are replayed for `ROUNDS`; each of the others takes what one of the last
    round does, or the slowest rank's passes. So does a part of one, and what rounds of an
    interleaved schedule do not divide.
    """
    chunks, halves = len(forward) // ranks, 2 if schedule == "zero_bubble" else 1
    seconds = [*forward, *(2 * [each / halves for each in backward])]

    def of(microbatches: int) -> float:
        turns = _turns(schedule, ranks, chunks, microbatches)
        return replayed(((seconds[one], before, needed) for one, before, needed in turns), message)

    both = [f + b for f, b in zip(forward, backward, strict=True)]
    slowest = max(sum(both[rank::ranks]) for rank in range(ranks))
    count = int(accum)
    if count <= ROUNDS * ranks and (schedule in ONE_STAGE or not count % max(1, count // ranks)):
        return of(count) + (accum - count) * slowest
    rounds = min(ROUNDS, count // ranks)
    whole = of(rounds * ranks)
    last = whole - of((rounds - 1) * ranks)
    return whole + (accum - rounds * ranks) * max(slowest, last / ranks)


def exposed(whole: float, hideable: float, buckets: float, last: float = 0.0) -> float:
    """Seconds of a reduction in buckets, `whole` in all, that a backward pass does not hide.

    Buckets travel as the pass makes them, beside at most `hideable` seconds of it; the last one,
    which has at least the share `last` of all, begins when it has ended.
    """
    one = 1 / max(1.0, buckets)
    return max(whole - hideable * (1 - one), whole * max(one, last))
