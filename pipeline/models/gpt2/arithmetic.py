"""Sizes of GPT-2 from its shape alone (no torch): parameters, FLOPs, activations.

What a forward pass keeps follows from the operators of model.py; it was read from torch 2.13 with
`torch.autograd.graph.saved_tensors_hooks`, and tests/unit/planner/test_memory.py holds these sizes
to what the hooks count.
"""

from __future__ import annotations

from pipeline.models import FP32, INT64, Formats
from pipeline.study.spec import ModelSpec


def num_parameters(model: ModelSpec) -> int:
    """Parameters of GPT-2 with tied embeddings: 12 w^2 + 13 w a layer, the rest outside of them."""
    embeddings = (model.vocab_size + model.context) * model.width
    return model.num_layers * layer_parameters(model) + embeddings + 2 * model.width


def layer_parameters(model: ModelSpec) -> int:
    """Parameters of one block."""
    return 12 * model.width**2 + 13 * model.width


def end_parameters(model: ModelSpec) -> tuple[int, int]:
    """Both embeddings; the last layer norm and the output layer, which shares its weight."""
    tokens = model.vocab_size * model.width
    return tokens + model.context * model.width, tokens + 2 * model.width


def flops_per_token(model: ModelSpec) -> float:
    """6 x (weights used in matrix products) + 12 x layers x width x context.

    Of one forward and backward pass (Chowdhery et al. 2022, PaLM, appendix B). The output layer
    counts once; embeddings are look-ups.
    """
    attention = 12.0 * model.num_layers * model.width * model.context
    return 6.0 * product_weights(model) + attention


def product_weights(model: ModelSpec) -> int:
    """Weights that are used in matrix products; the output layer counts once."""
    return 12 * model.num_layers * model.width**2 + model.vocab_size * model.width


def activation_bytes(model: ModelSpec, sequences: int, formats: Formats) -> int:
    """What a forward pass over `sequences` keeps for the backward pass, the loss left out.

    For each token a block keeps 2 inputs of layer norms, 14 values of the width that its products
    take or make (3 inputs of layers, query, key and value, 4 before and 4 after GELU), and the
    statistics of the norms and of attention, which is fused; after the blocks come one layer norm
    and one product. Autocast also keeps a narrow copy of each weight of a product.
    """
    product, norm = formats.product, formats.norm
    block = (2 * norm + 14 * product) * model.width + 4 * norm + FP32 * model.num_heads
    last = (norm + product) * model.width + 2 * norm
    copies = product * product_weights(model) if formats.copies_weights else 0
    return sequences * model.context * (model.num_layers * block + last) + copies


def logit_bytes(model: ModelSpec, sequences: int) -> int:
    """The loss at its peak: log-probabilities and two gradients in fp32, and the token ids."""
    tokens = sequences * model.context
    return tokens * (3 * FP32 * model.vocab_size + 2 * INT64)
