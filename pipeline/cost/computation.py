"""Seconds that a device computes: matrix products by size, other operators by their bytes.

A product takes the longest of its arithmetic and its traffic, and a fixed time a kernel, which is
what makes small ones slow. A layer's backward pass has twice its products.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pipeline.cost.constants import Device
from pipeline.cost.job import Job

Profile = Mapping[str, float]


class Passes(NamedTuple):
    """Seconds of a forward and of a backward pass (recomputation in it) over a micro-batch."""

    forward: float
    backward: float


def product(device: Device, m: float, n: float, k: float, count: float = 1.0) -> float:
    """Seconds of `count` products (m x k) (k x n) in one kernel."""
    arithmetic = 2.0 * m * n * k * count / device.rate
    traffic = count * device.element * (m * k + k * n + m * n) / device.memory_rate
    return max(arithmetic, traffic) + device.kernel_seconds


def layer(job: Job, device: Device, profile: Profile) -> Passes:
    """One transformer layer of a rank."""
    t, tokens, h = job.tp, job.tokens, job.hidden
    kv = 2 * job.kv_heads * job.head_size
    width = job.ffn * (2 if job.gated else 1)
    # BERT's query, key and value are products of their own, where nothing fuses them.
    inputs = 3 if job.bert and profile["unfused_biases"] > 0 else 1
    # Each of a rank's experts gets as many rows; a layer without a mixture is one, of all tokens.
    experts = job.experts // job.ep
    rows = tokens * job.chosen / experts
    products = (
        inputs * product(device, tokens, (h + kv) / t / inputs, h)
        + product(device, tokens, h, h / t)
        + product(device, rows, width / t, h, experts)
        + product(device, rows, h, job.ffn / t, experts)
    )
    forward, backward = attention(job, device, profile)
    # Layer norms, residuals and dropout are cut by sequence parallelism alone; what lies between
    # the products of a block by the tensor axis.
    whole = 10.5 * h / (t if job.seq_parallel else 1)
    inner = (6 * h + (3 if job.gated else 2) * job.ffn * job.chosen) / t
    if job.experts > 1:
        # Rows are copied in the order of their experts, and back.
        inner += 4 * h * job.chosen
    a_width = tokens * device.element / device.memory_rate
    seconds = (whole + inner) * a_width * profile["traffic"]
    f = products / profile["efficiency"] + forward + seconds
    b = 2 * products / profile["efficiency"] + backward + 2 * seconds
    if job.biased and profile["unfused_biases"] > 0:
        # Each product's bias is written before it and read by it, or read and written after it; the
        # backward pass reads gradients for its sum. Two dropouts read, write, and keep a byte.
        outputs, dropouts = (h + kv + width) / t + 2 * h, 2 * 2.5 * h
        f += (2 * outputs + dropouts) * a_width
        b += (outputs + dropouts) * a_width
    if job.recompute == "full":
        b += f
    elif job.flash and job.recompute == "selective" and profile["selective_products"] > 0:
        # torchtitan's policy keeps attention and every second product of a block: keys, output and
        # the second one of the MLP are made again, and what lies between them.
        again = h * (kv / 2 + h + job.ffn) / job.layer_parameters
        b += again * products / profile["efficiency"] + seconds
    elif job.recompute in ("selective", "attention"):
        b += forward
    return Passes(f, b)


def attention(job: Job, device: Device, profile: Profile) -> tuple[float, float]:
    """Seconds of scores, softmax and context, forward and backward."""
    heads = job.micro * job.heads / job.tp
    if job.flash:
        # A fused kernel skips the half that causality masks, and recomputes in its backward pass.
        flops = 4.0 * heads * job.seq**2 * job.head_size * (1.0 if job.bert else 0.5)
        of = device.constants["fused_attention_share"] * device.peak
        return flops / of + device.kernel_seconds, 2.5 * flops / (0.85 * of) + device.kernel_seconds
    products = 2 * product(device, job.seq, job.seq, job.head_size, heads)
    scores = heads * job.seq**2 * device.element
    others = profile["score_passes"] * scores / device.memory_rate
    return products + others, 2 * products + 1.4 * others


def head(job: Job, device: Device, profile: Profile) -> Passes:
    """The output layer and the loss of the last stage."""
    tokens = job.tokens * (profile["bert_head_share"] if job.bert else 1.0)
    vocabulary = job.vocab / job.tp
    logits = product(device, tokens, vocabulary, job.hidden) / profile["efficiency"]
    # The loss in fp32: softmax and its gradient read and write the logits.
    loss = tokens * vocabulary * 4 * profile["loss_passes"] / device.memory_rate
    return Passes(logits + loss, 2 * logits + loss)


def optimiser(job: Job, parameters: float, device: Device, profile: Profile) -> float:
    """Seconds of norm, clipping and update of a rank's `parameters`."""
    size = profile["optimiser_bytes"] * (1.5 if "lamb" in job.optimiser else 1.0)
    if device.element == 4 or job.wide_weights(profile):
        # No gradient is copied to fp32 (2 + 4), and no weight from there (4 + 2). At least Adam
        # itself is left: four fp32 numbers are read and three written.
        size = max(28.0, size - 12)
    return parameters * size / device.memory_rate


def host(job: Job, profile: Profile) -> float:
    """Seconds that the host needs to start one layer's operators, both passes and recomputation."""
    # Attention and feed-forward have an all-reduce each in a pass. With sequence parallelism it is
    # a gather and a reduce-scatter, and the backward pass gathers the inputs of products again.
    forward, backward = (4, 6) if job.seq_parallel else (2, 2)
    again = job.recompute == "full"
    collectives = (forward * (1 + again) + backward) if job.tp > 1 else 0
    a_layer = profile["host_layer_us"] * (1.33 if again else 1.0)
    return 1e-6 * (a_layer + collectives * profile["host_collective_us"])
