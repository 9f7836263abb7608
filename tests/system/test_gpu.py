"""On a machine with a GPU: a device at the size of `bai2022`; nodes that share the machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipeline.corpus.build import TokensSpec, build
from pipeline.study.expansion import expand
from pipeline.study.load import load_study
from pipeline.study.spec import RunSpec
from tests.system.stage import train_here

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.system,
    pytest.mark.alone,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    documents = [" ".join(f"word{(i * k) % 997}" for k in range(200)) for i in range(200)]
    (folder / "corpus.json").write_text(json.dumps(documents))
    spec = {
        "corpus": {"source": "json", "paths": [str(folder / "corpus.json")]},
        "tokenizer": {"kind": "char"},
        "context": 512,
        "model_vocab_size": 26651,
        "min_tokens": 16 * 512 + 1,
    }
    build(TokensSpec.from_dict(spec), folder / "tokens", 1)
    return folder / "tokens"


def bai2022(precision: str) -> RunSpec:
    run = expand(load_study(Path("workflow/config/bai2022/study.yaml")))[0]
    work = replace(run.workload, global_batch=4, steps=20, untimed_steps=5, checkpoint_every=0)
    return replace(run, precision=precision, workload=work)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_single_device_at_the_size_of_the_study(tokens, tmp_path, precision) -> None:
    run = train_here(bai2022(precision), tokens, tmp_path).run
    assert run["status"] == "ok", run["reason"]
    rank = run["ranks"][0]
    parameters = run["model"]["num_parameters"]
    # fp32 weights, gradients and two moments of AdamW
    assert rank["peak_memory_bytes"] > 16 * parameters
    assert 0 < rank["mean_utilisation"] <= 1
    assert rank["peak_flops_per_second"] > 0
    assert run["precision"]["name"] == precision


@pytest.mark.parametrize("strategy", ["single", "ddp"])
def test_the_phases_of_a_profiled_run_on_a_gpu_add_up(tokens, tmp_path, strategy) -> None:
    timed = replace(bai2022("fp32"), strategy=strategy)
    losses = []
    for spec in (timed, replace(timed, profile=True)):
        record = train_here(spec, tokens, tmp_path / spec.run_id)
        assert record.status == "ok", record.run["reason"]
        losses.append([step.loss for step in record.steps])
    # Backward passes of embeddings and attention add up in any order on a GPU.
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for step in record.steps[5:]:
        # The record itself holds that all phases add up to the step.
        assert step.phases is not None
        assert (step.phases["communication"] > 0) == (strategy != "single")
        assert step.phases["backward"] > step.phases["forward"] > 0


def test_nodes_on_one_machine_take_a_gpu_each_or_are_unsupported(tokens, tmp_path) -> None:
    alone = bai2022("fp32")
    world = replace(alone.world, nodes=2, ranks_per_node=1, network="loopback")
    spec = replace(alone, strategy="ddp", world=world)
    run = train_here(spec, tokens, tmp_path).run
    if torch.cuda.device_count() < 2:
        assert (run["status"], run["ranks"]) == ("unsupported", [])
        assert "2 x 1 ranks need 2 GPUs on this machine, torch sees 1" in run["reason"]
    else:
        assert run["status"] == "ok", run["reason"]
        assert [rank["device"] for rank in run["ranks"]] == ["cuda:0", "cuda:1"]
