"""Seconds of collectives by size, between the emulated nodes of a study or over the loopback."""

from __future__ import annotations

import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.emulation.dilation import dilate
from pipeline.emulation.pacing import Pacer, time_spinning
from pipeline.errors import UnsupportedError
from pipeline.launch.calibrate.nodes import on_nodes
from pipeline.models import FP32, num_parameters
from pipeline.parallel.mesh import divisors
from pipeline.resolved import ResolvedRun

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

SMALLEST, LARGEST = 1 << 10, 1 << 24
"""Bytes. Between them sizes grow by 16; the gradients of the study are the last."""
MOST_TIMES = 15
LIBRARY_SHARE = 0.2
"""Of the time for all KINDS, for an all-reduce by another library."""
JOBS = 2
"""Jobs of every case: some take several times as long, by chance of their processes."""
LONGEST = 1.0
"""Seconds of the machine; sizes that are to take longer are left to the line through the others."""
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "send", "shift")
"""A shift is a message of each rank to the next one, as the stages of a pipeline send them."""
SIDE = 512
"""Numbers on a side of the matrices that ranks multiply before each: it follows computation there
too, and finds its code and its data no longer in the caches."""


def measured(
    runs: Sequence[ResolvedRun],
    computing: Sequence[ResolvedRun],
    cores: Sequence[int],
    seconds: float,
) -> list[dict[str, Any]]:
    """Seconds by link, number of ranks, kind and size, on the largest world of each link.

    Groups of as many ranks as an axis of a run has, or of `computing`, are at work all at once.
    """
    largest = dict[Any, ResolvedRun]()
    for run in runs:
        before = largest.get(run.link)
        if run.spec.world.size >= (before.spec.world.size if before else 2):
            largest[run.link] = run
    axes = {size for run in (*runs, *computing) for _, size in run.layout.axes}
    cases = list[tuple[ResolvedRun, list[int], Sequence[str], float]]()
    for run in largest.values():
        groups = [size for size in divisors(run.spec.world.size)[1:] if size in axes]
        cases.append((run, groups, KINDS, 1.0 / len(groups)))
    cases += [(run, [run.spec.world.size], [run.strategy.all_reduces_by], LIBRARY_SHARE)
              for run in _by_libraries(runs)]  # fmt: skip
    whole, timings = sum(share for *_, share in cases), []
    for run, groups, kinds, share in cases:
        case = partial(_times, run, groups, kinds, seconds * share / whole / JOBS)
        dilation = dilate(run.spec.world, len(cores)) if run.link else 1.0
        took = defaultdict[tuple[int, str, int], list[float]](list)
        for _ in range(JOBS):
            for same in zip(*on_nodes(run, cores, case), strict=True):
                took[same[0]["ranks"], same[0]["kind"], same[0]["bytes"]] += _of_all(same, dilation)
        for (ranks, kind, size), each in took.items():
            # Most calls of a job may take several times as long as those of another; steps do not
            # show it. So the quickest quarter of all calls says what one takes.
            timings.append({"link": run.link_name, "ranks": ranks, "kind": kind, "bytes": size,
                            "seconds": float(np.quantile(each, 0.25))})  # fmt: skip
    return timings


def _by_libraries(runs: Sequence[ResolvedRun]) -> list[ResolvedRun]:
    """A run of each world whose gradients a library of its own reduces that is installed here."""
    found = dict[Any, ResolvedRun]()
    for run in runs:
        if (library := run.strategy.all_reduces_by) and run.spec.world.size > 1:
            with suppress(UnsupportedError):
                run.strategy.check()
                found.setdefault((run.link, run.spec.world.size, library), run)
    return list(found.values())


def _of_all(timings: Sequence[dict[str, Any]], dilation: float) -> list[float]:
    """Of one kind and size the seconds of each call, from its ranks' mean begin to the last end.

    A shift ends in the mean of its ranks' ends, since none of them waits for the last one.
    """
    one = timings[0]
    ranks, took = one["ranks"], list[float]()
    for first in range(0, len(timings), ranks):
        # Of a message the others know nothing.
        group = timings[first : first + (2 if one["kind"] == "send" else ranks)]
        for moments in zip(*(each["moments"] for each in group), strict=True):
            begun, ended = zip(*moments, strict=True)
            last = statistics.fmean(ended) if one["kind"] == "shift" else max(ended)
            took.append((last - statistics.fmean(begun)) / dilation)
    return took


def _times(
    run: ResolvedRun, groups: Sequence[int], kinds: Sequence[str], seconds: float,
    folder: str, factor: float,
) -> list[dict[str, Any]]:  # fmt: skip
    """Of a rank: time each size of group, kind and size several times."""
    import torch
    import torch.distributed as dist
    from torch.distributed import FileStore  # type: ignore[attr-defined]
    from torch.distributed.device_mesh import init_device_mesh

    sizes, largest = [SMALLEST], min(LARGEST, FP32 * num_parameters(run.spec.model))
    while sizes[-1] < largest:
        sizes.append(min(16 * sizes[-1], largest))
    world, reduced, leaving = run.spec.world, None, ExitStack()
    size = world.size
    if set(kinds) - set(KINDS):
        store = FileStore(f"{folder}/library", size)
        reduced = leaving.enter_context(run.strategy.all_reduce(run.layout, store))
    # With a yardstick CPU seconds count as on a machine where nothing empties the caches.
    side = 1 if world.yardstick else SIDE
    pacer, matrix = Pacer(factor), torch.ones(side, side)
    pacer.start()

    def once(work: Callable[[], object]) -> tuple[float, float]:
        """Begin and end of a collective, which all ranks begin after computing."""
        dist.barrier()
        pacer.waited()
        matrix @ matrix
        pacer.settle()
        before = time.perf_counter()
        work()
        pacer.waited()
        return before, time.perf_counter()

    # A dilated call takes longer, and a quartile needs enough of them.
    each, timings = max(1.0, factor / 2) * seconds / (len(sizes) * len(kinds)), []
    joined = [init_device_mesh("cpu", (size // ranks, ranks)).get_group(1) for ranks in groups]
    for (ranks, group), kind in itertools.product(zip(groups, joined, strict=True), kinds):
        for place, count in enumerate(sizes):
            work = _work(kind, max(1, count // 4 // ranks), group, reduced)
            if reduced is not None:
                time_spinning(work)
            once(work)
            began, moments = time.perf_counter(), [once(work)]
            whole, took = moments[0][1] - began, moments[0][1] - moments[0][0]
            # All ranks make as many, by what the slowest of them took.
            most = torch.tensor([whole, took])
            dist.all_reduce(most, dist.ReduceOp.MAX)
            again = min(MOST_TIMES, int(each / float(most[0])))
            moments += [once(work) for _ in range(again)]
            timings.append({"ranks": ranks, "kind": kind, "bytes": count, "moments": moments})
            larger = sizes[min(place + 1, len(sizes) - 1)] / count
            if place and float(most[1]) * larger > LONGEST:
                break
    dist.barrier()
    leaving.close()
    return timings


def _work(
    kind: str, piece: int, group: ProcessGroup, reduced: Callable[[Tensor], None] | None
) -> Callable[[], object]:
    """One collective of a group over as many pieces of so many numbers as it has ranks.

    Of a kind that is none of KINDS by `reduced`, of a library of its own.
    """
    import torch
    import torch.distributed as dist

    from pipeline.parallel.group import ring_reduce_scatter

    rank, size = group.rank(), group.size()
    whole, incoming = torch.zeros(2, piece * size)
    own = torch.zeros(piece)
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole, group=group)
    if kind == "reduce_scatter":
        return lambda: ring_reduce_scatter(whole, group)
    if reduced is not None:
        return lambda: reduced(whole)
    if kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, own, group)
    # To the next rank: of a message the first alone sends one, of a shift each does, the last one
    # to the first. So the two of a pair exchange theirs, as stages do.
    messages, message, is_shift = [], partial(dist.P2POp, group=group), kind == "shift"
    if is_shift or rank == 0:
        messages.append(message(dist.isend, whole, group_peer=(rank + 1) % size))
    if is_shift or rank == 1:
        messages.append(message(dist.irecv, incoming, group_peer=(rank - 1) % size))

    def send() -> None:
        for message in dist.batch_isend_irecv(messages) if messages else ():
            message.wait()

    return send
