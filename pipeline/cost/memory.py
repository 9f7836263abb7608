"""Bytes of a rank, part by part; the first and the last stage are looked at.

Parts: weights, gradients and optimiser states (cut by ZeRO's stage), activations of the
micro-batches in flight (Korthikanti et al. 2022, section 4, extended to gated and grouped-query
layers), the logits of the last stage, and what the framework keeps besides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pipeline.cost.job import Job
from pipeline.cost.schedule import in_flight

GIBIBYTE = 2**30


def parameters_of(job: Job, count: float, first: bool, last: bool) -> float:
    """Parameters of a rank of `count` layers; the ends of a pipeline hold embedding and head."""
    table = job.vocab * job.hidden
    held = first + (last and not (job.tied and first))
    return (count * job.layer_parameters + held * table) / job.tp


def layer_activations(job: Job, profile: Mapping[str, float], element: int) -> float:
    """Bytes that a layer keeps of a micro-batch for its backward pass."""
    h, t = job.hidden, job.tp
    # Inputs of norms and products, and the masks of two dropouts. Sequence parallelism cuts what is
    # whole, but for inputs that are kept as they were gathered.
    kept = 5 if job.biased else 4
    whole = h * (kept / t + profile["gathered_inputs"] if job.seq_parallel else kept)
    kv = 2 * job.kv_heads * job.head_size
    inner = (2 * h + kv + job.ffn * (4 if job.gated else 2)) / t
    none = job.flash or job.recompute in ("selective", "attention")
    scores = 0.0 if none else 2.5 * job.heads * job.seq / t
    return job.tokens * element * (whole + inner + scores)


def parts(
    job: Job, profile: Mapping[str, float], count: float, rank: int, element: int
) -> dict[str, float]:
    """Bytes of a pipeline rank that has `count` layers, part by part."""
    n = parameters_of(job, count, rank == 0, rank == job.pp - 1)
    wide = element == 4 or job.wide_weights(profile)
    weight, master = (4.0, 8.0) if wide else (2.0, 12.0)
    shards = [job.shard if job.zero >= level else 1 for level in (3, 2, 1)]
    flight = in_flight(job.order, job.pp, job.vpp, max(1, int(job.accum)), rank) / job.vpp
    layer = layer_activations(job, profile, element)
    if job.recompute == "full":
        kept = job.tokens * job.hidden * element / (job.tp if job.seq_parallel else 1)
        activations = flight * count * kept + layer
    else:
        if job.recompute == "selective" and job.flash and profile["selective_products"] > 0:
            # Attention keeps no scores; what is recomputed is every second product.
            layer *= profile["selective_activations"]
        activations = flight * count * layer
    # One block is gathered whole while it is used, another one is on its way.
    gathered = 2 * 2 * job.layer_parameters / job.tp if job.zero == 3 else 0.0
    tokens = job.tokens * (profile["bert_head_share"] if job.bert else 1.0)
    logits = tokens * job.vocab / job.tp * profile["logit_bytes"] if rank == job.pp - 1 else 0.0
    return {
        "weights": n * weight / shards[0] + gathered,
        "gradients": n * profile["gradient_memory"] / shards[1],
        "optimiser": n * master / shards[2],
        "activations": activations * profile["activation_factor"],
        "logits": logits,
        "other": profile["other_gib"] * GIBIBYTE + 0.02 * math.sqrt(job.gpus) * GIBIBYTE,
    }
