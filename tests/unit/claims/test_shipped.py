"""Every shipped claim comes out each of the four ways; one that cannot has no test and fails."""

import pytest

from pipeline.claims.judge import judge
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
)
from tests.fake_records import altered

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
def test_a_cell_that_is_not_there_or_did_not_run_is_named(world: Evidence, claim: Claim) -> None:
    found = judge(claim, without(world, selectors(claim)[0]))
    assert found.verdict == NOT_TESTABLE and "has no" in found.why
    assert found.effect is None and not found.runs
    table = world.results.table
    for cell in {place.cell for place in world.places(selectors(claim)[0])}:
        table = altered(table, {"cell": cell}, status="unsupported", reason="no such library")
        table = altered(table, {"cell": cell, "metric": "status"}, text="unsupported")
    found = judge(claim, on(world, table))
    assert found.verdict == NOT_TESTABLE and found.effect is None
    assert "unsupported" in found.why or "no two batches" in found.why


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
