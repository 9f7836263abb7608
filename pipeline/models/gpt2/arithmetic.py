"""Sizes of GPT-2 from its shape alone (no torch): parameters, FLOPs, activations.

What a forward pass keeps follows from the operators of model.py; it was read from torch 2.13 with
`torch.autograd.graph.saved_tensors_hooks`, and tests/unit/planner/test_memory.py holds these sizes
to what the hooks count.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NoReturn

from pipeline.errors import StudyError
from pipeline.models import FP32, AxisCuts, Counts, Ends, Kept, Product, Shape, Widths
from pipeline.study.spec import ATTENTION, ModelSpec, ObjectiveSpec

if TYPE_CHECKING:
    from pipeline.models.gpt2.model import Gpt2

BLOCK: dict[str, tuple[int, ...]] = {
    "ln_1": (1,),
    "attn.c_attn": (3, 1),
    "attn.c_proj": (1, 1),
    "ln_2": (1,),
    "mlp.c_fc": (4, 1),
    "mlp.c_proj": (1, 4),
}
"""Weights of a block, each with a bias: (features,) or (outputs, inputs), in widths."""


def examples() -> dict[str, ModelSpec]:
    """One; eight ranks divide its heads; three, four and eight do not divide its vocabulary."""
    return {"gpt2": ModelSpec("gpt2", 2, 32, 8, 16, 302)}


def label(model: ModelSpec) -> tuple[str, str]:
    return "GPT-2", "radford2019"


def objectives(model: ModelSpec) -> tuple[str, ...]:
    """The next token, also within documents that share a sequence."""
    return ("causal",)


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
    return model.num_layers * layer_parameters(model) + ends(model).held(True, True)


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
        keys=model.width,
    )


def kept(model: ModelSpec, sequences: int, widths: Widths) -> Kept:
    """Of each token a block keeps what its products and layer norms take or make.

    Two inputs of layer norms, 14 values of the width (3 inputs of layers, query, key and value, 4
    before and 4 after GELU), and the statistics of the norms and of attention, which is fused;
    after the blocks come one layer norm and one product. Autocast also keeps a narrow copy of each
    weight of a product.
    """
    tokens, width = sequences * model.context, model.width
    product, norm = widths.product, widths.stream
    # All that goes where attention is recomputed: query, key, value and output stay. Where torch
    # has no fused kernel scores are kept and go too, which are not counted.
    statistics = FP32 * model.num_heads
    block = tokens * ((2 * norm + 14 * product) * width + 4 * norm + statistics)
    last = tokens * ((norm + product) * width + 2 * norm)
    # In the last block: of its output, which autocast narrows, and of the hidden layer, 5 or 6
    # values; gone are input and output of the last layer norm.
    gradients = tokens * (4 if norm > product else 3) * product * width
    return Kept(
        whole=model.num_layers * block + last + widths.copied(product_weights(model)),
        block=block,
        attention=tokens * model.num_layers * statistics,
        gradients=gradients,
    )


def parameter_shapes(model: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter by its name in model.py; the tied output layer has none."""
    width = model.width
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (model.vocab_rows, width),
        "wpe.weight": (model.context, width),
    }
    for block in range(model.num_layers):
        for name, widths in BLOCK.items():
            size = tuple(number * width for number in widths)
            shapes[f"h.{block}.{name}.weight"], shapes[f"h.{block}.{name}.bias"] = size, size[:1]
    return shapes | {"ln_f.weight": (width,), "ln_f.bias": (width,)}


def file_names(model: ModelSpec) -> NoReturn:
    """None: its layers are laid out in another way than in files of the hub."""
    raise StudyError(
        "model.weights: the family gpt2 reads none; use the family transformers with the "
        "architecture GPT2LMHeadModel, or leave them out"
    )


def boundary_shapes(model: ModelSpec) -> dict[str, tuple[int | None, ...]]:
    times_width = {name: widths[0] for name, widths in BLOCK.items()}
    times_width |= {"attn": 1, "mlp": 1, "": 1}
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
    """Sizes are (tokens, inputs, outputs) of a product, else (tokens, width).

    Those of attention are (sequences, heads, positions, width of a head).
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
    width, given = model.width, {"attn.c_attn": "ln_1", "mlp.c_fc": "ln_2"}
    return tuple(
        Product(name, widths[1] * width, widths[0] * width, given.get(name, ""))
        for name, widths in BLOCK.items()
        if len(widths) == 2
    )
