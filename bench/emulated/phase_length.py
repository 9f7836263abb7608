"""Does a piece of work take `factor` times its CPU seconds, however short it is?

As many processes share one core as ranks may at that factor. Each waits, works, and is paced.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from functools import partial
from typing import Any

import numpy as np

from bench.emulated.undisturbed import Machine
from pipeline.emulation.cores import awake
from pipeline.emulation.dilation import nodes_per_core
from pipeline.emulation.pacing import Pacer

WORK_SECONDS = (0.0005, 0.002, 0.008, 0.03)
"""CPU seconds of a piece: shorter and longer than what the kernel gives a process at once."""

GAP_SECONDS = 0.005
"""Mean wait before a piece, as for another rank."""

LASTS_SECONDS = 3.0


def phase_length(factor: int, seconds: float, machine: Machine) -> dict[str, Any]:
    """Time of pieces of so many CPU seconds, in dilated time, over their own CPU seconds."""
    found = np.asarray(machine.undisturbed(partial(_paced, factor, seconds)))
    low, value, high = (float(v) for v in np.percentile(found, [5, 50, 95]))
    about = {"factor": factor, "cpu_seconds": seconds, "value": value, "p5": low, "p95": high}
    return about | {"n": len(found)} | machine.told()


def _paced(factor: int, seconds: float) -> list[float]:
    """Ratios of all pieces of all processes, which share the first core."""
    core = min(os.sched_getaffinity(0))
    context = multiprocessing.get_context("fork")
    sharing = nodes_per_core(factor)
    barrier = context.Barrier(sharing)
    reads, running = [], []
    with awake([core]):
        for seed in range(sharing):
            read, write = context.Pipe(duplex=False)
            work = partial(_work, factor, seconds, core, seed)
            running.append(context.Process(target=_tell, args=(write, barrier, work), daemon=True))
            running[-1].start()
            write.close()
            reads.append(read)
        ratios = [ratio for read in reads for ratio in read.recv()]
        for process in running:
            process.join()
    return ratios


def _tell(write: Any, barrier: Any, work: partial[list[float]]) -> None:
    barrier.wait()
    write.send(work())


def _work(factor: int, seconds: float, core: int, seed: int) -> list[float]:
    """Pieces of work of one process, for a while."""
    os.sched_setaffinity(0, [core])
    drawn, pacer, found = random.Random(seed), Pacer(factor), []
    until = time.perf_counter() + LASTS_SECONDS
    while time.perf_counter() < until:
        time.sleep(GAP_SECONDS * drawn.uniform(0.5, 1.5))
        pacer.start()
        start, before = time.perf_counter(), time.thread_time()
        while (spent := time.thread_time() - before) < seconds:
            pass
        pacer.settle()
        found.append((time.perf_counter() - start) / factor / spent)
    return found
