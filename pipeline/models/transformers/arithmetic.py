"""Sizes of a model of transformers, without torch in this process.

`facts` counts them in a process of its own, once for each model; they are kept in the user's cache
folder, by the model and the versions of both libraries.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import lru_cache
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pipeline.errors import SamestepError, StudyError, refuse
from pipeline.files import cache_folder, write_text
from pipeline.models import FP32, AxisCuts, Ends, Experts, FileNames, Kept, Shape, Widths
from pipeline.study.spec import ATTENTION, ModelSpec, ObjectiveSpec

if TYPE_CHECKING:
    from pipeline.models.transformers.model import LanguageModel

FACTS = 11
"""Version of what `facts` prints."""
LOADED = 84 * 2**20
"""Resident bytes of transformers 5.23 with the module of a class, measured once on Linux x86-64
after torch and the loop were imported."""

OBJECTIVES = {"ForMaskedLM": "masked", "ForPreTraining": "masked_next_sentence"}
"""Objectives by the end of the name of a class; all others are causal."""
APART = (
    "GPT2LMHeadModel", "GPTNeoXForCausalLM", "Gemma3ForCausalLM", "LlamaForCausalLM",
    "MistralForCausalLM", "PhiForCausalLM", "Qwen3ForCausalLM",
)  # fmt: skip
"""Classes that were seen to keep documents apart by their positions; OPT's do not, and say nothing
of it."""


def examples() -> dict[str, ModelSpec]:
    """A model of each class that the parity suite trains, of the sizes of our GPT-2.

    Four tensor ranks divide its heads of keys and values.
    """
    feed_forward: dict[str, Any] = {"intermediate_size": 48}
    grouped = feed_forward | {"num_key_value_heads": 4}
    configs: dict[str, dict[str, Any]] = {
        "LlamaForCausalLM": grouped,
        "GPT2LMHeadModel": {},
        "GPTNeoXForCausalLM": feed_forward,
        "Qwen3ForCausalLM": grouped | {"head_dim": 8},
        "MistralForCausalLM": grouped,
        "Gemma3ForCausalLM": grouped | {"head_dim": 8},
        "PhiForCausalLM": feed_forward,
        "OPTForCausalLM": {"ffn_dim": 48, "word_embed_proj_dim": 32},
        "BertForMaskedLM": feed_forward,
        "BertForPreTraining": feed_forward,
        "MixtralForCausalLM": grouped | {"num_local_experts": 4, "router_aux_loss_coef": 0.1},
    }
    vocabulary = {"BertForPreTraining": 305}  # three special tokens more
    return {
        name: ModelSpec("transformers", 2, 32, 8, 16, vocabulary.get(name, 302), name, config)
        for name, config in configs.items()
    }


def label(model: ModelSpec) -> tuple[str, str]:
    """The class with its starting weights, and the library that it comes from."""
    begun = model.weights_sha256 and f" begun from weights of SHA-256 {model.weights_sha256[:12]}"
    return f"{model.architecture}{begun or ''}", "wolf2020"


def objectives(model: ModelSpec) -> tuple[str, ...]:
    """The one that the end of the class's name tells."""
    ends = (kind for end, kind in OBJECTIVES.items() if str(model.architecture).endswith(end))
    return (next(ends, "causal"),)


def check(model: ModelSpec, objective: ObjectiveSpec | None) -> None:
    """Raise StudyError for what the spec alone shows; `facts` builds the model and tells the rest.

    Besides, where documents are to be kept apart by a class of which that is not known.
    """
    most = (model.config or {}).get("max_position_embeddings")
    apart = objective is not None and objective.reset_positions
    refuse(StudyError, "", [
        (not model.architecture,
         "model.architecture is missing: name the class of a model for the family transformers, "
         "such as LlamaForCausalLM"),
        (isinstance(most, int) and model.context > most,
         f"model.context {model.context} is over the {most} positions that the model has by its "
         "config (max_position_embeddings); lower model.context"),
        (model.pad_vocab_to,
         f"model.pad_vocab_to {model.pad_vocab_to}: models of transformers are not padded; leave "
         "it out, or raise model.vocab_size, whose further columns then count in the loss"),
        (apart and model.architecture not in APART,
         f"objective.reset_positions: it is not known that {model.architecture} keeps documents "
         f"apart; leave it out, or use gpt2 or one of {', '.join(APART)}"),
    ])  # fmt: skip


def build(model: ModelSpec) -> LanguageModel:
    from pipeline.models.transformers.model import LanguageModel

    return LanguageModel(model)


def num_parameters(model: ModelSpec) -> int:
    return sum(map(prod, parameter_shapes(model).values()))


def experts(model: ModelSpec) -> Experts | None:
    """Those of a mixture."""
    counted = _facts(model)["experts"]
    return Experts(*counted) if counted else None


def layer_parameters(model: ModelSpec) -> int:
    """Parameters of the first block."""
    return int(_facts(model)["block_parameters"])


def flops_per_token(model: ModelSpec) -> float:
    """Three times a forward pass, as a backward pass multiplies each pair of matrices twice."""
    return 3.0 * float(_facts(model)["forward_flops"]) / model.context


def recomputed_flops_per_token(model: ModelSpec, what: bool | str = True) -> float:
    """A forward pass without the output layer: at most what recomputing all blocks adds.

    Or what attention multiplies of query, key and value.
    """
    if what == ATTENTION:
        if not (attention := float(_facts(model)["attention_flops"])):
            raise StudyError(
                f"the layers of {model.architecture} do not call an attention function of "
                "transformers, so it is not recomputed alone; set workload.recompute to full"
            )
        return attention / model.context
    head = 2.0 * model.vocab_size * model.width
    return float(_facts(model)["forward_flops"]) / model.context - head


def product_weights(model: ModelSpec) -> int:
    """Weights that are used in matrix products but for experts', which autocast does not copy."""
    return int(_facts(model)["product_weights"])


def kept(model: ModelSpec, sequences: int, widths: Widths) -> Kept:
    """Those of one sequence as often, but for autocast's narrow copies of weights.

    Where no kernel of attention is fused, its scores are among them.
    """
    copies = widths.copied(product_weights(model))
    kind = "fp32" if widths.product == FP32 else "autocast" if widths.copied(1) else "bf16"
    one = _facts(model)["kept_bytes"][kind]
    return Kept(
        whole=sequences * (one["whole"] - copies) + copies,
        block=sequences * max(0, one["block"] - copies // model.num_layers),
        attention=sequences * (one["whole"] - one["without_attention"]),
        gradients=sequences * one["gradients"],
    )


def ends(model: ModelSpec) -> Ends:
    """Those that the class's pipeline plan names; raises StudyError where it has none."""
    return Ends(*_plan(model, "ends"))


def axis_cuts(model: ModelSpec) -> AxisCuts:
    """Numbers for a tensor axis; raises StudyError where the class has no plan that we follow."""
    cuts = _plan(model, "cuts")
    return AxisCuts(**cuts | {"ends": Ends(*cuts["ends"])})


def _plan(model: ModelSpec, name: str) -> Any:
    # Where there is none, `facts` has the reason in its place.
    if isinstance(plan := _facts(model)[name], str):
        raise StudyError(f"{plan}; use a strategy that cuts no layers, such as sharded")
    return plan


def parameter_shapes(model: ModelSpec) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape) for name, shape in _facts(model)["parameters"].items()}


def file_names(model: ModelSpec) -> FileNames:
    return FileNames(**_facts(model)["file_names"])


def _unknown(reason: str) -> Callable[..., NoReturn]:
    """A size that is not known, for which the study is refused."""

    def refuse(model: ModelSpec, *_: int) -> NoReturn:
        raise StudyError(reason.format(model.architecture))

    return refuse


boundary_shapes = _unknown(
    "the shapes of what modules of {} give are not known, so none can be annotated; use another "
    "strategy"
)
operators = _unknown("the operators of {} are not known, so its steps are not predicted")
products = _unknown("the linear layers of a block of {} are not known, so a plan cuts none")


def loaded_bytes() -> int:
    """The library and the module of a class: measured, see `LOADED`."""
    return LOADED


def shape(model: ModelSpec) -> Shape:
    """Of a class with blocks as Llama's: four products of attention and three gated ones.

    Or three of each expert, the first two in one parameter.
    """
    sizes = parameter_shapes(model)
    query, key, gate, both = (
        next((size for name, size in sizes.items() if name.endswith(f".layers.0.{part}")), (0,))
        for part in (
            "self_attn.q_proj.weight", "self_attn.k_proj.weight", "mlp.gate_proj.weight",
            "mlp.experts.gate_up_proj",
        )
    )  # fmt: skip
    ffn = both[1] // 2 if len(both) > 1 else gate[0]
    if query[0] != model.width or not ffn:
        raise StudyError(
            f"the cost model does not know the layers of {model.architecture}, so none of its "
            "layouts is predicted"
        )
    tied = not any(name.endswith("lm_head.weight") for name in sizes)
    return Shape(ffn, key[0] * model.num_heads // model.width, gated=True, tied=tied)


def _facts(model: ModelSpec) -> dict[str, Any]:
    # Where it comes from and which weights it begins with change no size.
    plain = replace(model.without_places(), weights_sha256=None)
    return _counted(json.dumps(asdict(plain), sort_keys=True))


@lru_cache(maxsize=64)
def _counted(model: str) -> dict[str, Any]:
    """Facts of a model, given as JSON; raises StudyError where transformers refuses it."""
    versions = [FACTS, *(version(name) for name in ("transformers", "torch"))]
    key = hashlib.sha256(json.dumps([model, *versions]).encode()).hexdigest()
    file = cache_folder() / "models" / f"{key}.json"
    facts: dict[str, Any]
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        facts = _count(model)
        with suppress(OSError, SamestepError):  # then the next process counts again
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, json.dumps(facts))
    return facts


def _count(model: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "pipeline.models.transformers.facts", model]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word of it"])[-1]
        raise StudyError(
            last.partition("StudyError: ")[2]
            or f"the model cannot be built: {last}; where the defaults of the class do not fit "
            "these sizes, set what differs in model.config"
        )
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts
