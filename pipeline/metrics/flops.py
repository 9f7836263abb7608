"""Model and hardware FLOP utilisation against the peak that the ranks measured."""

from __future__ import annotations

import numpy as np

from pipeline.models import family
from pipeline.records import RunRecord
from pipeline.study.spec import ATTENTION

NAMES = ("model_flops_utilisation", "hardware_flops_utilisation")


def peak_per_rank(record: RunRecord) -> float | None:
    """Mean over the ranks of the peak that each can count on, in FLOP/s; None where one has none.

    Threads that share fewer cores than they are cannot all reach what one of them measured alone,
    so on a CPU the peaks count for as many cores as there are. Emulated nodes have all theirs.
    """
    run, world = record.run, record.spec.world
    peaks = [rank.get("peak_flops_per_second") for rank in run["ranks"]]
    if None in peaks:
        return None
    execution, mean = run["execution"], float(np.mean(peaks))
    if world.device != "cpu":
        return mean * float(execution["layout"].get("devices_per_process", 1))
    if world.network == "emulated":
        return mean
    # Ranks of one machine share its cores.
    threads = len(peaks) * int(execution["threads_per_rank"])
    cores = int(run["hardware"]["num_cores"]) * world.num_machines
    return mean * min(1.0, cores / threads)


def padding_share(record: RunRecord) -> float:
    """Share of padding in the positions of the timed batches; ranks have equal parts of them."""
    return float(np.mean([rank.get("padding_share", 0.0) for rank in record.run["ranks"]]))


def flops_per_token(record: RunRecord) -> float:
    """Model FLOPs of a position of the batches on average, where those of padding count none."""
    return float(record.run["model"]["flops_per_token"]) * (1 - padding_share(record))


def utilisations(record: RunRecord, tokens_per_second: float) -> dict[str, float]:
    """`peak_flops_per_second` of a rank, and FLOP/s over the summed peaks by `NAMES`.

    Model FLOPs are those that one pass forward and backward needs; hardware FLOPs add what is
    computed twice (Chowdhery et al. 2022, appendix B), the recomputed activations, and padding.
    Nothing where a rank measured no peak.
    """
    if (peak := peak_per_rank(record)) is None:
        return {}
    spec, computed = record.spec, float(record.run["model"]["flops_per_token"])
    recomputed, what = family(spec.model).recomputed_flops_per_token, spec.workload.recompute
    again = spec.recomputed_share * recomputed(spec.model)
    if what == ATTENTION:
        again = recomputed(spec.model, what)
    rate = tokens_per_second / (peak * len(record.run["ranks"]))
    shares = flops_per_token(record) * rate, (computed + again) * rate
    return {"peak_flops_per_second": peak, **dict(zip(NAMES, shares, strict=True))}
