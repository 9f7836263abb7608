"""Shapes by size, and the memory of what publications trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.errors import StudyError
from pipeline.models import num_parameters
from pipeline.planner.plan import GIBIBYTE, plan_study
from pipeline.planner.sizes import ADAMW, size_of, sizes
from pipeline.study.spec import ModelSpec, RunSpec, WorkloadSpec, WorldSpec

SIZES = {one.id: one for one in sizes()}


def test_the_sizes_have_the_parameters_that_they_are_named_after() -> None:
    counts = {name: num_parameters(one.model) for name, one in SIZES.items()}
    assert counts["124M"] == 124_439_808  # as of the released model
    named = {"355M": 355e6, "774M": 774e6, "1.5B": 1.558e9, "6.7B": 6.66e9, "13B": 12.85e9}
    for name, expected in (named | {"175B": 174.6e9}).items():
        assert counts[name] == pytest.approx(expected, rel=1e-3)
    assert next(iter(SIZES)) == "124M"


PTDP = json.loads(Path("workflow/config/ptdp2021/published.json").read_text())["tables"][0]
ROWS = [dict(zip([c["name"] for c in PTDP["columns"]], row, strict=True)) for row in PTDP["rows"]]


def of_megatron(model: ModelSpec, tensor: int, stages: int) -> RunSpec:
    """One data rank; recomputed activations, mixed precision, more micro-batches than stages."""
    ranks, pieces = tensor * stages, 2 * stages
    nodes = max(1, ranks // 8)
    return RunSpec(
        study="published", cell="hybrid", strategy="hybrid", precision="bf16", model=model,
        options={"tensor": tensor, "pipeline": stages}, optimiser=ADAMW, repeat=0, seed=0,
        world=WorldSpec(nodes, ranks // nodes, "cuda", "nccl", "real"),
        workload=WorkloadSpec(pieces, pieces, 2, 1, "strong", 0, True),
    )  # fmt: skip


def test_the_parts_of_a_hybrid_rank_are_those_by_hand() -> None:
    """175 B: 12 layers of 8 parts; embeddings in 8 parts; 8 micro-batches are in flight."""
    knobs = {"tensor": 8, "pipeline": 8, "zero_stage": 1, "sequence": True}
    work = WorkloadSpec(64, 64, 2, 1, "strong", 0)
    spec = replace(of_megatron(SIZES["175B"].model, 8, 8), options=knobs, workload=work)
    memory = plan_study([spec])[0].memory
    width, tokens = 12288, 2048
    products = 12 * width**2 * 12 // 8
    # Norms (4 w), the biases of row cuts (2 w) and positions are whole, those of column cuts (7 w)
    # parts; ZeRO 1 over one data rank keeps rows of all.
    weights = products + 12 * (6 * width + 7 * width // 8) + (50257 * width // 8 + tokens * width)
    assert memory.optimiser == pytest.approx(8 * weights, rel=1e-3)
    assert memory.gradients == pytest.approx(4 * weights, rel=1e-3)
    # A block keeps 34 bytes for each token and value of the width, two inputs of norms and 14
    # halves, of which 2 are whole and 14 parts; and autocast one copy of each product, two bytes.
    assert memory.activations == pytest.approx(
        8 * 12 * tokens * width * 36 * (2 + 14 / 8) / 16 + 2 * products, rel=0.05
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['parameters']}B")
def test_what_ptdp_trained_on_80_gib_fits_and_half_of_its_ranks_would_be_full(row) -> None:
    """Table 1 of Narayanan et al. 2021: parameters, and the least layout that held the model."""
    tensor, stages = row["tensor_parallel"], row["pipeline_parallel"]
    model = ModelSpec("gpt2", row["layers"], row["width"], row["heads"], 2048, 51200)
    assert num_parameters(model) == pytest.approx(1e9 * row["parameters"], abs=6e7)
    assert plan_study([of_megatron(model, tensor, stages)])[0].verdict(80 * GIBIBYTE) == "fits"
    if tensor * stages > 1:
        fewer = (tensor, stages // 2) if stages > 1 else (tensor // 2, 1)
        assert plan_study([of_megatron(model, *fewer)])[0].needed_bytes > 0.75 * 80 * GIBIBYTE


def test_what_mt_nlg_trained_on_80_gib_fits() -> None:
    """Smith et al. 2022: 530 billion parameters, tensor 8 x pipeline 35, 105 layers."""
    model = ModelSpec("gpt2", 105, 20480, 128, 2048, 51200)
    assert num_parameters(model) == pytest.approx(530e9, rel=0.01)
    assert plan_study([of_megatron(model, 8, 35)])[0].verdict(80 * GIBIBYTE) == "fits"


@pytest.mark.parametrize("size", [40, 60, 100, 200, 500, 900, 5000, 20_000, 1_000_000, 10_000_000])
def test_the_parameters_are_near_the_size(size: int) -> None:
    assert num_parameters(size_of(f"{size}M").model) == pytest.approx(size * 1e6, rel=0.04)


@pytest.mark.parametrize(
    "name", ["", "7", "1.3b", "0B", "1e3M", "-1B", "39M", "99999B", "٣B", "1.3 B"]
)
def test_what_is_no_size_is_refused(name: str) -> None:
    with pytest.raises(StudyError, match=r"as 350M or 1\.3B"):
        size_of(name)
