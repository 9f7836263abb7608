"""A real run of one rank on the CPU leaves the peak that its rank measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.corpus.build import TokensSpec, build
from pipeline.metrics.flops import utilisations
from pipeline.records import read_record
from pipeline.study.expansion import expand
from pipeline.study.load import load_study
from pipeline.study.spec import ModelSpec

pytestmark = [pytest.mark.system, pytest.mark.alone]


def test_a_cpu_rank_measures_its_peak(tmp_path: Path) -> None:
    (tmp_path / "text.json").write_text(json.dumps(["one two three four five six"] * 20))
    tokens = {
        "corpus": {"source": "json", "paths": [str(tmp_path / "text.json")]},
        "tokenizer": {"kind": "char"},
        "context": 16,
        "model_vocab_size": 64,
        "min_tokens": 33,
    }
    build(TokensSpec.from_dict(tokens), tmp_path / "tokens", 1)
    run = next(
        r for r in expand(load_study(Path("workflow/config/smoke/study.yaml"))) if r.world.size == 1
    )
    work = replace(run.workload, global_batch=2, accumulation_steps=1, steps=3, untimed_steps=1)
    model = ModelSpec("gpt2", 1, 16, 2, 16, 64)
    spec = tmp_path / "spec.json"
    spec.write_text(replace(run, workload=work, model=model).to_json())
    out = str(tmp_path / "out")
    arguments = ["--spec", str(spec), "--tokens", str(tmp_path / "tokens"), "--out", out]
    assert main(["train", *arguments]) == 0
    record = read_record(tmp_path / "out")
    assert record.run["status"] == "ok", record.run["reason"]
    assert record.run["ranks"][0]["peak_flops_per_second"] > 1e6
    found = utilisations(record, tokens_per_second=1.0)
    assert found is not None and 0 < found[0] == found[1] < 1
