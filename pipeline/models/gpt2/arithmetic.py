"""Sizes of GPT-2 from its shape alone (no torch): parameters, FLOPs, activations.

What a forward pass keeps follows from the operators of model.py; it was read from torch 2.13 with
`torch.autograd.graph.saved_tensors_hooks`, and tests/unit/planner/test_memory.py holds these sizes
to what the hooks count.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NoReturn

from pipeline.errors import StudyError
from pipeline.models import FP32, AxisCuts, Counts, Ends, Product, Shape, Widths
from pipeline.study.spec import ATTENTION, ModelSpec, ObjectiveSpec

if TYPE_CHECKING:
    from pipeline.models.gpt2.model import Gpt2


def examples() -> dict[str, ModelSpec]:
    """One; eight ranks divide its heads; three, four and eight do not divide its vocabulary."""
    return {"gpt2": ModelSpec("gpt2", 2, 32, 8, 16, 302)}


def label(model: ModelSpec) -> tuple[str, str]:
    return "GPT-2", "radford2019"


def objective(model: ModelSpec) -> str:
    """The next token, also within documents that share a sequence."""
    return "causal"


def check(model: ModelSpec, objective: ObjectiveSpec | None) -> None:
    """Raise StudyError for what is for models of transformers alone."""
    if model.architecture or model.config is not None:
        raise StudyError(
            f"model.family {model.family} with model.architecture {model.architecture} or a "
            "model.config: those are for the family transformers; set it, or leave them out"
        )


def build(model: ModelSpec) -> Gpt2:
    from pipeline.models.gpt2.model import Gpt2

    return Gpt2(model)


def num_parameters(model: ModelSpec) -> int:
    """Parameters of GPT-2 with tied embeddings: 12 w^2 + 13 w a layer, the rest outside of them."""
    embeddings = (model.vocab_rows + model.context) * model.width
    return model.num_layers * layer_parameters(model) + embeddings + 2 * model.width


def active_parameters(model: ModelSpec) -> int:
    return num_parameters(model)


def experts(model: ModelSpec) -> None:
    """None: it is dense."""


def layer_parameters(model: ModelSpec) -> int:
    return 12 * model.width**2 + 13 * model.width


def ends(model: ModelSpec) -> Ends:
    """Both embeddings; the last layer norm and the output layer, which shares its weight."""
    tokens = model.vocab_rows * model.width
    return Ends(tokens + model.context * model.width, tokens + 2 * model.width, tokens)


def flops_per_token(model: ModelSpec) -> float:
    """6 x (weights used in matrix products) + 12 x layers x width x context.

    Of one forward and backward pass (Chowdhery et al. 2022, PaLM, appendix B). The output layer
    counts once; embeddings are look-ups.
    """
    attention = 12.0 * model.num_layers * model.width * model.context
    return 6.0 * product_weights(model) + attention


def recomputed_flops_per_token(model: ModelSpec, what: bool | str = True) -> float:
    """16 x layers x width^2 + 4 x layers x width x context: a second forward pass of the blocks.

    Of attention alone the second term. Of a block's 12 w^2 weights the last 4 w^2, `mlp.c_proj`,
    are left out: torch stops a recomputation once it has what the backward pass needs. Compiled
    blocks may recompute less.
    """
    attention = 4.0 * model.num_layers * model.width * model.context
    return attention if what == ATTENTION else 16.0 * model.num_layers * model.width**2 + attention


def product_weights(model: ModelSpec) -> int:
    return 12 * model.num_layers * model.width**2 + model.vocab_rows * model.width


def axis_cuts(model: ModelSpec) -> AxisCuts:
    """Cut are the weights of products, and the biases of column cuts (7 w)."""
    tokens = model.vocab_rows * model.width
    return AxisCuts(
        parameters=product_weights(model) + 7 * model.num_layers * model.width,
        ends=Ends(tokens, tokens, tokens),
        partial=0,
        entries=2,
        exits=2,
        again=1,
        heads={"num_heads": ("attention heads", model.num_heads)},
        sequences=True,
    )


def activation_bytes(model: ModelSpec, sequences: int, widths: Widths) -> int:
    """Bytes that a forward pass over `sequences` keeps for the backward pass, but the loss.

    For each token a block keeps 2 inputs of layer norms, 14 values of the width that its products
    take or make (3 inputs of layers, query, key and value, 4 before and 4 after GELU), and the
    statistics of the norms and of attention, which is fused; after the blocks come one layer norm
    and one product. Autocast also keeps a narrow copy of each weight of a product.
    """
    blocks = model.num_layers * block_bytes(model, sequences, widths)
    last = (widths.stream + widths.product) * model.width + 2 * widths.stream
    return blocks + sequences * model.context * last + widths.copied(product_weights(model))


def block_bytes(model: ModelSpec, sequences: int, widths: Widths) -> int:
    product, norm = widths.product, widths.stream
    values = (2 * norm + 14 * product) * model.width + 4 * norm + FP32 * model.num_heads
    return sequences * model.context * values


def attention_bytes(model: ModelSpec, sequences: int, widths: Widths) -> int:
    """Statistics that the fused kernel keeps, which go where attention is recomputed.

    Query, key, value and output stay. Where torch has no fused kernel scores go too, which
    `activation_bytes` does not count.
    """
    return sequences * model.context * model.num_layers * FP32 * model.num_heads


def gradient_bytes(model: ModelSpec, sequences: int, widths: Widths) -> int:
    """Three values of the width a token, in the last block; four under autocast.

    There are the gradients of its output, which autocast narrows, and of the hidden layer, 5 or 6
    values; gone are input and output of the last layer norm.
    """
    values = 4 if widths.stream > widths.product else 3
    return sequences * model.context * values * widths.product * model.width


def parameter_shapes(model: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter by its name in model.py; the tied output layer has none."""
    width, hidden = model.width, 4 * model.width
    layers = {
        "ln_1": (width,),
        "attn.c_attn": (3 * width, width),
        "attn.c_proj": (width, width),
        "ln_2": (width,),
        "mlp.c_fc": (hidden, width),
        "mlp.c_proj": (width, hidden),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (model.vocab_rows, width),
        "wpe.weight": (model.context, width),
    }
    for block in range(model.num_layers):
        for name, shape in layers.items():
            shapes[f"h.{block}.{name}.weight"] = shape
            shapes[f"h.{block}.{name}.bias"] = shape[:1]
    return shapes | {"ln_f.weight": (width,), "ln_f.bias": (width,)}


def file_names(model: ModelSpec) -> NoReturn:
    """None: its layers are laid out in another way than in files of the hub."""
    raise StudyError(
        "model.weights: the family gpt2 reads none; use the family transformers with the "
        "architecture GPT2LMHeadModel, or leave them out"
    )


def boundary_shapes(model: ModelSpec) -> dict[str, tuple[int | None, ...]]:
    times_width = {"ln_1": 1, "attn.c_attn": 3, "attn.c_proj": 1, "attn": 1, "ln_2": 1}
    times_width |= {"mlp.c_fc": 4, "mlp.c_proj": 1, "mlp": 1, "": 1}
    tokens = (None, model.context)
    shapes: dict[str, tuple[int | None, ...]] = {
        "wte": (*tokens, model.width),
        "wpe": (model.context, model.width),
    }
    for block in range(model.num_layers):
        for name, times in times_width.items():
            shapes[f"h.{block}.{name}".rstrip(".")] = (*tokens, times * model.width)
    return shapes | {"ln_f": (*tokens, model.width), "lm_head": (*tokens, model.vocab_rows)}


def loaded_bytes() -> int:
    """None beside torch, which every rank has."""
    return 0


def shape(model: ModelSpec) -> Shape:
    """Feed-forward layers of four widths, a key and a value for each head, tied embeddings."""
    return Shape(ffn=4 * model.width, kv_heads=model.num_heads, gated=False, tied=True)


def operators(model: ModelSpec, sequences: int, ranks: int) -> tuple[Counts, Counts, Counts]:
    """Operators of the embedding, of one block, and of the output layer with the loss.

    Of a micro-batch of so many sequences on one of `ranks` tensor ranks, as (kind, sizes) and how
    often. Products are (tokens, inputs, outputs), attention (sequences, heads, positions, width of
    a head), all else (tokens, width).
    """
    tokens, width, vocabulary = sequences * model.context, model.width, model.vocab_rows // ranks
    heads = model.num_heads // ranks
    cut = heads * (width // model.num_heads)
    block = Counter(
        [
            *2 * [("layer_norm", (tokens, width))],
            ("product", (tokens, width, 3 * cut)),
            ("attention", (sequences, heads, model.context, width // model.num_heads)),
            ("product", (tokens, cut, width)),
            ("product", (tokens, width, 4 * cut)),
            ("gelu", (tokens, 4 * cut)),
            ("product", (tokens, 4 * cut, width)),
            *2 * [("add", (tokens, width))],
        ]
    )
    last = {
        ("layer_norm", (tokens, width)): 1,
        ("product", (tokens, width, vocabulary)): 1,
        ("cross_entropy", (tokens, vocabulary)): 1,
    }
    return {("embedding", (tokens, width, vocabulary)): 1}, block, last


def products(model: ModelSpec) -> tuple[Product, ...]:
    """Four, each with a bias."""
    width = model.width
    return (
        Product("attn.c_attn", width, 3 * width, given="ln_1"),
        Product("attn.c_proj", width, width),
        Product("mlp.c_fc", width, 4 * width, given="ln_2"),
        Product("mlp.c_proj", 4 * width, width),
    )
