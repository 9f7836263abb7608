"""Weights of transformers' GPT2LMHeadModel for our GPT-2, to hold one against the other."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from pipeline.models.gpt2.model import Gpt2

# transformers stores these as Conv1D, (in, out); nn.Linear stores (out, in).
TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def load_transformers(model: Gpt2, state: Mapping[str, Tensor]) -> None:
    """Load weights in GPT2LMHeadModel's format; its tied head stays tied to the embedding."""
    ours = {
        key.removeprefix("transformer."): value.t() if key.endswith(TRANSPOSED) else value
        for key, value in state.items()
        if not key.endswith((".attn.bias", ".attn.masked_bias"))
    }
    model.load_state_dict(ours)
