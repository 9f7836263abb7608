"""GPT-2: transformers' numbers, initial values without memory, recomputation, packed documents."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from pipeline import models
from pipeline.errors import StudyError
from pipeline.models import (
    Family,
    build,
    family,
    flops_per_token,
    num_parameters,
    tensor_shapes,
)
from pipeline.models.build import build_model, deferred_model, recompute_blocks
from pipeline.models.gpt2 import model as gpt2
from pipeline.models.gpt2.model import attend
from pipeline.models.transformers.arithmetic import APART
from pipeline.study.spec import ATTENTION, ModelSpec
from tests.parity.cases import Case

SPEC = ModelSpec("gpt2", num_layers=2, width=32, num_heads=4, context=16, vocab_size=61)
PADDED = replace(SPEC, pad_vocab_to=16)


def make(seed: int) -> gpt2.Gpt2:
    model = build_model(SPEC, seed)
    assert isinstance(model, gpt2.Gpt2)
    return model


def ids() -> torch.Tensor:
    return torch.randint(0, 61, (3, 16), generator=torch.Generator().manual_seed(1))


def test_logits_equal_those_of_transformers_weights() -> None:
    """Linear layers are stored as Conv1D there, (in, out)."""
    from transformers import GPT2Config, GPT2LMHeadModel  # one process of a session runs this

    sizes = {"n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 4}
    torch.manual_seed(3)
    config = GPT2Config(vocab_size=61, bos_token_id=0, eos_token_id=0, **sizes)
    theirs, ours = GPT2LMHeadModel(config).eval(), make(0)
    kinds = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    ours.load_state_dict(
        {
            name.removeprefix("transformer."): one.t() if name.endswith(kinds) else one
            for name, one in theirs.state_dict().items()
        }
    )
    torch.testing.assert_close(ours.logits(ids()), theirs(ids()).logits, rtol=1e-5, atol=1e-5)


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


def test_both_families_have_all_that_a_family_has() -> None:
    names = sorted(path.parent.name for path in models.FOLDER.glob("*/arithmetic.py"))
    assert names == ["gpt2", "transformers"]
    assert all(isinstance(models.family(replace(SPEC, family=name)), Family) for name in names)


def test_an_unknown_family_is_refused_with_those_there_are() -> None:
    with pytest.raises(StudyError, match=r"pipeline/models; use one of gpt2, transformers$"):
        build_model(ModelSpec("llama", 1, 8, 1, 4, 8), seed=0)


class Scaled(nn.Module):
    """Weights that are changed after they were drawn, one of them after another was."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)
        with torch.no_grad():
            self.a.weight.mul_(0.5)
            nn.init.normal_(self.b.weight, std=0.1)
            self.a.weight.add_(1.0)


def rejected() -> nn.Module:
    """torch draws these again until all are in bounds, so their number depends on the values."""
    made = nn.Linear(3, 4)
    nn.init.trunc_normal_(made.weight)
    return made


def rows() -> nn.Module:
    """Part of a parameter is set."""
    made = nn.Embedding(4, 3)
    nn.init.zeros_(made.weight[0].data)
    return made


def assigned(value: Tensor) -> nn.Module:
    return nn.ParameterList([nn.Parameter(value)])


def replaced(monkeypatch: Any, make: Any) -> None:
    """Make it the model of every family."""
    monkeypatch.setattr(build, "family", lambda _: SimpleNamespace(build=lambda spec: make()))


@pytest.mark.parametrize("case", ["padded", "changed after they were drawn"])
def test_values_are_those_of_a_model_that_was_built_at_once(case, monkeypatch) -> None:
    spec = PADDED if case == "padded" else SPEC
    if case.startswith("changed"):
        replaced(monkeypatch, Scaled)
    whole, before = dict(build_model(spec, 7).named_parameters()), torch.get_rng_state()
    model, initial = deferred_model(spec, 7)
    found = dict(initial.values(whole.keys()))
    assert torch.equal(torch.get_rng_state(), before), "that of the process is left alone"
    assert all(parameter.is_meta for parameter in model.parameters())
    assert [name for name, _ in model.named_parameters()] == list(whole)
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name], whole[name]) for name in whole)


@pytest.mark.parametrize(
    "make",
    [lambda: assigned(torch.ones(3)), lambda: assigned(torch.rand(3)), rejected, rows],
    ids=["assigned", "drawn", "rejected", "rows"],
)
def test_an_initialisation_that_cannot_be_repeated_is_refused(monkeypatch, make) -> None:
    replaced(monkeypatch, make)
    with pytest.raises(StudyError, match=r"use torch\.nn\.init on each whole parameter"):
        deferred_model(SPEC, 3)


IDS = torch.arange(64).view(4, 16) % SPEC.vocab_size


def passes(recompute: Any, dropout: float = 0.0) -> tuple[Tensor, dict[str, Any]]:
    """Loss and gradients of one pass forward and backward; dropout in both halves of a block."""

    def dropped(*given: Any) -> Tensor:
        return nn.functional.dropout(attend(*given), dropout)

    with mock.patch("pipeline.models.gpt2.model.attend", dropped if dropout else attend):
        model: Any = build_model(SPEC, 0)
        if dropout:
            for block in model.blocks:
                block.mlp = nn.Sequential(block.mlp, nn.Dropout(dropout))
        recompute_blocks(model, recompute)
    torch.manual_seed(1)
    loss = model(IDS, IDS)
    torch.rand(3)  # what comes between the passes must not matter
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("what", [True, ATTENTION, (1,)])
def test_loss_and_gradients_have_the_same_bits_with_dropout(what) -> None:
    """Without, they have in the parity suite."""
    (loss, gradients), (again, recomputed) = (passes(r, 0.5) for r in (False, what))
    assert torch.equal(loss, again) and gradients.keys() == recomputed.keys()
    for name, gradient in gradients.items():
        assert torch.equal(gradient, recomputed[name]), name


def test_blocks_stay_what_they_are() -> None:
    model: Any = build_model(SPEC, 0)
    blocks, kinds = list(model.blocks), {type(block) for block in model.blocks}
    recompute_blocks(model)
    assert list(model.blocks) == blocks
    assert all(isinstance(block, tuple(kinds)) for block in blocks)
    replica = blocks[0]._replicate_for_data_parallel()
    assert type(replica) is type(blocks[0]) and "forward" not in vars(replica)


def test_what_is_recomputed_is_what_torch_counts() -> None:
    """Its counter leaves out attention on a CPU, of which one formula is a third of the other."""
    counted = []
    for recompute in (False, True, (0,)):
        with FlopCounterMode(display=False) as counter:
            passes(recompute)
        counted.append(counter.get_total_flops())
    attention = 4.0 * SPEC.num_layers * SPEC.width * SPEC.context
    assert counted[0] == IDS.numel() * (flops_per_token(SPEC) - 3 * attention)
    more = family(SPEC).recomputed_flops_per_token(SPEC) - attention
    assert counted[1] - counted[0] == IDS.numel() * more
    assert counted[2] - counted[0] == IDS.numel() * more / 2


@pytest.mark.parametrize(("kernel", "share"), [("FLASH_ATTENTION", 1.0), ("MATH", 0.5)])
def test_attention_is_recomputed_whole_or_but_for_its_last_product(kernel, share) -> None:
    """A fused kernel is one operator; written out, torch stops when it has the scores."""

    def fused(q: Any, *_: Any, **__: Any) -> int:
        return int(4 * torch.Size(q).numel() * q[2])

    own = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: fused}
    counted = []
    for what in (False, ATTENTION):
        counter = FlopCounterMode(display=False, custom_mapping=own)
        with sdpa_kernel(getattr(SDPBackend, kernel)), counter:
            passes(what)
        counted.append(counter.get_total_flops())
    more = family(SPEC).recomputed_flops_per_token(SPEC, ATTENTION)
    assert counted[1] - counted[0] == share * IDS.numel() * more > 0


SEGMENTS = torch.tensor([[1, 1, 1, 1, 2, 3, 3, 3, 3, 3, 3, 4, 4, 4, 4, 4], [1] * 16])


@pytest.mark.parametrize("architecture", [None, *APART])
def test_a_document_has_the_logits_that_it_has_alone(architecture: str | None) -> None:
    model: Any = build_model(replace(Case("single", architecture=architecture)).model, 0)
    ids = torch.randint(0, 300, (2, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        packed = model.logits(ids, SEGMENTS)
        for row, line in enumerate(SEGMENTS):
            for number in line.unique():
                own = line == number
                alone = model.logits(ids[row : row + 1, own])[0]
                torch.testing.assert_close(packed[row, own], alone, rtol=1e-5, atol=1e-5)
