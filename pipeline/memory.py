"""How much memory a rank needs, from its spec alone (no torch), to foretell `out of memory`.

Two predictions: `predict`, part by part, and `formula_24`, the study's own (Bai 2022, appendix C.4,
formula 24). Both are in bytes and count one device: the process on a CPU, one GPU on CUDA.

What a forward pass keeps follows from the operators of `pipeline/models/gpt2.py`; it was read from
torch 2.13 with `torch.autograd.graph.saved_tensors_hooks`, and tests/unit/test_memory.py holds the
prediction to what these hooks count. What differs on CUDA (layer norm in fp32) is from torch's
documentation of autocast and not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.spec import ModelSpec, RunSpec

MEBIBYTE = 2**20
FP32, HALF, INT64 = 4, 2, 8

CPU_BASE = 226 * MEBIBYTE
"""Resident set of a rank before its model is built: Python 3.11, torch 2.13 (CPU) and the loop.

Measured once on Linux x86-64 with one thread by psutil; a run measures its own.
"""

CPU_LOADED_LATER = 90 * MEBIBYTE
"""What a rank loads after that: torch._dynamo with the optimiser, kernels, Gloo, Horovod.

Measured as above, from 226 to 316 MiB.
"""

FORKED_LOADED_LATER = 41 * MEBIBYTE
"""The same for a rank of an emulated node, which is forked with most of that loaded.

The median of all strategies with a model of about 20,000 parameters: 35 to 42 MiB in fp32, 53 to 57
in mixed precision, which takes other kernels.
"""

CUDA_BASE = 1024 * MEBIBYTE
"""On a GPU beside torch's allocator: CUDA context, NCCL, cuBLAS. Assumed, not measured here."""

FORMULA_VALUES = {"sgd": 2, "momentum": 3, "adam": 4, "adamw": 4}
"""n of formula 24: weight and gradient, one slot of momentum, two of Adam."""

_NARROW_WEIGHTS = ("amp_o2", "apex_o2")
_FULL = ("fp32", "tf32")


@dataclass(frozen=True)
class Memory:
    """Parts of one rank's memory in bytes; they do not all peak at once, so see `peak`.

    `parameters` holds fp32 master weights, `gradients` the masters' too. `held_gradients` is the
    share of them that stays while activations are there. `buffers` are those of the reduction.
    """

    parameters: int
    gradients: int
    held_gradients: int
    optimiser: int
    buffers: int
    activations: int
    logits: int
    base: int

    @property
    def model_peak(self) -> int:
        """Peak without the base.

        A backward pass frees activations while it makes gradients, so the larger of its two ends
        counts: all activations and the loss, or all gradients and the buffers of their reduction.
        """
        start = self.held_gradients + self.activations + self.logits
        return self.parameters + self.optimiser + max(start, self.gradients + self.buffers)

    @property
    def peak(self) -> int:
        """The most that the device or the process needs at once."""
        return self.base + self.model_peak


def predict(spec: RunSpec, layout: Mapping[str, Any], rank: int = 0) -> Memory:
    """The parts of one rank; `layout` is `Layout.to_dict()`, as a record keeps it."""
    count = num_parameters(spec.model)
    narrow = spec.precision in _NARROW_WEIGHTS
    weight = HALF if narrow else FP32
    masters = FP32 * count if narrow else 0
    gradients = weight * count
    accumulates = spec.workload.accumulation_steps > 1
    held = gradients if accumulates or _holds_gradients(spec) else 0
    sequences = sequences_at_once(spec, layout)
    cpu = spec.world.device == "cpu"
    return Memory(
        parameters=weight * count + masters,
        gradients=gradients + masters,
        held_gradients=held + masters,
        optimiser=2 * FP32 * count if _steps(spec, rank) else 0,
        buffers=_buffers(spec, layout, rank, gradients),
        activations=activation_bytes(spec, sequences),
        logits=logit_bytes(spec.model, sequences),
        base=CPU_BASE + loaded_later(spec.world.network == "emulated") if cpu else CUDA_BASE,
    )


def loaded_later(forked: bool) -> int:
    """What a rank on a CPU loads after its base, whether or not it was forked (bytes)."""
    return FORKED_LOADED_LATER if forked else CPU_LOADED_LATER


def formula_24(spec: RunSpec, layout: Mapping[str, Any]) -> int:
    """Parameters x n + batch x outputs + batch data (Bai 2022, appendix C.4), without a base.

    Read here as: fp32 values; outputs of the embedding, every block and the output layer; token
    ids and targets of 8 bytes.
    """
    model, batch = spec.model, sequences_at_once(spec, layout)
    values = FORMULA_VALUES[spec.optimiser.name] * num_parameters(model)
    outputs = model.context * ((model.num_layers + 1) * model.width + model.vocab_size)
    return FP32 * (values + batch * outputs) + 2 * INT64 * batch * model.context


def sequences_at_once(spec: RunSpec, layout: Mapping[str, Any]) -> int:
    """Sequences of one micro-batch on one device, rounded up."""
    parts: int = (
        layout["data_parallel"]
        * layout.get("devices_per_process", 1)
        * spec.workload.accumulation_steps
    )
    return -(-spec.workload.global_batch // parts)


def num_parameters(model: ModelSpec) -> int:
    """Parameters of GPT-2 with tied embeddings: 12 w^2 + 13 w a layer, the rest outside of them."""
    layer = 12 * model.width**2 + 13 * model.width
    embeddings = (model.vocab_size + model.context) * model.width
    return model.num_layers * layer + embeddings + 2 * model.width


def activation_bytes(spec: RunSpec, sequences: int) -> int:
    """What a forward pass over `sequences` keeps for the backward pass, the loss left out.

    For each token a block keeps 2 inputs of layer norms, 14 values of the width that its products
    take or make (3 inputs of layers, query, key and value, 4 before and 4 after GELU), and the
    statistics of the norms and of attention, which is fused; after the blocks come one layer norm
    and one product. Autocast also keeps a narrow copy of each weight of a product.
    """
    model, tokens = spec.model, sequences * spec.model.context
    full = spec.precision in _FULL
    product = FP32 if full else HALF
    # Layer norm takes fp32 in CUDA's autocast, also of narrow weights; Apex O2 leaves it narrow.
    narrow_stream = spec.precision == "apex_o2" or (
        spec.precision == "amp_o2" and spec.world.device == "cpu"
    )
    norm = HALF if narrow_stream else FP32
    block = (2 * norm + 14 * product) * model.width + 4 * norm + FP32 * model.num_heads
    last = (norm + product) * model.width + 2 * norm
    copies = 0
    if not full and spec.precision not in _NARROW_WEIGHTS:
        weights = 12 * model.num_layers * model.width**2 + model.vocab_size * model.width
        copies = HALF * weights
    return tokens * (model.num_layers * block + last) + copies


def logit_bytes(model: ModelSpec, sequences: int) -> int:
    """The loss at its peak: log-probabilities and two gradients in fp32, and the token ids."""
    tokens = sequences * model.context
    return tokens * (3 * FP32 * model.vocab_size + 2 * INT64)


# What a reduction needs, by the strategy's name, so that the stages without torch can ask; a
# strategy that is not named here is taken to need one more copy of its gradients.


def _steps(spec: RunSpec, rank: int) -> bool:
    """Whether this rank has optimiser state: of a parameter server the root alone."""
    return rank == 0 or spec.strategy != "parameter_server"


def _holds_gradients(spec: RunSpec) -> bool:
    """DDP's gradients are views of its buckets, which stay for the whole run."""
    return spec.strategy == "ddp"


def _buffers(spec: RunSpec, layout: Mapping[str, Any], rank: int, gradients: int) -> int:
    options = spec.options
    if spec.strategy in ("single", "ddp"):
        return 0
    if spec.strategy == "parameter_server" and layout.get("devices_per_process", 1) == 1:
        # The root's flat sum, what comes in, and the mean; a worker flattens once.
        return gradients * (3 if rank == 0 else 1)
    if spec.strategy == "horovod":
        wire = 0
        if options.get("compression") == "fp16" and spec.precision not in _NARROW_WEIGHTS:
            wire = gradients // 2
        elif spec.precision == "amp_o2" and spec.world.device == "cpu":
            wire = 2 * gradients  # bfloat16 travels as fp32
        fusion = int(options.get("fusion_threshold_mb", 128)) * MEBIBYTE
        return wire + min(fusion, wire or gradients)
    return gradients
