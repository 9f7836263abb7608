"""A plain loop after nanoGPT's published structure (github.com/karpathy/nanoGPT), written anew.

From that structure: fused attention over one projection to query, key and value, a linear layer
without bias tied to the embedding, weight decay on matrices alone, autocast around the forward
pass, the next batch read while the step runs, clipping by the global norm, fused AdamW, gradients
set to None, and the loss read only where it is printed. The model is compiled as a whole.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.contestants.setting import OPTIMISER, Setting, Tokens
from pipeline.study.spec import ModelSpec

NANOGPT = "NANOGPT"
"""Environment variable with the folder of a checkout of github.com/karpathy/nanoGPT."""


class Layer(nn.Module):
    """(batch, context, width) -> same shape."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.heads, width = spec.num_heads, spec.width
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the feed-forward network, each on a residual stream."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before_attention(x)).split(width, dim=2)
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in (q, k, v)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).contiguous().view(batch, length, width))
        hidden = F.gelu(self.up(self.before_mlp(x)), approximate="tanh")
        out: Tensor = x + self.down(hidden)
        return out


class Model(nn.Module):
    """The same function as `pipeline.models.gpt2`, with the same number of parameters."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.tokens = nn.Embedding(spec.vocab_size, spec.width)
        self.places = nn.Embedding(spec.context, spec.width)
        self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.num_layers))
        self.norm = nn.LayerNorm(spec.width)
        self.head = nn.Linear(spec.width, spec.vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                residual = name.endswith(("out.weight", "down.weight"))
                scale = math.sqrt(2 * spec.num_layers) if residual else 1
                nn.init.normal_(parameter, std=0.02 / scale)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats per token."""
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


class Plain:
    """The loop."""

    def __init__(self, setting: Setting) -> None:
        torch.manual_seed(11)
        self.device, self.batch = torch.device(setting.device), setting.batch
        self.model, self.optimiser = self.make(setting)
        self.autocast = (
            nullcontext()
            if setting.precision == "fp32"
            else torch.autocast(setting.device, dtype=torch.bfloat16)
        )
        self.forward = torch.compile(self.model) if setting.compiled else self.model
        self.tokens, self.step = Tokens(setting), 0
        self.next = self._read()

    def make(self, setting: Setting) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The model on its device, and its optimiser."""
        model = Model(setting.model).to(self.device)
        matrices = [p for p in model.parameters() if p.dim() > 1]
        vectors = [p for p in model.parameters() if p.dim() < 2]
        decay = {"params": matrices, "weight_decay": OPTIMISER.weight_decay}
        optimiser = torch.optim.AdamW(
            [decay, {"params": vectors, "weight_decay": 0.0}],
            lr=OPTIMISER.learning_rate,
            betas=(OPTIMISER.beta1, OPTIMISER.beta2),
            fused=True,
        )
        return model, optimiser

    def loss(self) -> Tensor:
        """Of the batch that was read last."""
        loss: Tensor = self.forward(*self.next)
        return loss

    def _read(self) -> tuple[Tensor, Tensor]:
        self.step += 1
        ids = self.tokens.slice(self.step, 0, self.batch)
        # nanoGPT's loop stacks its sequences, and its model asks for tensors of one piece.
        inputs, targets = (torch.from_numpy(one).contiguous() for one in ids)
        return self._moved(inputs), self._moved(targets)

    def _moved(self, ids: Tensor) -> Tensor:
        if self.device.type != "cuda":
            return ids
        return ids.pin_memory().to(self.device, non_blocking=True)

    def train(self, steps: int) -> float:
        """Forward, read the next batch, backward, clip, step; the loss is read once, at the end."""
        loss = torch.zeros(())
        for _ in range(steps):
            with self.autocast:
                loss = self.loss()
            self.next = self._read()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(self.model.parameters(), OPTIMISER.max_grad_norm)
            self.optimiser.step()
            self.optimiser.zero_grad(set_to_none=True)
        return float(loss.detach())


class NanoGpt(Plain):
    """nanoGPT's own model and optimiser, of the checkout that `NANOGPT` names, in the same loop.

    On a CPU its train.py enters no autocast, whatever its `dtype`; here it does, as all others do.
    """

    def make(self, setting: Setting) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Both as `model.py` makes them, with biases as GPT-2 has them and without dropout."""
        sys.path.insert(0, os.environ[NANOGPT])
        theirs, spec = importlib.import_module("model"), setting.model
        config = theirs.GPTConfig(
            block_size=spec.context, vocab_size=spec.vocab_size, n_layer=spec.num_layers,
            n_head=spec.num_heads, n_embd=spec.width, dropout=0.0, bias=True,
        )  # fmt: skip
        model = theirs.GPT(config).to(self.device)
        rates = OPTIMISER.weight_decay, OPTIMISER.learning_rate
        betas = OPTIMISER.beta1, OPTIMISER.beta2
        return model, model.configure_optimizers(*rates, betas, setting.device)

    def loss(self) -> Tensor:
        """Beside the logits, which nobody reads."""
        found: tuple[Tensor, Tensor] = self.forward(*self.next)
        return found[1]
