"""A language model of transformers: its own modules and forward pass, our initial weights.

The class comes from the installed library, never from a hub, so no foreign code runs: of a hub a
configuration and weights are data (`pipeline.study.model_files`). Dropout and
a router's noise are off, since they would depend on how a batch is split over ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from functools import cache, partial
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.initialization import no_init_weights
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from pipeline.errors import StudyError, refuse
from pipeline.models import StageCuts, TensorCuts
from pipeline.models.segments import causal_mask, places
from pipeline.models.transformers.arithmetic import objectives
from pipeline.models.transformers.experts import MIXTURES, imbalance
from pipeline.study.spec import ModelSpec

_CUTS = ("colwise", "rowwise", "replicated_with_grad_allreduce")
"""Words of a tensor plan that are followed, in the order of our columns, rows and partial."""

_EXPERTS = "moe_tp_experts"
_EXPERT_CUTS = {"packed_colwise": (1, 2), "rowwise": (2, 1)}
"""Its words for a module of experts, and for parameters (experts, out, in) within: dim and runs."""

_ATTENTION = ("sdpa", "eager")
"""torch's own kernels, and attention written out in products, which keeps its scores."""

_BERT = {
    "attention.self.query": "colwise",
    "attention.self.key": "colwise",
    "attention.self.value": "colwise",
    "attention.output.dense": "rowwise",
    "intermediate.dense": "colwise",
    "output.dense": "rowwise",
}
_PLANS = {"BertForMaskedLM": _BERT, "BertForPreTraining": _BERT}
"""Ours, of classes that have none."""

_STAGES = {
    "GPT2LMHeadModel": ("wte", "wpe", "h", "ln_f"),
    "OPTForCausalLM": (
        "decoder.embed_tokens",
        "decoder.embed_positions",
        "decoder.layers",
        "decoder.final_layer_norm",
    ),
    "BertForMaskedLM": ("embeddings", "encoder.layer"),
    "BertForPreTraining": ("embeddings", "encoder.layer", "pooler"),
}
"""Our pipeline plans of classes that have none: the parts below the head, in their order."""


class LanguageModel(nn.Module):
    """A model of transformers with the loss over given targets, and that of a mixture's router."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        kind, config = resolve(spec)
        self.width = spec.width
        self.bidirectional = "causal" not in objectives(spec)
        self.is_mixture = spec.architecture in MIXTURES
        self.cross_entropy: Callable[[Tensor, Tensor, Tensor | None], Tensor] = cross_entropy
        self.context_axis: Any = None
        """Set by `cut_sequences`; None where this rank has whole sequences."""
        with no_init_weights():
            self.model = kind._from_config(config)
        self.model.tie_weights()
        # Normal(0, std) for matrices, zeros for biases, and norms that scale by one: each whole and
        # in place, as `Initial` repeats it.
        std = float(getattr(config, "initializer_range", 0.02))
        for module in self.model.modules():
            # These norms scale by one plus their weight, which therefore begins at zero.
            offset = type(module).__name__.startswith("Gemma")
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=std)
                elif name == "bias" or (name == "weight" and offset):
                    nn.init.zeros_(parameter)
                elif name == "weight":
                    nn.init.ones_(parameter)
                else:
                    raise StudyError(
                        f"{kind.__name__} has a parameter {name} in "
                        f"{type(module).__name__}, which is no matrix, bias or norm; use an "
                        "architecture of attention and feed-forward layers"
                    )
        lists = (one for one in self.model.named_modules() if isinstance(one[1], nn.ModuleList))
        self.blocks_name = next((name for name, one in lists if len(one) == spec.num_layers), "")
        """Name of the layers that repeat, below `model`."""
        if not self.blocks_name:
            raise StudyError(
                f"{spec.architecture} has no list of {spec.num_layers} layers that repeat; use an "
                "architecture with one"
            )

    @property
    def blocks(self) -> nn.ModuleList:
        """The layers that repeat, in their order."""
        return cast(nn.ModuleList, self.model.get_submodule(self.blocks_name))

    @property
    def experts(self) -> list[nn.Module]:
        """Modules of a mixture that have all experts of a layer, each a slice of the parameters.

        Their forward pass is that of (tokens, width), numbers of the experts that each token goes
        to, (tokens, chosen), and weights of these experts' outputs, which are added up.
        """
        parts = self.model.modules() if self.is_mixture else ()
        return [part for part in parts if any(p.dim() > 2 for p in part.parameters(recurse=False))]

    def wrap_attention(self, around: Callable[..., Any] | None) -> None:
        """Run by `around`, outside of what ran it so far, or plainly, the attention of the layers.

        Layers that call no attention function stay as they are; then `facts` counts no FLOPs of it,
        and a study is refused.
        """
        _exchange(self.model.config._attn_implementation)
        parts: Any = self.blocks.modules()
        for part in parts:
            before = getattr(part, "around_attention", ())
            part.around_attention = () if around is None else (*before, around)

    def cut_sequences(self, axis: Any) -> None:
        """Take this rank's tokens of each sequence along a context axis.

        `axis` is a `pipeline.strategies.context.step.ContextAxis`. Only of classes of which
        `AxisCuts.keys` says that they get all positions from outside.
        """
        self.context_axis = axis

        def around(
            run: Any, layer: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **named: Any
        ) -> Any:
            def inner(*given: Tensor) -> Any:
                return run(layer, *given, **named)[0].transpose(1, 2)

            # A rotation leaves query and key in fp32 under autocast, which the kernel would narrow.
            q, k = q.to(v.dtype), k.to(v.dtype)
            out = axis.attend(inner, q, k, v, mask if mask.shape[-1] > 1 else None)
            return out.transpose(1, 2), None

        self.wrap_attention(around)

    @property
    def tensor_cuts(self) -> TensorCuts:
        """The class's own `base_model_tp_plan`, or ours; StudyError where there is none to follow.

        Embedding and output layer are cut over the vocabulary, whatever the plan says of them.
        """
        own = type(self.model).__name__
        plan = _PLANS.get(own) or getattr(self.model.config, "base_model_tp_plan", None)
        if not plan:
            raise StudyError(f"{own} has no tensor plan (base_model_tp_plan), so nothing is cut")
        kinds = {name.rpartition("*.")[2]: kind for name, kind in plan.items()}
        mixtures = tuple(f"{name}." for name, kind in kinds.items() if kind == _EXPERTS)
        inside = [n for n, kind in kinds.items() if n.startswith(mixtures) and kind in _EXPERT_CUTS]
        experts = {n.rpartition(".")[2]: _EXPERT_CUTS[kinds.pop(n)] for n in inside}
        kinds = {name: kind for name, kind in kinds.items() if kind != _EXPERTS}
        if strange := sorted(set(kinds.values()) - {*_CUTS}):
            raise StudyError(f"the tensor plan of {own} has {strange[0]}, which is not known here")
        columns, rows, partial = (tuple(n for n in kinds if kinds[n] == one) for one in _CUTS)
        modules = dict(self.named_modules())
        for name in (name for name in modules if name.endswith((*columns, *rows))):
            if type(modules[name]) is not nn.Linear:
                raise StudyError(f"{own} has {name}, which is no plain linear layer to cut")
            parent = name.rpartition(".")[0]
            for child, module in modules[parent].named_children():
                beside = name.endswith(columns) and not f"{parent}.{child}".endswith(tuple(kinds))
                if beside and [*module.parameters()]:
                    raise StudyError(f"the tensor plan of {own} leaves out {parent}.{child}")
        table, head = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        plain = type(table) is nn.Embedding and table.padding_idx is None
        if not plain or type(head) is not nn.Linear:
            raise StudyError(f"{own} has no plain embedding and output layer: {table}, {head}")
        names = {module: name for name, module in modules.items()}
        return TensorCuts(
            dict.fromkeys(columns, 1), rows, names[table], names[head], "", partial, experts
        )

    @property
    def stage_cuts(self) -> StageCuts:
        """The class's own `base_model_pp_plan`, or ours; StudyError where there is none to follow.

        What is outside of the model below the head comes after it.
        """
        own, base = type(self.model).__name__, self.model.base_model
        plan = _STAGES.get(own) or getattr(self.model.config, "base_model_pp_plan", None)
        if not plan:
            raise StudyError(f"{own} has no pipeline plan (base_model_pp_plan), so no stage is cut")
        modules = dict(self.named_modules())
        named = [f"model.{self.model.base_model_prefix}.{name}" for name in plan]
        parts = [name for name in named if name in modules]
        if (layers := f"model.{self.blocks_name}") not in parts:
            raise StudyError(f"the pipeline plan of {own} does not name its layers")
        place = parts.index(layers)
        heads = [f"model.{n}" for n, part in self.model.named_children() if part is not base]
        cuts = StageCuts(tuple(parts[:place]), (*parts[place + 1 :], *heads))
        covered = {p for name in (*parts, *heads) for p in modules[name].parameters()}
        for name, parameter in self.named_parameters():
            if parameter not in covered:
                raise StudyError(f"the pipeline plan of {own} leaves out {name}")
        return cuts

    def stage(self, layers: range, *, is_first: bool, is_last: bool) -> Callable[..., Any]:
        """The pass through some of the layers, by the class's own code around them.

        So it makes positions and masks itself, by the shape of what it gets. What it makes of that
        before the first of these layers, and after the last, counts at the ends alone.
        """
        if is_first and is_last:
            return self.outputs
        before, after = _Others(), _Others()
        blocks = self.blocks
        chosen = nn.ModuleList(
            before if n < layers.start else after if n >= layers.stop else block
            for n, block in enumerate(blocks)
        )
        parent, _, name = self.blocks_name.rpartition(".")
        owner = self.model.get_submodule(parent)

        def run(x: Tensor, segments: Tensor | None = None) -> Any:
            before.given = x
            given = {"input_ids" if is_first else "inputs_embeds": x, **self.sides(x, segments)}
            setattr(owner, name, chosen)
            try:
                if is_last:
                    return _logits(self.model(**given))
                self.model.base_model(**given)
                assert after.given is not None
                return after.given
            finally:
                setattr(owner, name, blocks)
                before.given = after.given = None

        return run

    def logits(self, inputs: Tensor, segments: Tensor | None = None) -> Any:
        """Token ids (batch, context) -> logits (batch, context, vocab_size).

        Of BERT's two heads also those of the second one, (batch, 2).
        """
        return _logits(self.model(input_ids=inputs, **self.sides(inputs, segments)))

    def outputs(self, inputs: Tensor, segments: Tensor | None = None) -> Any:
        """Logits for `loss`, and of a mixture its router's loss of each sequence, (batch,)."""
        if not self.is_mixture:
            return self.logits(inputs, segments)
        # The class with its head would add the library's own loss, of whole sequences alone.
        made = self.model.base_model(
            input_ids=inputs, output_router_logits=True, **self.sides(inputs, segments)
        )
        logits = self.model.get_output_embeddings()(made.last_hidden_state)
        chosen, axis = self.model.config.num_experts_per_tok, self.context_axis
        return logits, imbalance(made.router_logits, chosen, len(inputs), axis and axis.mean)

    def sides(self, x: Tensor, segments: Tensor | None) -> dict[str, Any]:
        """Arguments of the class besides `x`: for two segments types and a mask of the padding.

        Of documents the places: from those that begin anew it makes a mask for each. Of cut
        sequences the places of this rank's tokens, and a mask of whole ones, or of one number where
        none is needed: the class hands four dims on as they are.
        """
        if self.context_axis is not None:
            if segments is None:
                mask = x.new_ones((1, 1, 1, 1), dtype=torch.bool)
                whole = torch.arange(x.shape[1], device=x.device)
            else:
                mask, whole = causal_mask(segments), places(segments)
            positions = self.context_axis.own_positions(whole).view(-1, x.shape[1])
            return {"use_cache": False, "attention_mask": mask, "position_ids": positions}
        if segments is None:
            return {"use_cache": False}
        if not self.bidirectional:
            return {"use_cache": False, "position_ids": places(segments)}
        mask, types = (segments > 0).long(), (segments > 1).long()
        return {"use_cache": False, "attention_mask": mask, "token_type_ids": types}

    def loss(self, logits: Any, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Cross-entropy in nats, a scalar in fp32; targets and weights are (batch, context).

        The mean over the tokens, or with weights the weighted sum. Where there are two heads, the
        first place has target and weight of the second one, which needs weights. That of a router
        is added, of whose sequences each counts as much as its tokens do.
        """
        if isinstance(logits, tuple) and self.is_mixture:
            logits, each = logits
            balance: Tensor = each.mean() if weights is None else each @ weights.sum(1)
            share: float = self.model.config.router_aux_loss_coef
            return self.loss(logits, targets, weights) + share * balance
        if isinstance(logits, tuple):
            logits, follows = logits
            if weights is not None:
                second = cross_entropy(follows.float(), targets[:, 0], weights[:, 0])
                others = torch.arange(targets.shape[1], device=targets.device) > 0
                return second + self.loss(logits, targets, weights * others)
        logits, labels = logits.flatten(0, 1).float(), targets.flatten()
        return self.cross_entropy(logits, labels, None if weights is None else weights.flatten())

    def forward(
        self,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """The `loss` of token ids (batch, context)."""
        return self.loss(self.outputs(inputs, segments), targets, weights)


@cache
def _exchange(kind: str) -> None:
    """Have layers with `around_attention` run transformers' attention function of that name by it.

    Its table holds functions of (layer, query, key, value, mask, ...) for all classes, but not
    `eager`, of which each file of classes has its own.
    """
    table: Any = ALL_ATTENTION_FUNCTIONS
    shared = table.get(kind)

    def attend(layer: nn.Module, *given: Any, **named: Any) -> Any:
        own = shared or sys.modules[type(layer).__module__].eager_attention_forward
        run: Any = own
        for around in getattr(layer, "around_attention", ()):
            run = partial(around, run)
        return run(layer, *given, **named)

    table.register(kind, attend)


def _logits(output: Any) -> Any:
    """Those of the one head, or of both."""
    if "prediction_logits" in output:
        return output.prediction_logits, output.seq_relationship_logits
    return output.logits


class _Others(nn.Module):
    """In place of the layers of other stages: hands hidden states on, or those `given` instead."""

    def __init__(self) -> None:
        super().__init__()
        self.given: Tensor | None = None

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
        """(batch, context, width) -> same shape."""
        if self.given is None:
            self.given = hidden_states
        return self.given


def cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean over the tokens, or with weights the weighted sum; logits are (tokens, vocabulary)."""
    if weights is None:
        return F.cross_entropy(logits, targets)
    return F.cross_entropy(logits, targets, reduction="none") @ weights


def resolve(spec: ModelSpec) -> tuple[Any, Any]:
    """The class of `spec.architecture` and its configuration; raises StudyError.

    The five sizes of a spec have the names that all configurations of transformers know; `config`
    gives what else differs from the class's defaults. With a `model_type` it is that of a
    config.json: it may have more positions than a sequence, and names that the class does not know
    have no effect, as in the library itself.
    """
    own, masked = str(spec.architecture), MODEL_FOR_MASKED_LM_MAPPING_NAMES
    # Several types may make models of one class.
    known_pairs = [*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items(), ("bert", "BertForPreTraining")]
    known_pairs += [pair for pair in masked.items() if pair[1].endswith("ForMaskedLM")]
    types = {name: model_type for model_type, name in known_pairs}
    if own not in types:
        near = get_close_matches(own, types, n=3) or ["LlamaForCausalLM", "GPTNeoXForCausalLM"]
        raise StudyError(
            f"model.architecture {spec.architecture!r} is no language model of transformers "
            f"{transformers.__version__}; use one such as {', '.join(near)}"
        )
    sizes = {
        "hidden_size": spec.width,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.context,
    }
    given = dict(spec.config or {})
    model_type = given.pop("model_type", None)
    if model_type is None:
        model_type = types[own]
        _check_names(given, transformers.CONFIG_MAPPING[model_type](), sizes)
    elif (model_type, own) not in known_pairs:
        raise StudyError(
            f"model.config is of the type {model_type!r}, and model.architecture {own} of the type "
            f"{types[own]}; give one of that type"
        )
    else:
        # Which id pads is the objective's to say: the class would leave its row untrained.
        given.pop("pad_token_id", None)
    known = transformers.CONFIG_MAPPING[model_type]
    tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    try:
        config = known(**{**sizes, **tokens, **given})
    except Exception as error:
        # Of pydantic-like validators, each with an exception of its own.
        raise StudyError(
            f"model.config does not fit {known.__name__}: {' '.join(str(error).split())}"
        ) from error
    del sizes["max_position_embeddings"]
    groups = getattr(config, "num_key_value_heads", None)
    causal = "causal" in objectives(spec)
    decodes = getattr(config, "is_decoder", causal)
    experts = [name for name in vars(config) if name.startswith(("num_experts", "num_local_exp"))]
    refuse(StudyError, f"{own} ", [
        *((getattr(config, name, size) != size,
           f"has {name} {getattr(config, name, size)} by model.config, and {size} by the sizes of "
           "model; state one of them") for name, size in sizes.items()),
        (isinstance(groups, int) and (groups < 1 or spec.num_heads % groups),
         f"has {groups} key and value heads (model.config.num_key_value_heads), which do not "
         f"divide the {spec.num_heads} heads of model.num_heads; set it to a divisor"),
        (model_type in masked and causal != decodes,
         f"with model.config.is_decoder {decodes} sees the tokens that it is to predict or not "
         f"those it may; set it to {str(causal).lower()}"),
        (experts and own not in MIXTURES,
         f"is a mixture of experts ({', '.join(experts[:1])}), whose router has a loss of its own "
         f"that is not trained here; use {' or '.join(MIXTURES)}, or a dense one"),
    ])  # fmt: skip
    for name in vars(config):
        if ("drop" in name or "jitter" in name) and isinstance(getattr(config, name), float):
            setattr(config, name, 0.0)
    return getattr(transformers, own), config


def _check_names(given: Mapping[str, Any], known: Any, sizes: Collection[str]) -> None:
    """Raise StudyError for a name that the configuration `known` lacks, or that is a size."""
    names = [*vars(known), *getattr(type(known), "attribute_map", {}), "attn_implementation"]
    for name, value in given.items():
        near = get_close_matches(name, names, n=3)
        refuse(StudyError, f"model.config.{name} ", [
            (name not in names,
             f"is unknown to {type(known).__name__}; "
             + (f"use one such as {', '.join(near)}" if near else "leave it out")),
            (name in sizes,
             "is set by num_layers, width, num_heads, context and vocab_size of the study's "
             "model; leave it out of config"),
            (name == "attn_implementation" and value not in _ATTENTION,
             f"is {value!r}; use one of {', '.join(_ATTENTION)}: others come from a hub or are not "
             "installed"),
        ])  # fmt: skip
