"""Mixtures of experts: the loss that keeps a router from sending all tokens to the same experts.

The library's own (Fedus et al. 2021, arXiv 2101.03961, equations 4 to 6) multiplies two means over
all tokens of a call, so the mean over two micro-batches is not that of both together, and a step
would depend on the layout. Here each sequence has its own, and the mean over the sequences of the
global batch is trained, like the sequence-wise balance loss of DeepSeek-V3 (arXiv 2412.19437). It
adds up over ranks and micro-batches, and nothing more is sent. Of one sequence both are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

MIXTURES = ("MixtralForCausalLM",)
"""Classes whose router is a softmax over all experts, and which hand out its logits."""


def imbalance(
    router_logits: Sequence[Tensor],
    chosen: int,
    sequences: int,
    mean: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """The router's loss of each sequence, (sequences,) in fp32; least where experts are used alike.

    `router_logits` are those of each layer, (sequences x context, experts), and a token goes to
    `chosen` experts. Number of experts x sum over them of the share of tokens that go to one, which
    has no gradient, x the mean probability that the router gives it; both over all layers. Where
    ranks have parts of each sequence, `mean` is that of a tensor over them.
    """
    logits = torch.stack([*router_logits])
    shares = logits.view(len(logits), sequences, -1, logits.shape[-1]).softmax(-1)
    goes = torch.zeros_like(shares).scatter_(-1, shares.topk(chosen).indices, 1.0)
    load, probability = (one.float().mean((0, 2)) for one in (goes, shares))
    if mean is not None:
        load, everywhere = mean(torch.stack((load, probability.detach())))
        # The mean over the ranks of the gradients is then that of the whole sequence.
        probability = probability + (everywhere - probability).detach()
    product: Tensor = load * probability
    return shares.shape[-1] * product.sum(-1)
