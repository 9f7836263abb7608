"""Every shipped claim comes out each of the four ways; one that cannot has no test and fails."""

from collections import Counter

import pytest

from pipeline.claims.judge import judge
from pipeline.claims.kinds import KINDS
from pipeline.claims.types import (
    NOT_REPRODUCED,
    NOT_TESTABLE,
    REPRODUCED,
    UNDECIDED,
    VERDICTS,
    Claim,
)
from pipeline.claims.worlds import Evidence
from pipeline.claims.write import compound, to_dict
from pipeline.schemas import validate
from pipeline.study.load import find_study, load_study
from tests.claims_worlds import (
    CLAIMS,
    arranged,
    effects,
    make_world,
    on,
    selectors,
    without,
    world_study,
)
from tests.fake_records import altered, pick

# Claims of other publications have worlds of their own, in `test_other_papers.py`.
EACH = pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
OF_EACH_KIND = pytest.mark.parametrize(
    "claim", {claim.kind: claim for claim in CLAIMS.values()}.values(), ids=lambda one: one.kind
)


@pytest.fixture(scope="module")
def world() -> Evidence:
    return make_world()


@pytest.mark.parametrize("verdict", [word for word in VERDICTS if word != NOT_TESTABLE])
@EACH
def test_each_verdict_is_reached(world: Evidence, claim: Claim, verdict: str) -> None:
    if claim.kind == "fits" and verdict == UNDECIDED:
        pytest.skip("what fits is no measurement with an interval")
    evidence = arranged(world, claim, effects(claim)[verdict])
    found = judge(claim, evidence)
    assert found.verdict == verdict, found.line
    validate({"schema_version": 1, "study": "w", "verdicts": [to_dict(found)]}, "verdicts", "here")
    if claim.kind != "fits":
        assert found.effect is not None and found.runs
        assert found.effect.low <= found.effect.value <= found.effect.high
        assert ("undecided" in found.line) == (verdict == UNDECIDED)
        assert (found.p_value is not None) == (verdict != UNDECIDED)
        assert "tested at that scale" in found.scale or claim.kind in ("memory_formula",)


@OF_EACH_KIND
def test_a_study_without_the_cell_says_which(world: Evidence, claim: Claim) -> None:
    found = judge(claim, without(world, selectors(claim)[0]))
    assert found.verdict == NOT_TESTABLE
    assert "has no" in found.why and found.effect is None and not found.runs


@OF_EACH_KIND
def test_a_cell_that_did_not_run_gives_its_reason(world: Evidence, claim: Claim) -> None:
    table = world.results.table
    for cell in {place.cell for place in world.places(selectors(claim)[0])}:
        table = altered(table, {"cell": cell}, status="unsupported", reason="no such library")
        table = altered(table, {"cell": cell, "metric": "status"}, text="unsupported")
    found = judge(claim, on(world, table))
    assert found.verdict == NOT_TESTABLE and found.effect is None
    assert "unsupported" in found.why or "no two batches" in found.why


@pytest.fixture(scope="module")
def cpu() -> Evidence:
    """The same cells on the two cores of one machine."""
    cluster = {"device": "cpu", "ranks_per_node": 1, "nodes": [1, 2, 4], "backend": "gloo",
               "network": "loopback"}  # fmt: skip
    kept = ("name", "label", "strategy", "precision", "workload")
    cells = [{k: v for k, v in cell.items() if k in kept} for cell in world_study()["cells"]]
    cells[0]["nodes"] = [1]
    return make_world(cluster=cluster, cells=cells)


@EACH
def test_the_scale_is_said_on_a_cpu_which_cannot_test_all(cpu: Evidence, claim: Claim) -> None:
    found = judge(claim, cpu)
    assert f"made on {claim.made_at}" in found.line and "V100" in found.line
    here = ("tested on 2 CPU ranks of one machine", "this study ran on a CPU")
    assert any(words in found.line for words in here)
    if claim.needs.get("device") == "cuda":
        assert found.why.startswith("needs a GPU: ")
    elif claim.made_at.nodes != 1:
        assert "processes of one machine over its loopback" in found.why


def test_every_kind_has_its_tests() -> None:
    # Kinds for other publications have their tests in test_other_papers.py and test_mechanisms.py.
    others = {"trend", "absolute", "formula", "same_steps"}
    assert set(KINDS) - {claim.kind for claim in CLAIMS.values()} == others


def test_runs_behind_a_verdict_are_those_of_its_cells(world: Evidence) -> None:
    found = judge(CLAIMS["sps-slower-than-one"], world)
    known = set(pick(world.results.table, "run", "status")["run_id"])
    assert len(found.runs) == 12 and set(found.runs) <= known
    assert {run.split("/")[1] for run in found.runs} == {"one", "server"}


def test_the_ablations_have_the_cells_of_their_claims() -> None:
    study = load_study(find_study("bai2022-ablations")).to_dict()
    evidence = make_world(**{key: study[key] for key in ("cells", "cluster", "compares")})
    for name in ("empty-cache-costs", "small-batch-diverges", "amp-fits-batch-4"):
        own = arranged(evidence, CLAIMS[name], effects(CLAIMS[name])[REPRODUCED])
        found = judge(CLAIMS[name], own)
        assert found.verdict == REPRODUCED, found.line


@pytest.mark.parametrize(
    ("words", "outcome"),
    [
        ([REPRODUCED, REPRODUCED, UNDECIDED],
         "partly reproduced, of 3 parts 2 reproduced, 1 undecided"),
        ([REPRODUCED] * 3, "reproduced in all 3 parts"),
        ([NOT_REPRODUCED, UNDECIDED, UNDECIDED], "of 3 parts 1 not reproduced, 2 undecided"),
    ],
)  # fmt: skip
def test_a_sentence_of_several_parts_is_partly_reproduced_where_one_holds(words, outcome) -> None:
    whole = "Over several nodes the speedup is not linear, because of communication."
    parts = [{"part_of": claim.part_of} for claim in CLAIMS.values() if claim.part_of == whole]
    pairs = zip(parts[: len(words)], words, strict=True)
    assert compound([part | {"verdict": word} for part, word in pairs]) == [(whole, outcome)]


def test_a_sentence_of_which_one_part_is_tested_is_no_whole() -> None:
    parts = Counter(claim.part_of for claim in CLAIMS.values() if claim.part_of)
    assert [whole for whole, number in parts.items() if number < 2] == []
