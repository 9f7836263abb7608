"""Sizes of a model of transformers, counted by torch on tensors without memory.

    python -m pipeline.models.transformers.facts '{"family": "transformers", ...}'

prints them as JSON. `arithmetic` keeps what it prints, so that nothing else needs torch for them.
"""

from __future__ import annotations

import json
import re
import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

import torch
import transformers.integrations.moe  # noqa: F401
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from pipeline.errors import StudyError
from pipeline.models.transformers.arithmetic import APART
from pipeline.models.transformers.experts import MIXTURES
from pipeline.models.transformers.model import LanguageModel
from pipeline.study.spec import ModelSpec

_PRODUCTS = ("mm", "addmm")
"""Operators that multiply weights and narrow them under autocast; attention has `bmm`.

Experts have `grouped_mm`, which autocast leaves alone.
"""


def facts(spec: ModelSpec) -> dict[str, Any]:
    """Parameters by name, those of a block, and what a pass over one sequence computes and keeps.

    `forward_flops` are those of a forward pass, `attention_flops` those between query, key and
    value and what attention makes of them, `product_weights` the weights that it multiplies, but
    for experts'; `experts` are the fields of `Experts`, or None. `kept_bytes`, its part in
    one block, what stays of it without attention, and what gradients of activations add to it
    (`Kept.gradients`) are for fp32, autocast and bf16 weights.
    """
    attention_flops = keys = 0

    def counted_apart(attend: Callable[..., Any], *given: Any, **named: Any) -> Any:
        nonlocal attention_flops, keys
        keys = given[2].shape[1] * given[2].shape[3]  # of layer, query, key, value
        before = flops.get_total_flops()
        made = attend(*given, **named)
        attention_flops += flops.get_total_flops() - before
        return made

    def of_experts(tokens: Any, weights: Any, *_: Any, **__: Any) -> int:
        """FLOPs of (tokens, in) times (experts, in, out), each token by one expert."""
        return int(2 * tokens[0] * tokens[1] * weights[2])

    # torch's own grouped_mm of tensors without memory takes bfloat16 alone.
    grouped = mock.patch("transformers.integrations.moe._can_use_grouped_mm", lambda *_: False)
    counted = {torch.ops.transformers.grouped_mm_fallback: of_experts}
    # Positions without values cannot show that a sequence is one document, and needs no mask.
    one_document = mock.patch(
        "transformers.masking_utils.find_packed_sequence_indices", lambda positions: None
    )
    with FakeTensorMode(), grouped, one_document:
        model = LanguageModel(spec)
        ids = torch.zeros((1, spec.context), dtype=torch.int64)
        flops = FlopCounterMode(display=False, custom_mapping=counted)
        model.wrap_attention(counted_apart)
        # Written out in products, attention is counted too.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), flops:
            model.logits(ids)
        model.wrap_attention(None)
        counts = flops.get_flop_counts()["Global"]
        products = sum(n for op, n in counts.items() if op.__name__ in _PRODUCTS)
        kept = {name: _kept(model, ids, name == "autocast") for name in ("fp32", "autocast")}
        torch.set_default_dtype(torch.bfloat16)
        try:
            kept["bf16"] = _kept(LanguageModel(spec), ids, False)
        finally:
            torch.set_default_dtype(torch.float32)
        experts: list[float] | None = None
        if model.is_mixture:
            config = model.model.config
            held = sum(p.numel() for one in model.experts for p in one.parameters())
            chosen, balance = config.num_experts_per_tok, config.router_aux_loss_coef
            experts = [config.num_local_experts, chosen, held, balance]
        return {
            "parameters": {name: [*p.shape] for name, p in model.named_parameters()},
            "experts": experts,
            "block_parameters": sum(p.numel() for p in model.blocks[0].parameters()),
            "forward_flops": sum(counts.values()),
            "attention_flops": attention_flops,
            "product_weights": products // (2 * spec.context),
            "kept_bytes": kept,
            "ends": _ends(model, ids),
            "cuts": _cuts(model, spec, ids, keys),
            "file_names": _file_names(model),
        }


def _file_names(model: LanguageModel) -> dict[str, Any]:
    """Fields of `FileNames`: the class's own names, those of tied parameters, and older ones.

    A file of the class below the head lacks the prefix, as GPT-2's on the hub does; the first files
    of BERT call weight and bias of a LayerNorm gamma and beta.
    """
    below, own = f"{model.model.base_model_prefix}.", dict[Any, list[str]]()
    for name, parameter in model.model.named_parameters(remove_duplicate=False):
        own.setdefault(parameter, []).append(name)

    def forms(names: list[str]) -> list[str]:
        older = [re.sub(r"(?<=LayerNorm\.)weight$", "gamma", name) for name in names]
        both = [*names, *(re.sub(r"(?<=LayerNorm\.)bias$", "beta", name) for name in older)]
        return list(dict.fromkeys([*both, *(name.removeprefix(below) for name in both)]))

    ignored = getattr(model.model, "_keys_to_ignore_on_load_unexpected", None) or ()
    return {
        "names": {f"model.{names[0]}": forms(names) for names in own.values()},
        "layers": [f"{model.blocks_name}.", f"{model.blocks_name.removeprefix(below)}."],
        # The library itself skips these two, buffers of former versions, for every class.
        "ignored": [*sorted(ignored), r"rotary_emb\.inv_freq", r"(^|\.)position_ids$"],
    }


def _ends(model: LanguageModel, ids: Tensor) -> list[int] | str:
    """Fields of `Ends`, or why the model has no stages.

    Blocks must hand on hidden states alone: gradients of anything else would stay on their stage.
    """
    try:
        cuts = model.stage_cuts
    except StudyError as error:
        return str(error)
    handed: list[Any] = []
    strange = ""

    def enter(block: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        nonlocal strange
        states, *others = *given, *named.values()
        if any(one.requires_grad for one in tree_leaves(others) if isinstance(one, Tensor)):
            strange = "get more than hidden states"
        if handed and states is not handed[-1]:
            strange = "do not get what those before them give"

    with ExitStack() as hooks:
        for block in model.blocks:
            hooks.enter_context(block.register_forward_pre_hook(enter, with_kwargs=True))
            hooks.enter_context(
                block.register_forward_hook(lambda *given: handed.append(given[-1]))
            )
        model.logits(ids)
    if strange:
        return f"the layers of {type(model.model).__name__} {strange}, so no stage is cut"
    before, after = (
        {p for name in names for p in model.get_submodule(name).parameters()}
        for names in (cuts.before, cuts.after)
    )
    return [sum(p.numel() for p in some) for some in (before, after, before & after)]


def _cuts(model: LanguageModel, spec: ModelSpec, ids: Tensor, keys: int) -> dict[str, Any] | str:
    """Fields of `AxisCuts`, or why a tensor axis cannot cut the model."""
    try:
        cuts = model.tensor_cuts
    except StudyError as error:
        return str(error)
    named = dict(model.named_modules())
    columns, rows, partial = (
        [name for name in named if name.endswith(ends)]
        for ends in (tuple(cuts.columns), cuts.rows, cuts.partial)
    )
    parts = {named[name].weight for name in (*columns, *rows, cuts.embedding, cuts.head)}
    parts |= {named[name].bias for name in (*columns, cuts.head)} - {None}
    embedding, head = ({*named[name].parameters()} for name in (cuts.embedding, cuts.head))
    heads = {"num_heads": ("attention heads", spec.num_heads)}
    groups = getattr(model.model.config, "num_key_value_heads", None) or spec.num_heads
    if groups != spec.num_heads:
        heads["config.num_key_value_heads"] = ("key and value heads", groups)
    config, of_experts = model.model.config, 0
    if cuts.experts:
        parts |= {p for one in model.experts for p in one.parameters()}
        of_experts = config.num_experts_per_tok
        heads["config.intermediate_size"] = ("features of an expert", config.intermediate_size)
    called: list[str] = []
    with torch.no_grad(), ExitStack() as hooks:
        for name, module in model.blocks[0].named_modules():
            if [*module.parameters(recurse=False)]:
                note = module.register_forward_hook(lambda *_, name=name: called.append(name))
                hooks.enter_context(note)
        model.logits(ids)
    exits = len(rows) // spec.num_layers
    # Of these classes it is known that they have positions from outside alone. In a window that is
    # shorter than the sequence a token sees others than the mask of a context axis says.
    known = spec.architecture in (*APART, *MIXTURES)
    fused = config._attn_implementation == "sdpa"
    window = getattr(config, "sliding_window", None) or spec.context
    return {
        "parameters": sum(p.numel() for p in parts),
        "ends": [sum(p.numel() for p in some) for some in (embedding, head, embedding & head)],
        "partial": sum(p.numel() for name in partial for p in named[name].parameters()),
        "entries": len({n.rpartition(".")[0] for n in columns}) // spec.num_layers
        + 2 * bool(of_experts),
        "weights": of_experts,
        "exits": exits,
        # What comes after the last one makes a recomputation go on to it.
        "again": exits - called[-1].endswith(cuts.rows),
        "heads": heads,
        "sequences": False,
        "keys": keys if known and fused and window >= spec.context else 0,
    }


def _kept(model: LanguageModel, ids: Tensor, autocast: bool) -> dict[str, int]:
    """Bytes kept for the backward pass as `_held` has them, also where attention is recomputed.

    And what its gradients add to them.
    """
    kept = _held(model, ids, autocast) | {"gradients": _added(model, ids, autocast)}
    # Random numbers of tensors without memory cannot be set back.
    model.wrap_attention(partial(checkpoint, use_reentrant=False, preserve_rng_state=False))
    without = _held(model, ids, autocast)["whole"]
    model.wrap_attention(None)
    return kept | {"without_attention": without}


class _Living(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the tensors that operators made and that still live, after each operator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now, self.after = 0, list[int]()
        self.storages = weakref.WeakSet[torch.UntypedStorage]()

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = operator(*args, **(kwargs or {}))
        storages = (one.untyped_storage() for one in tree_leaves(made) if isinstance(one, Tensor))
        for storage in storages:
            if storage not in self.storages:
                self.storages.add(storage)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._freed, storage.nbytes())
        self.after.append(self.now)
        return made

    def _freed(self, size: int) -> None:
        self.now -= size


def _added(model: LanguageModel, ids: Tensor, autocast: bool) -> int:
    """Most bytes that live in the backward pass of a sequence beyond those at its beginning.

    The difference of passes over three and two sequences, operator by operator: so gradients of
    weights, which have one size for any batch, are left out. Gradients of logits are all one number
    here, as the loss counts them.
    """
    curves = []
    for sequences in (2, 3):
        with _Living() as living:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                logits = tree_leaves(model.logits(ids.expand(sequences, -1).clone()))
            begins = len(living.after)
            gradients = [torch.ones((), dtype=one.dtype).expand_as(one) for one in logits]
            torch.autograd.backward(logits, gradients)
        model.zero_grad()
        # A first forward pass has operators that no later one has.
        curves.append(living.after[begins:])
    each = [three - two for two, three in zip(*curves, strict=True)]
    return int(max(each) - each[0])


def _held(model: LanguageModel, ids: Tensor, autocast: bool) -> dict[str, int]:
    """Bytes that a forward pass keeps for the backward pass but the loss's, and its first block's.

    Each storage counts once. Weights do not count, copies of them by autocast do.
    """
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    seen: dict[int, Tensor] = {}
    inside: set[int] = set()
    within = [False]

    def pack(tensor: Tensor) -> Tensor:
        key = tensor.untyped_storage()._cdata
        if key not in weights and tensor.is_floating_point():
            seen.setdefault(key, tensor)
            if within[0]:
                inside.add(key)
        return tensor

    block = model.blocks[0]
    with (
        block.register_forward_pre_hook(lambda *_: within.__setitem__(0, True)),
        block.register_forward_hook(lambda *_: within.__setitem__(0, False)),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        # Held until the bytes are counted: a storage that is freed gives its address away.
        held = model.logits(ids)
    size = {key: tensor.untyped_storage().nbytes() for key, tensor in seen.items()}
    del held
    return {"whole": sum(size.values()), "block": sum(size[key] for key in inside)}


if __name__ == "__main__":
    print(json.dumps(facts(ModelSpec(**json.loads(sys.argv[1])))))
