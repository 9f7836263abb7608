"""Memory that a rank needs and bytes that it sends, from its spec alone (no torch); `plan_study`.

Two predictions of memory: `predict`, part by part, and `formula_24`, the study's own (Bai 2022,
appendix C.4, formula 24). Both are in bytes and count one device: the process on a CPU, one GPU on
CUDA. `predict_sent` has the bytes that a rank sends in a step.

Parameters and activations are the arithmetic of the model's family, buffers the footprint of the
strategy. What differs on CUDA (layer norm in fp32) is from torch's documentation of autocast and
not measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pipeline import models
from pipeline.cost.traffic import ALL_TO_ALL, ANSWERED, SEND, Traffic
from pipeline.models import FP32, HALF, INT64, Widths
from pipeline.parallel.mesh import Layout
from pipeline.precision.widths import widths
from pipeline.resolved import ResolvedRun
from pipeline.study.spec import ATTENTION, ModelSpec, RunSpec

MEBIBYTE, GIBIBYTE = 2**20, 2**30

CPU_BASE = 233 * MEBIBYTE
"""Resident set of a rank before its model is built: Python 3.11, torch 2.13 (CPU) and the loop.

Of 184 runs on Linux x86-64 with one thread, 232 to 234 by psutil; a run measures its own.
"""

CPU_LOADED_LATER = 90 * MEBIBYTE
"""Bytes that a rank loads after that: torch._dynamo with the optimiser, kernels, Gloo, Horovod.

Measured as above, from 226 to 316 MiB of an earlier base.
"""

FORKED_LOADED_LATER = 41 * MEBIBYTE
"""Bytes that a forked rank loads later: most is loaded before the fork.

On emulated nodes the median of all strategies with a model of about 20,000 parameters: 35 to 42 MiB
in fp32, 53 to 57 in mixed precision, which takes other kernels.
"""

PRODUCT_BUFFERS = 2 * 4700 * 1024
"""Bytes of the two buffers that MKL takes for products of a new size of micro-batch, and keeps.

Of 4.3 to 5.4 MiB each for products of 64 to 4,096 tokens and up to 1,024 features, one thread, by
`mkl_mem_stat`: 9.0 MiB after passes of 64 tokens, 13.7 after 128 more and 23.2 after 256 more. The
models by which the bytes loaded later were measured are too small for any.
"""

CUDA_BASE = 1024 * MEBIBYTE
"""On a GPU besides torch's allocator: CUDA context, NCCL, cuBLAS. Assumed, not measured here."""

FORMULA_VALUES = 4
"""n of formula 24 with Adam: weight, gradient and two slots."""

MARGIN = {"cuda": 0.1, "cpu": 0.3}
"""A need this close to the memory, from either side, is called tight.

On a CPU the peak was up to 30 % over the prediction, because the C library keeps freed blocks
(docs/decisions, memory-and-flops); on CUDA it is assumed.
"""


@dataclass(frozen=True)
class Memory:
    """Parts of one rank's memory in bytes; they do not all peak at once, so see `peak`.

    `parameters` holds fp32 master weights, `gradients` the masters' too. `held_gradients` is the
    share of them that stays while activations are there. `buffers` are those of the reduction, and
    LAMB's steps, all of which are there before the first is taken.
    `recomputed` are the activations of the one block that is recomputed at a time, or of its
    attention but query, key, value and output; `within` are gradients of activations in a block.
    """

    parameters: int
    gradients: int
    held_gradients: int
    optimiser: int
    buffers: int
    activations: int
    logits: int
    base: int
    recomputed: int = 0
    within: int = 0

    @property
    def model_peak(self) -> int:
        """Peak without the base.

        A backward pass frees activations while it makes gradients, so the larger of its two ends
        counts: all activations and the loss, or all gradients and the buffers of their reduction.
        The loss is gone when the pass comes to the last block, which may be recomputed.
        """
        last_block = self.recomputed + self.within
        start = self.held_gradients + self.activations + max(self.logits, last_block)
        return self.parameters + self.optimiser + max(start, self.gradients + self.buffers)

    @property
    def peak(self) -> int:
        """The most that the device or the process needs at once."""
        return self.base + self.model_peak


def predict(run: ResolvedRun, rank: int = 0) -> Memory:
    """The parts of one rank, in the phase that takes most."""
    spec = run.spec
    sizes = models.family(spec.model)
    count = sizes.num_parameters(spec.model)
    width = widths(spec.precision)
    weights, gradients = width.weight * count, width.gradient * count
    masters = FP32 * count if width.weight < FP32 else 0
    # Gradients that add up in fp32 are the masters' own.
    beside = masters if width.gradient < FP32 else 0
    footprint = run.strategy.footprint(spec, run.layout, rank, gradients)
    stay = spec.workload.accumulation_steps > 1 or footprint.holds_gradients
    held = int(footprint.held_share * gradients) if stay else 0
    weights_kept, slots_kept = footprint.weight_share, footprint.optimiser_share
    masters_kept = weights_kept if footprint.master_share is None else footprint.master_share
    passes = [(one.model, sequences_at_once(one, run.layout)) for _, one in spec.phases()]
    kept = kept_widths(spec)
    each = [_activations(spec, *one) for one in passes]
    activations, inputs, again, within = (max(part) for part in zip(*each, strict=True))
    copies = kept.copied(sizes.product_weights(spec.model))
    share, cpu = spec.recomputed_share, spec.world.device == "cpu"
    return Memory(
        parameters=int(weights_kept * weights + masters_kept * masters) + footprint.gathered_bytes,
        gradients=int(footprint.gradient_share * (gradients + beside)),
        # torch's O2 drops the masters' gradients before a forward pass; Apex is taken to keep them.
        held_gradients=held + (masters if spec.precision == "apex_o2" else 0),
        optimiser=int(slots_kept * 2 * FP32 * count),
        buffers=footprint.buffer_bytes
        + int(slots_kept * FP32 * count * (spec.optimiser.name == "lamb")),
        activations=int(
            (1 - share) * footprint.activation_share * (activations - copies)
            + share * footprint.input_share * (inputs - copies)
            + footprint.copy_share * copies
        ),
        recomputed=int(footprint.block_share * again),
        within=int(footprint.block_share * within),
        logits=int(footprint.logit_share * max(models.logit_bytes(*one) for one in passes)),
        base=CPU_BASE
        + loaded_later(spec.world.network == "emulated", spec.model)
        + PRODUCT_BUFFERS * len({(model.context, count) for model, count in passes})
        if cpu
        else CUDA_BASE,
    )


def peak(run: ResolvedRun, ranks: Iterable[int] = ()) -> float:
    """Bytes of the rank that needs most, of these or of all."""
    return float(max(predict(run, rank).peak for rank in ranks or range(run.layout.num_processes)))


def _activations(spec: RunSpec, model: ModelSpec, sequences: int) -> tuple[int, int, int, int]:
    """Bytes that a pass keeps where no block is recomputed, and where all are.

    And those that are recomputed at a time, when the last block is reached: earlier ones that are
    have more room by then; last, gradients of activations.
    """
    what, layers, kept = spec.workload.recompute, model.num_layers, kept_widths(spec)
    whole, block, attention, gradients = models.family(model).kept(model, sequences, kept)
    inputs = sequences * model.context * layers * kept.stream * model.width
    inputs += max(0, whole - layers * block)  # what is outside of the blocks stays
    alone = attention if what == ATTENTION else 0
    recomputes_last = what is True or (isinstance(what, tuple) and layers - 1 in what)
    again = block if recomputes_last else alone // layers
    return whole - alone, inputs, again, gradients


def predict_sent(run: ResolvedRun, rank: int = 0) -> Sequence[Traffic]:
    """Bytes that a rank sends in a step along each axis, by its strategy's formulas."""
    gradients = widths(run.spec.precision).reduced * models.num_parameters(run.spec.model)
    return run.strategy.sends(run.spec, run.layout, rank, gradients)


def sent_between_nodes(layout: Layout, rank: int, sent: Traffic) -> float | None:
    """Bytes of a rank's traffic that go to other nodes; None where its receivers are not stated.

    Round a ring all go to the next rank of the axis.
    """
    if sent.kind in (SEND, ANSWERED, ALL_TO_ALL) and layout.processes_per_node > 1:
        return sent.leaving
    return sent.bytes * layout.leaves_node(rank, layout.along(sent.axis, rank))


def loaded_later(forked: bool, model: ModelSpec) -> int:
    """Bytes that a rank on a CPU loads after its base: fewer where it was forked."""
    later = FORKED_LOADED_LATER if forked else CPU_LOADED_LATER
    return later + models.family(model).loaded_bytes()


def formula_24(run: ResolvedRun) -> int:
    """Parameters x n + batch x outputs + batch data (Bai 2022, appendix C.4), without a base.

    Read here as: fp32 values; outputs of the embedding, every block and the output layer; token
    ids and targets of 8 bytes.
    """
    model, batch = run.spec.model, sequences_at_once(run.spec, run.layout)
    values = FORMULA_VALUES * models.num_parameters(model)
    outputs = model.context * ((model.num_layers + 1) * model.width + model.vocab_rows)
    return FP32 * (values + batch * outputs) + 2 * INT64 * batch * model.context


def sequences_at_once(spec: RunSpec, layout: Layout) -> int:
    """Sequences of one micro-batch on one device, rounded up."""
    pieces = layout.data_devices * spec.workload.accumulation_steps
    return -(-spec.workload.global_batch // pieces)


def kept_widths(spec: RunSpec) -> Widths:
    """Bytes of the numbers that a forward pass of the run keeps.

    Layer norm takes fp32 in CUDA's autocast, also of narrow weights; Apex O2 leaves it narrow.
    """
    width = widths(spec.precision)
    cpu_s = spec.precision == "amp_o2" and spec.world.device == "cpu"
    return replace(width, stream=HALF) if cpu_s else width


@dataclass(frozen=True)
class CellPlan:
    """One cell at one node count: its first run, how many there may be, and what a rank needs.

    `needed_bytes` is what one device must hold: the largest rank on a GPU, all ranks of one
    machine on CPUs.
    """

    spec: RunSpec
    num_runs: int
    memory: Memory
    formula_bytes: int
    needed_bytes: int
    gpus: int
    idle_share: float | None
    """Share of a step in which ranks wait by design: a pipeline's bubble, by its formula."""

    @property
    def hours(self) -> float:
        """Upper bound of the time of all runs, from their time limit."""
        return self.num_runs * self.spec.timeout_seconds / 3600

    def verdict(self, limit: int) -> str:
        """`fits`, `tight` within `MARGIN` of it, or `does not fit`."""
        margin = MARGIN[self.spec.world.device]
        if self.needed_bytes > limit * (1 + margin):
            return "does not fit"
        return "fits" if self.needed_bytes <= limit * (1 - margin) else "tight"


def plan_study(runs: Iterable[ResolvedRun]) -> list[CellPlan]:
    """A plan for each cell and node count, in the order of the study."""
    grouped: dict[tuple[str, int], list[ResolvedRun]] = {}
    for run in runs:
        grouped.setdefault((run.spec.cell, run.spec.world.nodes), []).append(run)
    plans = []
    for members in grouped.values():
        run, spec = members[0], members[0].spec
        memories = [predict(run, rank) for rank in range(run.layout.num_processes)]
        largest = max(memories, key=lambda memory: memory.peak)
        shared = sum(memory.peak for memory in memories[: run.ranks_per_machine])
        plans.append(
            CellPlan(
                spec=spec,
                num_runs=len(members),
                memory=largest,
                formula_bytes=formula_24(run),
                needed_bytes=shared if spec.world.device == "cpu" else largest.peak,
                gpus=spec.world.num_machines * run.gpus_per_machine,
                idle_share=run.strategy.idle_share(spec),
            )
        )
    return plans
