"""GPT-2 as a torch module: pre-norm blocks, tied embeddings, no dropout.

Dropout is left out on purpose: its mask would depend on how a batch is split over ranks, and then
no two strategies could take the same step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.models import StageCuts, TensorCuts
from pipeline.models.segments import causal_mask, places
from pipeline.study.spec import ModelSpec


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention to earlier positions only, or to those where the mask is true.

    All but the mask are (batch, heads, context, head width).
    """
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)


class Attention(nn.Module):
    """Causal multi-head self-attention: (batch, context, width) -> same shape."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.head_width = spec.width // spec.num_heads
        self.attend: Callable[..., Tensor] = attend
        self.c_attn = nn.Linear(spec.width, 3 * spec.width)
        self.c_proj = nn.Linear(spec.width, spec.width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Cut query, key and value out of one product; for the mask see `attend`."""
        qkv = self.c_attn(x)
        # As many heads as this rank has: a tensor axis cuts the projections, and gathers the
        # sequence for them where it is cut elsewhere.
        heads = (*qkv.shape[:2], -1, self.head_width)
        q, k, v = (part.view(heads).transpose(1, 2) for part in qkv.chunk(3, dim=2))
        y = self.attend(q, k, v, mask)
        out: Tensor = self.c_proj(y.transpose(1, 2).flatten(2))
        return out


class Mlp(nn.Module):
    """Position-wise feed-forward network with a hidden layer four times as wide."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.c_fc = nn.Linear(spec.width, 4 * spec.width)
        self.c_proj = nn.Linear(4 * spec.width, spec.width)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the tanh form of GELU, as GPT-2 does."""
        out: Tensor = self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))
        return out


class Block(nn.Module):
    """One transformer layer with layer norm before each half."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(spec.width)
        self.attn = Attention(spec)
        self.ln_2 = nn.LayerNorm(spec.width)
        self.mlp = Mlp(spec)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(batch, context, width) -> same shape; for the mask see `attend`."""
        x = x + self.attn(self.ln_1(x), mask)
        x = x + self.mlp(self.ln_2(x))
        return x


class Gpt2(nn.Module):
    """The language model; the output layer shares its weight with the token embedding.

    `cross_entropy` is the loss of logits (tokens, vocabulary) and targets (tokens,), of which
    `first_column` is the first of this rank. Rows from `vocab_size` on pad the vocabulary: zeros,
    and as their columns are masked they have no gradient and stay so.
    """

    tensor_cuts = TensorCuts(
        columns={"attn.c_attn": 3, "mlp.c_fc": 1},
        rows=("attn.c_proj", "mlp.c_proj"),
        embedding="wte",
        head="lm_head",
        positions="wpe",
    )
    stage_cuts = StageCuts(before=("wte", "wpe"), after=("ln_f", "lm_head"))

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec, self.width = spec, spec.width
        self.cross_entropy: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
        self.wte = nn.Embedding(spec.vocab_size, spec.width)
        self.wpe = nn.Embedding(spec.context, spec.width)
        self.h = nn.ModuleList(Block(spec) for _ in range(spec.num_layers))
        self.ln_f = nn.LayerNorm(spec.width)
        self.lm_head = nn.Linear(spec.width, spec.vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        self.first_column = 0
        # Residual projections begin smaller: the GPT-2 report.
        residual = 0.02 / math.sqrt(2 * spec.num_layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=residual if "c_proj" in name else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        if more := spec.vocab_rows - spec.vocab_size:
            # All else has the values that it has without these rows. A weight without memory names
            # what it pads, whose values `models.build.Initial` draws.
            own = self.wte.weight
            padded: Any = nn.Parameter(F.pad(own.detach(), (0, 0, 0, more)))
            if own.device.type == "meta":
                padded.samestep_pads = own
            self.wte.weight = self.lm_head.weight = padded
            self.wte.num_embeddings = self.lm_head.out_features = spec.vocab_rows

    @property
    def blocks(self) -> nn.ModuleList:
        """The layers that repeat, in their order; each may be compiled or placed by itself."""
        return self.h

    def wrap_attention(self, around: Callable[..., Any]) -> None:
        """Run attention by `around`, which gets what ran it so far, query, key, value and mask."""
        blocks: Any = self.h
        for block in blocks:
            block.attn.attend = partial(around, block.attn.attend)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats per token, a scalar in fp32; targets are (batch, context)."""
        logits = logits.flatten(0, 1).float()
        if self.spec.vocab_rows > self.spec.vocab_size:
            columns = self.first_column + torch.arange(logits.shape[-1], device=logits.device)
            # Finite: a rank whose columns are all masked multiplies some of them by zero.
            lowest = torch.finfo(logits.dtype).min
            logits = logits.masked_fill(columns >= self.spec.vocab_size, lowest)
        return self.cross_entropy(logits, targets.flatten())

    def stage(self, layers: range, *, is_first: bool, is_last: bool) -> Callable[..., Tensor]:
        """The pass through some of the layers, with embedding or output layer at the ends."""

        def run(x: Tensor, segments: Tensor | None = None) -> Tensor:
            mask = None if segments is None else causal_mask(segments)
            if is_first:
                positions = torch.arange(x.shape[1], device=x.device)
                x = self.wte(x) + self.wpe(positions if segments is None else places(segments))
            for layer in layers:
                x = self.h[layer](x, mask)
            if is_last:
                x = self.lm_head(self.ln_f(x))
            return x

        return run

    def logits(self, inputs: Tensor, segments: Tensor | None = None) -> Tensor:
        """Token ids (batch, context) -> logits (batch, context, vocab_rows)."""
        return self.stage(range(len(self.h)), is_first=True, is_last=True)(inputs, segments)

    def forward(
        self, inputs: Tensor, targets: Tensor, weights: None = None, segments: Tensor | None = None
    ) -> Tensor:
        """Mean cross-entropy in nats per token, a scalar in fp32; ids are (batch, context)."""
        return self.loss(self.logits(inputs, segments), targets)
