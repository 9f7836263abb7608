"""Throughput against nodes."""

from __future__ import annotations

from matplotlib.figure import Figure

from pipeline.figures import against_nodes
from pipeline.metrics.results import Results

CAPTION = "Training throughput, with its interval from six repeats on."
COMPARES = {"precision"}


def draw(results: Results) -> Figure:
    """Tokens per second of every cell at every node count, a panel for each link."""
    values = results.pick("cell", "tokens_per_second")
    bases = results.pick("cell", "base_tokens_per_second")
    scale = dict(zip(bases["base"], bases["value"], strict=True))
    return against_nodes.draw(results, values, "Throughput [tokens/s]", scale=scale)
