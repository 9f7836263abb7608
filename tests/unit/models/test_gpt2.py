"""GPT-2: the same numbers as transformers' GPT2LMHeadModel."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from pipeline import models
from pipeline.errors import StudyError
from pipeline.models import Family, flops_per_token, num_parameters, tensor_shapes
from pipeline.models.build import build_model
from pipeline.models.gpt2 import model as gpt2
from pipeline.study.spec import ModelSpec
from tests.parity.cases import Case

if TYPE_CHECKING:  # each process of a session imports this file, one runs it
    from transformers import GPT2LMHeadModel

SPEC = ModelSpec("gpt2", num_layers=2, width=32, num_heads=4, context=16, vocab_size=61)
PADDED = replace(SPEC, pad_vocab_to=16)


def reference() -> GPT2LMHeadModel:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=61,
        n_positions=16,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(3)
    return GPT2LMHeadModel(config).eval()


def make(seed: int) -> gpt2.Gpt2:
    model = build_model(SPEC, seed)
    assert isinstance(model, gpt2.Gpt2)
    return model


def ids() -> torch.Tensor:
    return torch.randint(0, 61, (3, 16), generator=torch.Generator().manual_seed(1))


def test_logits_equal_those_of_transformers_weights() -> None:
    """Linear layers are stored as Conv1D there, (in, out)."""
    theirs, ours = reference(), make(0)
    kinds = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    ours.load_state_dict(
        {
            name.removeprefix("transformer."): one.t() if name.endswith(kinds) else one
            for name, one in theirs.state_dict().items()
        }
    )
    torch.testing.assert_close(ours.logits(ids()), theirs(ids()).logits, rtol=1e-5, atol=1e-5)


def test_initial_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = make(7).state_dict()
    torch.manual_seed(2)
    second, other = make(7).state_dict(), make(8).state_dict()
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert not torch.equal(first["wte.weight"], other["wte.weight"])


def test_later_tokens_do_not_change_earlier_logits() -> None:
    model, tokens = make(0), ids()
    changed = tokens.clone()
    changed[:, 8:] = 0
    torch.testing.assert_close(model.logits(tokens)[:, :8], model.logits(changed)[:, :8])


def test_a_padded_vocabulary_is_rows_of_zeros_that_stay_zeros() -> None:
    """All other weights have the bits that they have without, and so has the first loss."""
    padded, plain = build_model(PADDED, 7), make(7)
    weights = dict(padded.named_parameters())
    for name, weight in plain.named_parameters():
        assert torch.equal(weights[name][: len(weight)], weight), name
    assert weights["wte.weight"].shape == tensor_shapes(PADDED)["wte.weight"] == (64, 32)
    assert num_parameters(PADDED) == sum(weight.numel() for weight in weights.values())
    assert flops_per_token(PADDED) - flops_per_token(SPEC) == 6 * 3 * 32
    losses = [model(ids(), ids()) for model in (plain, padded)]
    assert losses[0].item() == losses[1].item()
    optimiser = torch.optim.AdamW(padded.parameters(), 0.1)
    losses[1].backward()
    optimiser.step()
    assert not weights["wte.weight"][61:].any()


def test_a_model_of_transformers_is_not_padded() -> None:
    spec = Case("single", architecture="GPT2LMHeadModel").spec(1)
    with pytest.raises(StudyError, match="pad_vocab_to 16: models of transformers are not padded"):
        models.check(replace(spec.model, pad_vocab_to=16), None)


def test_flops_per_token_are_those_of_narayanan_2021_without_recomputation() -> None:
    """Formula 3 there, 96 B s l h^2 (1 + s/(6h) + V/(16 l h)), has 4 passes of the layers for 3."""
    layers, width, context, vocabulary = 2, 32, 16, 61
    per_layer = 24 * width**2 + 4 * context * width  # forward: 12 h^2 weights, scores and sum
    forward = layers * per_layer + 2 * width * vocabulary
    assert flops_per_token(SPEC) == 3 * forward
    published = (
        96 * layers * width**2 * (1 + context / (6 * width) + vocabulary / (16 * layers * width))
    )
    assert published == pytest.approx(4 * layers * per_layer + 3 * 2 * width * vocabulary)


def test_both_families_have_all_that_a_family_has() -> None:
    names = sorted(path.parent.name for path in models.FOLDER.glob("*/arithmetic.py"))
    assert names == ["gpt2", "transformers"]
    assert all(isinstance(models.family(replace(SPEC, family=name)), Family) for name in names)


def test_nothing_outside_of_the_families_names_one() -> None:
    """But the versions of libraries that are noted, and the door for a config.json alone."""
    quoted = {f'"{path.parent.name}"' for path in models.FOLDER.glob("*/arithmetic.py")}
    naming = {
        file.relative_to(models.FOLDER.parent).as_posix()
        for file in models.FOLDER.parent.rglob("*.py")
        if not file.is_relative_to(models.FOLDER)
        and any(name in file.read_text(encoding="utf-8") for name in quoted)
    }
    assert naming == {"machine/facts.py", "planner/sizes.py"}
    assert models.example() == models.examples()["gpt2"], "the one that all strategies train"


def test_a_text_has_the_name_of_a_family_or_a_class() -> None:
    names = [models.label(name) for name in ("gpt2", "LlamaForCausalLM", "OfAnArchive")]
    assert names == ["GPT-2", "LlamaForCausalLM", "OfAnArchive"]


def test_an_unknown_family_is_refused_with_those_there_are() -> None:
    with pytest.raises(StudyError, match=r"pipeline/models; use one of gpt2, transformers$"):
        build_model(ModelSpec("llama", 1, 8, 1, 4, 8), seed=0)


def test_shapes_are_those_of_the_model_s_tensors() -> None:
    model = make(1)
    outputs: dict[str, tuple[int | None, ...]] = {}

    def note(name: str) -> Any:
        def keep(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
            sequences = (None,) if output.dim() == 3 else ()
            outputs[name] = (*sequences, *output.shape[len(sequences) :])

        return keep

    for name, module in model.named_modules():
        module.register_forward_hook(note(name))
    model(ids(), ids())
    parameters = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert tensor_shapes(SPEC) == parameters | {n: s for n, s in outputs.items() if n}
