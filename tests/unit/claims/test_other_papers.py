"""Claims of other publications: their cells, kinds, and published tables."""

import math
from dataclasses import replace
from typing import Any

import pytest

from pipeline.claims.judge import judge
from pipeline.claims.load import FOLDER, load_claims
from pipeline.claims.predicted import configurations
from pipeline.claims.types import (
    NOT_REPRODUCED,
    NOT_TESTABLE,
    REPRODUCED,
    UNDECIDED,
    Claim,
    Scale,
    Selector,
)
from pipeline.claims.worlds import Evidence
from tests.claims_worlds import (
    CLUSTER,
    PARAMETERS,
    a_claim,
    arranged,
    copy,
    make_world,
    on,
    set_metric,
)
from tests.fake_records import altered, pick


@pytest.fixture(scope="module")
def world() -> Evidence:
    return make_world("ddp", cluster=CLUSTER | {"nodes": [1, 2, 4]}, profile=None)


def trend(comparison: str, metric: str = "tokens_per_second") -> Claim:
    return a_claim({"kind": "trend", "metric": metric, "a": "a", "comparison": comparison,
                  "bound": 1})  # fmt: skip


def at(world: Evidence, rates: dict[int, float]) -> Evidence:
    """The world with a throughput of its cell for each node count."""
    evidence = copy(world)
    for place in evidence.places(trend("above").test["a"]):
        rate = rates[place.nodes]
        for metric in ("tokens_per_second", "step_seconds"):
            set_metric(evidence, place, metric, (0.99 * rate, rate, 1.01 * rate))
    return evidence


def test_a_trend_holds_all_along(world: Evidence) -> None:
    rising, broken = at(world, {1: 1.0, 2: 1.5, 4: 2.5}), at(world, {1: 1.0, 2: 1.5, 4: 1.2})
    found = judge(trend("above"), rising)
    assert found.verdict == REPRODUCED and len(found.runs) == 18
    assert found.effect is not None and found.effect.value == pytest.approx(1.5)
    assert judge(trend("above"), broken).verdict == NOT_REPRODUCED
    assert judge(trend("below"), rising).verdict == NOT_REPRODUCED
    falling = at(world, {1: 1.0, 2: 0.8, 4: 0.6})
    assert judge(trend("below"), falling).verdict == REPRODUCED
    two = on(world, world.results.table[world.results.table["nodes"] != 4])
    assert "on three node counts or more" in judge(trend("above"), two).why


def absolute(metric: str, bound: float, **more: Any) -> Claim:
    test = {"kind": "absolute", "metric": metric, "a": "a", "where": "several_nodes",
            "comparison": "about", "bound": bound, "tolerance": 0.05}  # fmt: skip
    return a_claim(test, **more)


def test_an_absolute_value_is_of_its_own_machine_and_model(world: Evidence) -> None:
    evidence = at(world, {1: 0.5, 2: 0.2, 4: 0.2})
    found = judge(absolute("step_seconds", 0.2), evidence)
    assert found.verdict == REPRODUCED and "step time of ddp in s is 0.20" in found.why
    assert judge(absolute("step_seconds", 0.3), evidence).verdict == NOT_REPRODUCED
    other = altered(evidence.results.table, {"metric": "gpus"}, text="NVIDIA H200")
    found = judge(absolute("step_seconds", 0.2), on(evidence, other))
    assert found.verdict == NOT_TESTABLE and found.why.startswith("needs a V100: it is no ratio")


@pytest.mark.parametrize(
    ("cell", "matches"),
    [
        ({"axes": {"data": 8}}, {2}),
        ({"axes": {"tensor": 1}}, {1, 2, 4}),
        ({"axes": {"tensor": 2}}, set()),
        ({"accumulation": 4}, set()),
        ({"parameters": 1.05 * PARAMETERS}, {1, 2, 4}),
        ({"parameters": 1.7e9}, set()),
        # The default, which the cell does not write out.
        ({"options": {"bucket_cap_mb": 25.0}}, {1, 2, 4}),
        ({"options": {"bucket_cap_mb": 100.0}}, set()),
        ({"scaling": "weak"}, set()),
        ({"nodes": 2}, {2}),
    ],
)
def test_cells_are_narrowed_by_nodes_mesh_accumulation_and_size(world, cell, matches) -> None:
    selector = a_claim(trend_test(), cell).test["a"]
    assert {place.nodes for place in world.places(selector)} == matches
    assert str(selector) != "ddp in fp32"


def trend_test() -> dict[str, Any]:
    return {"kind": "trend", "metric": "step_seconds", "a": "a", "comparison": "below", "bound": 1}


SHIPPED = {
    f"{paper}/{claim.id}": claim
    for paper in sorted(path.parent.name for path in FOLDER.glob("*/claims.yaml"))
    for claim in load_claims(FOLDER / paper / "claims.yaml")
    # Mechanisms have their tests in test_mechanisms.py; `bai2022` in test_shipped.py.
    if claim.kind in ("trend", "absolute") and claim.test["a"].precision == "mixed"
}


def moved(claim: Claim) -> Claim:
    """The claim as if it had been made of the cells of the world, on its machines and its model.

    Which cells a selector of its own means is tested above.
    """
    cells = {"a": Selector("a", "ddp", "fp32"), "b": Selector("b", "horovod", "fp32")}
    test = {key: cells.get(key, value) for key, value in claim.test.items()}
    return replace(claim, test=test, made_at=Scale("cuda", "V100", 2, 4, PARAMETERS))


def with_effect(world: Evidence, claim: Claim, effect: float) -> Evidence:
    """The claim's metric as it is, or the ratio of each node count to the one before."""
    evidence, metric = copy(world), claim.test["metric"]
    per_token = pick(world.results.table, "run", "flops_per_token")["value"].max()
    for place in evidence.places(claim.test["a"]):
        # Each node count of the world is twice the one before.
        value = effect if claim.kind == "absolute" else 10 * effect ** math.log2(place.nodes)
        if metric == "device_teraflops":
            value *= place.ranks * 1e12 / per_token
        written = "tokens_per_second" if metric == "device_teraflops" else metric
        set_metric(evidence, place, written, (0.995 * value, value, 1.005 * value))
    return evidence


@pytest.mark.parametrize("name", SHIPPED)
def test_claims_of_other_papers_come_out_either_way(world: Evidence, name: str) -> None:
    claim, here = SHIPPED[name], moved(SHIPPED[name])
    assert claim.region is not None
    bound = claim.region.bound
    holds, fails = (bound, 1.5 * bound) if claim.kind == "absolute" else (0.8, 1.3)
    found = judge(here, with_effect(world, here, holds))
    assert found.verdict == REPRODUCED, found.line
    assert judge(here, with_effect(world, here, fails)).verdict == NOT_REPRODUCED
    assert judge(claim, world).verdict == NOT_TESTABLE
    if claim.published is not None and claim.kind == "absolute":
        assert claim.published.value == pytest.approx(bound)


def test_rates_are_the_paper_s_without_the_recomputed_pass() -> None:
    """At the paper's own speed a run meets its bound: times model over counted FLOPs."""
    absolute = [one for one in SHIPPED.values() if one.kind == "absolute"]
    rated = [one for one in absolute if one.test["metric"] == "device_teraflops"]
    assert len(rated) == 4
    for claim in rated:
        [name] = claim.test["a"].points
        row = configurations()[name]
        layers, width, context, vocab = (
            int(row[key]) for key in ("layers", "hidden", "seq", "vocab")
        )
        of_model = 72 * (1 + context / (6 * width) + vocab / (12 * layers * width))
        counted = 96 * (1 + context / (6 * width) + vocab / (16 * layers * width))
        rate = float(row["tflops_gpu_published"]) * of_model / counted
        # 39 billion were read off a figure, as 57.0 and 57.06.
        assert claim.region and claim.region.bound == pytest.approx(rate, rel=3e-3), claim.id


MESHES = {
    claim.id: claim
    for claim in load_claims(FOLDER / "gspmd2021/claims.yaml")
    if claim.test.get("metric") == "step_seconds"
}


@pytest.fixture(scope="module")
def pair() -> Evidence:
    """Two cells on two nodes, to be called the two meshes of a claim of GSPMD."""
    return make_world("ddp", "ring", cluster=CLUSTER | {"nodes": [2]}, profile=None)


@pytest.mark.parametrize("name", MESHES)
def test_meshes_of_gspmd_come_out_either_way(pair: Evidence, name: str) -> None:
    claim = MESHES[name]
    here = replace(moved(claim), made_at=claim.made_at)
    for effect, verdict in ((0.8, REPRODUCED), (1.3, NOT_REPRODUCED), (1.0, UNDECIDED)):
        found = judge(here, arranged(pair, here, (0.98 * effect, effect, 1.02 * effect)))
        assert found.verdict == verdict, found.line
        assert "TPUv3 cores with 16 B parameters, tested on" in found.scale
    assert judge(claim, pair).verdict == NOT_TESTABLE
    assert claim.published is not None and claim.published.value < 1


def test_a_publication_that_states_no_size_is_tested_at_the_largest_world(world: Evidence) -> None:
    unknown = Scale("cuda", "GPUs that it does not name")
    evidence = at(world, {1: 1.0, 2: 1.5, 4: 2.5})
    found = judge(replace(trend("above"), made_at=unknown), evidence)
    assert found.verdict == REPRODUCED
    assert found.scale.startswith("made on GPUs that it does not name, tested on 16 ")
    sized = replace(absolute("step_seconds", 0.2), made_at=unknown)
    assert judge(sized, evidence).verdict == NOT_TESTABLE
