"""A training step as the model needs it: `jobs_of(row)`, from a row of strings of a points file.

Only what describes the configuration is read, never what was measured. A row that cannot be
predicted raises Refused with the reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

CONFIGURATION = (
    "hardware", "device_gib", "gpus", "gpus_per_node", "node_net_gbps", "model", "family",
    "layers", "hidden", "heads", "kv_heads", "ffn", "gated", "vocab", "seq", "tied",
    "dp", "tp", "cp", "pp", "vpp", "zero", "seq_parallel", "micro", "accum", "global_batch",
    "precision", "recompute", "flash", "optimiser", "framework", "note",
)  # fmt: skip
"""Columns that are read; `note` for what the other columns have no place for (mesh of ZeRO)."""

REFUSED = ("ep", "experts")
"""Columns that are read only to refuse a row where they are over 1."""

TEXTS = (
    "hardware", "model", "family", "precision", "recompute", "optimiser", "framework", "note",
)  # fmt: skip
"""Those of them that hold words; all others hold numbers."""

FRACTIONS = ("device_gib", "node_net_gbps", "accum", "global_batch", "step_s")
MOST = 10_000_000
"""Largest whole number of a column."""


EMPTY = ("", "nan", "none", "null")
"""Texts of a column that say nothing."""


class Refused(Exception):
    """The row cannot be predicted; the text says why."""


class Impossible(Refused):
    """The configuration cannot run on any device; the text says why."""


@dataclass(frozen=True)
class Job:
    """Sizes of one step; `micro` and `accum` are sequences and micro-batches of a data rank.

    `per_micro`: what is asked for is not the step but its share of one micro-batch. `biased`: the
    blocks have biases and dropout, as those of BERT and GPT. `shard`: ranks over which ZeRO cuts.
    `counts`: layers of each stage, where they are stated, and `schedule`. `inside`: the axis of
    neighbours, `tensor` or `pipeline`. A token goes to `chosen` of a layer's `experts`, which are
    cut over `ep` of the data ranks; a layer without a mixture has one.
    """

    hardware: str
    device_gib: float
    gpus: int
    gpus_per_node: int
    node_net_gbps: float
    bert: bool
    biased: bool
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    gated: bool
    vocab: int
    seq: int
    tied: bool
    dp: int
    tp: int
    pp: int
    vpp: int
    zero: int
    shard: int
    seq_parallel: bool
    micro: int
    accum: float
    per_micro: bool
    precision: str
    recompute: str
    flash: bool
    optimiser: str
    framework: str
    note: str
    counts: tuple[int, ...] = ()
    schedule: str = ""
    inside: str = "tensor"
    experts: int = 1
    chosen: int = 1
    ep: int = 1

    @property
    def crosses(self) -> tuple[bool, bool]:
        """True where the tensor axis, and where the pipeline, has ranks on several nodes."""
        several = self.gpus > self.gpus_per_node
        if self.inside == "tensor":
            return self.tp > self.gpus_per_node, self.pp > 1 and several
        return self.tp > 1 and several, self.pp > self.gpus_per_node

    @property
    def order(self) -> str:
        """Schedule of the pipeline, 1F1B or its interleaving where none is stated."""
        return self.schedule or ("interleaved" if self.vpp > 1 else "1f1b")

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.micro * self.seq

    def wide_weights(self, profile: Mapping[str, float]) -> bool:
        """True where weights are in fp32 and products are not; not by every autocast."""
        autocast = re.search(r"\bamp\b", f"{self.precision} {self.framework}".lower())
        return autocast is not None and profile["amp_masters"] > 0

    @property
    def layer_parameters(self) -> float:
        """Weights of the products of one layer, of experts those of a rank."""
        return self._layer_parameters(self.experts // self.ep)

    def _layer_parameters(self, experts: int) -> float:
        attention = 2 * self.hidden**2 + 2 * self.hidden * self.head_size * self.kv_heads
        return attention + experts * (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def head_size(self) -> int:
        """Width of an attention head."""
        return self.hidden // self.heads

    @property
    def flops_per_token(self) -> float:
        """Model FLOPs: 6 a weight of the products, and attention; without recomputation."""
        weights = self.layers * self._layer_parameters(self.chosen) + self.vocab * self.hidden
        return 6.0 * weights + 12.0 * self.layers * self.hidden * self.seq


def number_of(row: Mapping[str, str], name: str) -> float | None:
    """The number in a column, None where it is empty; raises Refused for what is none."""
    text = (row.get(name) or "").strip()
    if text.lower() in EMPTY:
        return None
    if text.lower() in ("true", "false"):
        return float(text.lower() == "true")
    try:
        value = float(text)
    except ValueError:
        raise Refused(f"{name} is {text[:40]!r}, not a number") from None
    if not 0 <= value < 1e15:
        raise Refused(f"{name} is {text[:40]}, outside of 0 to 1e15")
    if name not in FRACTIONS and (value != int(value) or value > MOST):
        raise Refused(f"{name} is {text[:40]}, not a whole number up to {MOST:,}")
    return value


def _needed(row: Mapping[str, str], name: str) -> int:
    value = number_of(row, name)
    if not value:
        raise Refused(f"{name} is not stated")
    return int(value)


def jobs_of(row: Mapping[str, str]) -> list[Job]:
    """The step of a row; several where its layout or micro-batch is not published."""
    if "fp8" in row.get("precision", "").lower() or "fp8" in row.get("note", "").lower():
        raise Refused("FP8 is not modelled")
    if (number_of(row, "cp") or 1) > 1:
        raise Refused("context parallelism is not modelled")
    if any((number_of(row, name) or 1) > 1 for name in REFUSED):
        raise Refused("expert parallelism is not modelled")
    names = f"{row.get('family', '')} {row.get('model', '')}".lower()
    if re.search("moe|mixtral", names):
        raise Refused("mixtures of experts are not modelled")
    if re.search(r"(?<![a-z])(m?t5|bart|whisper|vit)(?![a-z])", names):
        raise Refused("encoders with a decoder and models of images or sound are not modelled")
    whole = _on_data_axis(row)
    batch, accum = number_of(row, "global_batch"), number_of(row, "accum")
    jobs = []
    for dp, tp, pp in _layouts(row, whole):
        micros = [whole.micro]
        if number_of(row, "micro") is None:
            if not batch:
                raise Refused("neither the micro-batch nor the global batch is stated")
            most = batch / dp / (accum or 1)
            micros = [m for m in (1, 2, 4, 8, 16, 32, 64) if m <= most] or [1]
            if accum:
                micros = [max(1, round(most))]
        laid = replace(whole, dp=dp, tp=tp, pp=pp, vpp=whole.vpp if pp > 1 else 1,
                       shard=min(dp, whole.shard))  # fmt: skip
        for micro in micros:
            # The global batch is what a step trains on, also where the factors give another one.
            if steps := batch / (micro * dp) if batch else accum:
                jobs.append(replace(laid, micro=micro, accum=max(steps, 1.0)))
            else:
                # Nothing tells how many micro-batches a step has: seconds are those of one of them,
                # and what a step does once is shared by one of them, or by very many.
                jobs += [replace(laid, micro=micro, accum=n, per_micro=True) for n in (1.0, 1024.0)]
    if not jobs:
        raise Refused(f"no layout of {whole.gpus} GPUs is possible with what is stated")
    return jobs


def _layouts(row: Mapping[str, str], job: Job) -> list[tuple[int, int, int]]:
    """Sizes of data, tensor and pipeline axis: the one stated, or those that may have been used."""
    stated, gpus = [number_of(row, name) for name in ("dp", "tp", "pp")], job.gpus
    if sum(size is None for size in stated) <= 1:
        known = math.prod(int(size or 1) for size in stated)
        if known > gpus or gpus % known or (None not in stated and known != gpus):
            raise Refused(f"dp x tp x pp is {known}, which does not fill {gpus} GPUs")
        dp, tp, pp = (int(size) if size else gpus // known for size in stated)
        if pp > job.layers:
            raise Impossible(f"pp is {pp}, more stages than layers")
        return [(dp, tp, pp)]
    kept = []
    for tp, pp in product((1, 2, 4, 8, 16), range(1, min(job.layers, gpus) + 1)):
        if gpus % (tp * pp) or job.heads % tp or job.layers % pp or tp > job.gpus_per_node:
            continue
        layout = (gpus // (tp * pp), tp, pp)
        if all(s in (None, size) for s, size in zip(stated, layout, strict=True)):
            kept.append(layout)
    return kept


def _on_data_axis(row: Mapping[str, str]) -> Job:
    """The step as if all GPUs were on the data axis, with one micro-batch."""
    gpus, hidden, heads = (_needed(row, name) for name in ("gpus", "hidden", "heads"))
    if heads > hidden:
        raise Refused(f"heads is {heads}, more than hidden, {hidden}")
    zero = int(number_of(row, "zero") or 0)
    if zero > 3:
        raise Refused(f"zero is {zero}; expected 0 to 3")
    family = (row.get("family") or "").lower()
    a_node = int(number_of(row, "gpus_per_node") or min(gpus, 8))
    recompute = (row.get("recompute") or "").strip().lower() or "none"
    if recompute not in ("none", "selective", "full"):
        raise Refused(f"recompute is {recompute[:40]!r}; expected none, selective or full")
    network = number_of(row, "node_net_gbps")
    if gpus > a_node and not network:
        raise Refused("node_net_gbps is not stated for several nodes")
    note = (row.get("note") or "").lower()
    pieces = note.partition("optimiser states over ")[2].split()
    shard = int(pieces[0]) if pieces and pieces[0].isdigit() else gpus
    if "hsdp" in note or "hybrid shard" in note:
        shard = a_node
    return Job(
        hardware=row.get("hardware") or "", device_gib=number_of(row, "device_gib") or 0.0,
        gpus=gpus, gpus_per_node=a_node, node_net_gbps=network or 0.0,
        bert="bert" in family, biased=re.search("bert|gpt", family) is not None,
        layers=_needed(row, "layers"),
        hidden=hidden, heads=heads, kv_heads=int(number_of(row, "kv_heads") or heads),
        ffn=int(number_of(row, "ffn") or 4 * hidden), gated=bool(number_of(row, "gated")),
        vocab=_needed(row, "vocab"), seq=_needed(row, "seq"),
        tied=number_of(row, "tied") != 0, dp=gpus, tp=1, pp=1, vpp=int(number_of(row, "vpp") or 1),
        zero=zero, shard=shard,
        seq_parallel=bool(number_of(row, "seq_parallel")), micro=int(number_of(row, "micro") or 1),
        accum=1.0, per_micro=False, precision=(row.get("precision") or "").lower(),
        recompute=recompute, flash=bool(number_of(row, "flash")),
        optimiser=(row.get("optimiser") or "adam").lower(), framework=row.get("framework") or "",
        note=note,
    )  # fmt: skip
