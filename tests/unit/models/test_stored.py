"""Starting weights of files: what a rank reads of them, and what is refused.

The loss that they give in every layout: `tests/parity`.
"""

import shutil
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from pipeline import strategies
from pipeline.errors import StudyError
from pipeline.models import stored
from pipeline.models.build import build_model, deferred_model
from pipeline.parallel.state import materialise, read_weights
from pipeline.parallel.types import Parts
from pipeline.precision import make_precision
from pipeline.study.model_files import with_files
from pipeline.study.spec import ModelSpec
from tests.parity.cases import Case
from tests.ranks import fake_group

SIZES: dict[str, Any] = {
    "vocab_size": 302, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 16, "initializer_range": 0.2,
}  # fmt: skip
"""Of losses far from those of our own initial weights."""


def save_models(folder: Path) -> dict[str, Path]:
    """Folders by class, as save_pretrained writes them: in several files, and in one."""
    torch.manual_seed(1)
    llama = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SIZES, num_key_value_heads=2, pad_token_id=0)
    )
    llama.save_pretrained(folder / "llama", max_shard_size="20KB")
    bert = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES))
    bert.save_pretrained(folder / "bert")
    assert len([*(folder / "llama").glob("model-*.safetensors")]) > 2
    return {"LlamaForCausalLM": folder / "llama", "BertForMaskedLM": folder / "bert"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return save_models(tmp_path_factory.mktemp("saved"))


def spec_of(folder: Path, **given: Any) -> ModelSpec:
    own = {"family": "transformers", "config": "config.json", "weights": "."} | given
    return ModelSpec(**with_files(own, folder, extends=False))


def test_a_rank_reads_the_parts_that_it_holds_alone(saved) -> None:
    spec = spec_of(saved["BertForMaskedLM"])
    model, initial = deferred_model(spec, 0)
    numbers, real = [], stored.reader(spec)

    def read(name: str, offsets: Any, shape: Any) -> torch.Tensor:
        numbers.append(prod(shape))
        return real(name, offsets, shape)

    strategy = strategies.load("sharded", {})
    run = Case("sharded", folder=str(saved["BertForMaskedLM"])).spec(4)
    make: Any = lambda parameters: torch.optim.AdamW(parameters)  # noqa: E731
    fill = lambda: materialise(model, initial.values, torch.device("cpu"), read)  # noqa: E731
    precision = make_precision("fp32", "cpu")
    parts_of = Parts(model, make, strategy.layout(run.world), precision, 1.0, materialise=fill)
    with fake_group(4):
        strategy.build(parts_of)
    parts: dict[str, Any] = dict(model.named_parameters())
    assert sum(numbers) == sum(p.to_local().numel() for p in parts.values())


def old_name(name: str) -> str:
    return name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")


def test_a_file_may_have_older_names_and_another_head(saved, tmp_path) -> None:
    """As BERT's on the hub: gamma and beta, a pooler, places of tokens."""
    whole = load_file(saved["BertForMaskedLM"] / "model.safetensors")
    more = {"bert.pooler.dense.bias": torch.ones(32), "bert.embeddings.position_ids": torch.ones(1)}
    save_file({old_name(name): p for name, p in whole.items()} | more, tmp_path / "old.safetensors")
    spec = spec_of(saved["BertForMaskedLM"], weights=str(tmp_path / "old.safetensors"))
    model = build_model(spec, 0)
    read_weights(model, stored.reader(spec))
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, whole[name.removeprefix("model.")]), name


WORDS, LAYER = "bert.embeddings.word_embeddings.weight", "bert.encoder.layer.0.output.dense"
NONE = dict.fromkeys([f"{LAYER}.weight", f"{LAYER}.bias", WORDS, "cls.predictions.bias"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({WORDS: torch.ones(301, 32)}, rf"shapes: {WORDS} \(301, 32\), expected \(302, 32\); give"),
        (NONE, rf"lack {WORDS}; {LAYER}.weight; {LAYER}.bias and 1 more; give those of BertFor"),
        ({f"{LAYER}.scale": torch.ones(1)}, rf"have besides {LAYER}.scale; give"),
        ({"bert.encoder.layer.2.x": torch.ones(1)}, r"have besides bert.encoder.layer.2.x; give"),
        ({f"{LAYER}.bias": torch.ones(32).char()}, rf"no floating-point numbers: {LAYER}.bias I8"),
    ],
    ids=["shape", "lacks", "besides", "another layer", "whole numbers"],
)
def test_weights_of_another_model_are_refused_by_name(saved, tmp_path, change, said) -> None:
    whole = load_file(saved["BertForMaskedLM"] / "model.safetensors") | change
    save_file({n: p for n, p in whole.items() if p is not None}, tmp_path / "model.safetensors")
    with pytest.raises(StudyError, match=said) as refused:
        stored.check(spec_of(saved["BertForMaskedLM"], weights=str(tmp_path)))
    assert "\n" not in str(refused.value)


def test_a_run_refuses_weights_that_were_changed_or_are_damaged(saved, tmp_path) -> None:
    shutil.copytree(saved["BertForMaskedLM"], tmp_path / "own")
    spec, file = spec_of(tmp_path / "own"), tmp_path / "own/model.safetensors"
    stored.check_content(spec)
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(StudyError, match=r"have the SHA-256 .* those of this run"):
        stored.check_content(spec)
    with pytest.raises(StudyError, match=r"model\.safetensors cannot be read"):
        stored.check(spec)
    file.unlink()
    with pytest.raises(StudyError, match=r"model\.safetensors is no file of safetensors"):
        stored.check_content(spec)
    own = ModelSpec("gpt2", 2, 32, 4, 16, 302, weights=str(saved["BertForMaskedLM"]))
    with pytest.raises(StudyError, match="use the family transformers"):
        stored.check(own)
