"""Models of transformers: their sizes, their initial weights, and what is refused in one line."""

import json
import re
import subprocess
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from pipeline import models, strategies
from pipeline.corpus.objectives import Masked, NextSentence
from pipeline.errors import StudyError
from pipeline.files import marks
from pipeline.models import FP32, HALF, Widths
from pipeline.models.build import build_model, recompute_blocks
from pipeline.models.gpt2 import arithmetic as formulas
from pipeline.models.transformers import arithmetic, facts
from pipeline.planner.memory import kept_widths
from pipeline.precision import make_precision
from pipeline.study.spec import ATTENTION, ModelSpec
from tests.counting import here, in_another_process
from tests.parity.cases import ARCHITECTURES, CUT, UNTRIED, Case

GPT2 = ModelSpec("transformers", 2, 32, 4, 16, 302, "GPT2LMHeadModel")
LLAMA = replace(
    GPT2,
    architecture="LlamaForCausalLM",
    config={"intermediate_size": 48, "num_key_value_heads": 2},
)
BERT = replace(GPT2, architecture="BertForMaskedLM", config={"intermediate_size": 48})
PAIRS = replace(BERT, architecture="BertForPreTraining")
MIXTRAL = models.examples()["MixtralForCausalLM"]
OWN = replace(GPT2, family="gpt2", architecture=None)


def test_sizes_that_torch_counts_are_those_of_the_formulas_for_gpt2() -> None:
    alike = ("num_parameters", "layer_parameters", "product_weights", "flops_per_token", "ends")
    for name in alike:
        assert getattr(arithmetic, name)(GPT2) == getattr(formulas, name)(OWN), name
    assert sorted(arithmetic.parameter_shapes(GPT2).values()) == sorted(
        shape[::-1]
        if name.endswith("weight") and len(shape) == 2 and name.startswith("h.")
        else shape
        for name, shape in formulas.parameter_shapes(OWN).items()
    )


def test_sizes_are_counted_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    models.num_parameters(LLAMA)
    arithmetic._counted.cache_clear()
    monkeypatch.setattr(arithmetic, "_count", None)
    assert models.num_parameters(LLAMA) == sum(
        p.numel() for p in build_model(LLAMA, 0).parameters()
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_masters"])
def test_what_was_counted_without_memory_is_what_a_pass_keeps(precision) -> None:
    """Of three sequences, for the counted one."""
    model: Any = build_model(LLAMA, 0)
    make_precision(precision, "cpu").prepare(model, torch.optim.AdamW(model.parameters()))
    ids = torch.zeros((3, LLAMA.context), dtype=torch.int64)
    found = facts._held(model, ids, autocast=precision == "bf16")
    spec = replace(Case("single", precision).spec(1), model=LLAMA)
    said = arithmetic.kept(LLAMA, 3, kept_widths(spec)).whole
    assert said == pytest.approx(found["whole"], rel=0.02)  # sequences share rotary factors


@pytest.mark.parametrize("autocast", [False, True])
def test_gradients_of_activations_of_our_gpt2_are_counted_alike(autocast) -> None:
    """But for the statistics of the last layer norm, two numbers a token."""
    ours: Any = build_model(OWN, 0)
    counted = facts._added(ours, torch.zeros((1, 16), dtype=torch.int64), autocast)
    product = HALF if autocast else FP32
    said = formulas.kept(OWN, 1, Widths(product=product)).gradients
    assert counted == said - 2 * FP32 * OWN.context


def test_what_a_pass_is_said_to_take_is_what_lives_at_its_peak() -> None:
    """Weights and their gradients left out: 64 sequences less 32 of them."""
    spec = replace(LLAMA, vocab_size=40, config={"intermediate_size": 640})
    model, most = build_model(spec, 0), []
    for sequences in (32, 64):
        ids = torch.zeros((sequences, spec.context), dtype=torch.int64)
        with facts._Living() as living:
            model(ids, ids).backward()
        most.append(max(living.after))
        model.zero_grad()
    kept, *_, gradients = arithmetic.kept(spec, 32, Widths(product=FP32))
    assert gradients > 0.2 * kept > models.logit_bytes(spec, 32)
    assert most[1] - most[0] == pytest.approx(kept + gradients, rel=0.02)


def test_sizes_of_bert_are_those_of_its_layers() -> None:
    """Attention both ways is counted whole; the head has a layer of its own and the embeddings."""
    width, wide, context, vocab = BERT.width, 48, BERT.context, BERT.vocab_size
    block = 4 * width**2 + 2 * width * wide
    products = 2 * block + width**2 + width * vocab
    assert arithmetic.product_weights(BERT) == products
    words = vocab * width
    before, head = words + (context + 2 + 2) * width, words + vocab + width**2 + 3 * width
    assert models.family(BERT).ends(BERT) == (before, head, words)
    assert models.axis_cuts(BERT).ends == (words, words + vocab, words)
    assert models.flops_per_token(BERT) == 6 * products + 3 * 2 * 4 * context * width
    assert models.num_parameters(BERT) == sum(p.numel() for p in build_model(BERT, 0).parameters())


def both(spec: ModelSpec) -> tuple[Any, Any]:
    """Our model and transformers' own of a class of BERT, with the same weights."""
    torch.manual_seed(0)
    ours: Any = build_model(spec, 0)
    config = transformers.BertConfig(**ours.model.config.to_dict())
    theirs = getattr(transformers, str(spec.architecture))(config).eval()
    theirs.load_state_dict(ours.model.state_dict())
    return ours, theirs


def test_berts_two_heads_have_the_logits_and_the_loss_of_transformers_own_with_padding() -> None:
    ours, theirs = both(PAIRS)
    windows = torch.randint(0, 9, (16, 17)).numpy()  # 0 ends a document: some are short
    masked = Masked(0.3, mask_token=301, special=frozenset({0, *range(298, 302)}), vocab_size=298)
    pairs = NextSentence(masked, 300, 299, 298, separator=0)
    inputs, targets, weights, segments = map(torch.from_numpy, pairs(windows, 0, 0, 0))
    assert (segments == 0).any() and 0 < targets[:, 0].sum() < len(targets)
    expected = theirs(
        input_ids=inputs,
        attention_mask=(segments > 0).long(),
        token_type_ids=(segments == 2).long(),
        labels=targets.where(weights[:, 0] == 1, -100),
        next_sentence_label=targets[:, 0],
    )
    tokens, follows = ours.logits(inputs, segments)
    for found, wanted in ((tokens, expected.prediction_logits),
                          (follows, expected.seq_relationship_logits)):  # fmt: skip
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    shares = (weights / weights.sum(dim=(0, 2))[:, None]).sum(dim=1)
    loss = ours(inputs, targets, shares, segments)
    torch.testing.assert_close(loss, expected.loss, rtol=1e-5, atol=0)


IDS = torch.randint(0, 302, (4, 16), generator=torch.Generator().manual_seed(1))


def assert_same_gradients(spec: ModelSpec, recompute: Any) -> None:
    """To the bit, with and without recomputation."""
    gradients = []
    for what in (False, recompute):
        model = build_model(spec, 0)
        recompute_blocks(model, what)
        model(IDS, IDS.roll(1)).backward()
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


@pytest.mark.parametrize(("kind", "fused"), [("sdpa", True), ("eager", False)])
def test_blocks_or_attention_are_recomputed_to_the_bit_the_latter_without_scores(
    kind, fused
) -> None:
    spec = replace(LLAMA, config={**(LLAMA.config or {}), "attn_implementation": kind})
    assert_same_gradients(spec, ATTENTION)
    assert_same_gradients(spec, True)
    whole, _, attention, _ = arithmetic.kept(spec, 1, Widths(product=FP32))
    built: Any = build_model(spec, 0)
    counted = facts._kept(built, IDS[:1], autocast=False)
    assert counted["whole"] == whole
    saved = counted["whole"] - counted["without_attention"]
    assert saved == attention
    scores = FP32 * spec.num_layers * spec.num_heads * spec.context**2
    assert (saved < scores) if fused else (saved >= scores)
    flops = models.family(spec).recomputed_flops_per_token(spec, ATTENTION)
    assert flops == 4 * spec.num_layers * spec.context * spec.width


def test_attention_that_is_no_function_of_transformers_is_not_recomputed_alone() -> None:
    spec = replace(GPT2, architecture="CodeGenForCausalLM", config={"rotary_dim": 4})
    with pytest.raises(StudyError, match=r"do not call an attention function .* to full"):
        models.family(spec).recomputed_flops_per_token(spec, ATTENTION)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"architecture": "LamaForCausalLM"}, "use one such as LlamaForCausalLM"),
        ({"architecture": "BertForQuestionAnswering"}, "is no language model"),
        ({"architecture": "BertLMHeadModel", "config": {}}, "is_decoder False.* set it to true"),
        (
            {"architecture": "BertForMaskedLM", "config": {"is_decoder": True}},
            "is_decoder True.* set it to false",
        ),
        ({"config": {"intermedate_size": 3}}, "use one such as intermediate_size"),
        ({"config": {"hidden_size": 3}}, "is set by num_layers, width"),
        ({"config": {"attn_implementation": "flash"}}, "'flash'; use one of sdpa, eager"),
        ({"config": {"num_key_value_heads": 8}}, "has 8 key and value heads .* the 4 heads of"),
        ({"config": {"intermediate_size": "wide"}}, "model.config does not fit LlamaConfig"),
        ({"architecture": "Qwen3MoeForCausalLM", "config": None}, "is a mixture of experts"),
        ({"architecture": "MambaForCausalLM", "config": None}, "attention and feed-forward"),
    ],
    ids=str,
)
def test_a_model_that_cannot_be_made_is_refused(change, said) -> None:
    with pytest.raises(StudyError, match=said):
        build_model(replace(LLAMA, **change), 0)


def test_what_the_other_process_counts_or_refuses_is_said_in_this_one(monkeypatch) -> None:
    """It is the one with the library loaded; the other tests count in their own."""
    known, unknown = (
        json.dumps(asdict(replace(LLAMA, architecture=name)))
        for name in ("LlamaForCausalLM", "Lama")
    )
    assert in_another_process(known) == here(known)

    def ended(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        """As a second such process would end, which would load the library again for seconds."""
        with pytest.raises(StudyError) as refused:
            here(command[-1])
        printed = "".join(traceback.format_exception(refused.value))
        return subprocess.CompletedProcess(command, 1, "", printed)

    monkeypatch.setattr(subprocess, "run", ended)
    with pytest.raises(StudyError, match=r"^model\.architecture 'Lama' is no language"):
        in_another_process(unknown)
    failed = subprocess.CompletedProcess([], 1, "", "RuntimeError: Attempting to broadcast")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(StudyError, match=r"broadcast; .* set what differs in model\.config$"):
        in_another_process(known)


def test_layers_that_get_more_than_hidden_states_are_no_stages(monkeypatch) -> None:
    """What reaches a block past the one before it would have no gradient on its own stage."""
    model: Any = build_model(LLAMA, 0)
    ids = torch.zeros((1, 16), dtype=torch.int64)
    assert facts._ends(model, ids) == list(models.family(LLAMA).ends(LLAMA))
    rotary = model.model.model.rotary_emb

    def trained(*given: Any, real: Any = rotary.forward, **named: Any) -> list[torch.Tensor]:
        return [one.requires_grad_() for one in real(*given, **named)]

    monkeypatch.setattr(rotary, "forward", trained)
    assert "get more than hidden states" in facts._ends(model, ids)


def test_a_tensor_axis_must_divide_the_heads_of_keys_and_values_too() -> None:
    spec = replace(Case("tensor").spec(4), model=replace(LLAMA, num_heads=4))
    with pytest.raises(StudyError) as refused:
        strategies.check([spec])
    assert "4 tensor ranks do not divide 2 key and value heads" in str(refused.value)
    assert "set model.config.num_key_value_heads" in str(refused.value)
    strategies.check([replace(spec, world=replace(spec.world, nodes=2))])
    sequence = replace(spec, world=replace(spec.world, nodes=2), options={"sequence": True})
    with pytest.raises(StudyError, match="family transformers does not know how to do"):
        strategies.check([sequence])


def test_a_context_axis_cuts_sequences_of_classes_that_get_all_positions_from_outside() -> None:
    for name, keys in {"Llama": 16, "GPTNeoX": 32, "Mixtral": 16}.items():
        assert models.axis_cuts(models.examples()[f"{name}ForCausalLM"]).keys == keys, name
    assert models.axis_cuts(models.examples()["BertForMaskedLM"]).keys == 0, "it sees later tokens"
    spec = replace(Case("context").spec(2), model=LLAMA)
    strategies.check([spec])
    for config in ({"attn_implementation": "eager"}, {"sliding_window": 8}):
        name = "MistralForCausalLM" if "sliding_window" in config else "LlamaForCausalLM"
        model = models.examples()[name]
        model = replace(model, config={**(model.config or {}), **config})
        with pytest.raises(StudyError, match=f"is not known to work for {name} as configured"):
            strategies.check([replace(spec, model=model)])


@pytest.mark.parametrize(
    ("strategy", "name", "config", "reason"),
    [
        ("tensor", "PhiForCausalLM", {"qk_layernorm": True}, "leaves out .*self_attn.q_layernorm"),
        ("tensor", "LlamaForCausalLM", {"pad_token_id": 0}, "has no plain embedding"),
        ("tensor", "Phi3ForCausalLM", {}, "has colwise_gather_output, which is not known here"),
        ("pipeline_parallel", "BloomForCausalLM", {}, "BloomForCausalLM has no pipeline plan"),
    ],
)
def test_a_class_that_a_strategy_cannot_cut_says_why(strategy, name, config, reason) -> None:
    """Those of the table are held by the test of the documents."""
    model = replace(GPT2, architecture=name, config=config)
    with pytest.raises(StudyError, match=reason):
        strategies.check([replace(Case(strategy).spec(2), model=model)])


def test_the_documents_have_the_table_of_this_checkout() -> None:
    """The parity suite trains the models that the strategies take."""
    text = Path("docs/models.md").read_text(encoding="utf-8")
    begin, end = marks("models")
    table = text.partition(f"{begin}\n")[2].partition(f"\n{end}")[0]
    assert table == strategies.models_table(), (
        "renew it: python -m pipeline strategies --models --readme docs/models.md"
    )
    heads, _, *rows = [line.split(" | ") for line in table.splitlines() if line[:1] == "|"]
    for column, head in enumerate(heads):
        taken = [row[0].strip("| `") for row in rows if row[column].startswith("yes")]
        for name in {*re.findall(r"`(\w+)`", head)} - {*UNTRIED}:
            trained = ["gpt2", *CUT.get(name, ARCHITECTURES)]
            assert {*trained} <= {*taken} if name == "hybrid" else trained == taken, name


def own_loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The router's loss as transformers has it, over all tokens of a call."""
    made = model.model(input_ids=ids, output_router_logits=True)
    loss: torch.Tensor = load_balancing_loss_func(made.router_logits, 4, 2)
    assert made.aux_loss == loss
    return loss


def test_each_sequence_has_the_loss_of_transformers_and_their_mean_is_trained() -> None:
    model: Any = build_model(MIXTRAL, 0)
    balance = torch.stack([own_loss(model, one[None]) for one in IDS]).mean()
    plain = model.loss(model.logits(IDS), IDS)
    torch.testing.assert_close(model(IDS, IDS), plain + 0.1 * balance, rtol=1e-6, atol=0)
    weighed = model(IDS, IDS, torch.ones(IDS.shape)) / IDS.numel()
    torch.testing.assert_close(weighed, model(IDS, IDS), rtol=1e-6, atol=0)


def test_a_token_counts_with_its_experts_alone_and_memory_holds_all() -> None:
    width, wide, groups = MIXTRAL.width, 48, 4 * MIXTRAL.width // MIXTRAL.num_heads
    expert, vocabulary = 3 * width * wide, MIXTRAL.vocab_size * width
    attention, router = 2 * width**2 + 2 * width * groups, 4 * width
    norms = (2 * MIXTRAL.num_layers + 1) * width
    whole, used = (
        2 * vocabulary + norms + MIXTRAL.num_layers * (attention + router + n * expert)
        for n in (4, 2)
    )
    counted = models.num_parameters(MIXTRAL), models.active_parameters(MIXTRAL)
    assert counted == (whole, used)
    products = used - norms - vocabulary
    assert arithmetic.product_weights(MIXTRAL) == products - MIXTRAL.num_layers * 2 * expert
    scores = 12 * MIXTRAL.num_layers * width * MIXTRAL.context
    assert models.flops_per_token(MIXTRAL) == 6 * products + scores


def test_experts_keep_what_was_counted_without_memory() -> None:
    """More than Llama's layers of the same attention, which torch does otherwise without memory."""
    formats = Widths(product=FP32)
    specs = [models.examples()[name] for name in ("MixtralForCausalLM", "LlamaForCausalLM")]
    counted = [arithmetic.kept(spec, 1, formats).whole for spec in specs]
    built: list[Any] = [build_model(spec, 0) for spec in specs]
    kept = [facts._kept(model, IDS[:1], autocast=False)["whole"] for model in built]
    assert kept[0] - kept[1] == counted[0] - counted[1] > 0
