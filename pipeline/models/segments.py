"""Documents packed into one sequence: places and attention within each of them."""

from __future__ import annotations

import torch
from torch import Tensor


def places(segments: Tensor) -> Tensor:
    """Numbers of segments (batch, context) -> the place of each token in its own, from 0."""
    along = torch.arange(segments.shape[1], device=segments.device)
    begins = segments.diff(dim=1, prepend=torch.zeros_like(segments[:, :1])) != 0
    return along - (along * begins).cummax(dim=1).values


def causal_mask(segments: Tensor) -> Tensor:
    """Numbers of segments (batch, context) -> (batch, 1, context, context), True where attended.

    A token sees those of its own segment up to itself.
    """
    same = segments.unsqueeze(2) == segments.unsqueeze(1)
    return same.tril().unsqueeze(1)
