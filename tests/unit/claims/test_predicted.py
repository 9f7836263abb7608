"""Claims beside the cost model at the publication's own scale: a number with a band, or why not."""

import csv
from functools import cache

import pytest

from pipeline.__main__ import main
from pipeline.claims.load import FOLDER, load_claims
from pipeline.claims.predicted import configurations, predicted
from pipeline.claims.types import Claim
from pipeline.cost.constants import Constants
from pipeline.cost.points import predict_row, write
from pipeline.cost.score import source_of
from tests.claims_worlds import selectors


@cache
def claims() -> dict[str, Claim]:
    """Those of all publications, read when the first test needs them: it takes seconds."""
    every = [one for path in FOLDER.glob("*/claims.yaml") for one in load_claims(path)]
    return {claim.id: claim for claim in every}


@cache
def with_a_number() -> list[Claim]:
    """Those that the cost model predicts."""
    return [claim for claim in claims().values() if predicted(claim).value is not None]


def test_a_step_is_that_of_predict_points_for_the_same_row(tmp_path) -> None:
    """The set of MT-NLG gave a constant, which `predict --points` has and a claim has not."""
    row = configurations()["mtnlg-0001"]
    without = predict_row(row, Constants("mtnlg"))
    found = predicted(claims()["iteration-on-280-nodes"])
    assert [found.value, found.low, found.high] == [
        float(without[f"step_s_{end}"]) for end in ("pred", "low", "high")
    ]
    assert "without the constants derived from its own points, mtnlg" in found.line
    assert predict_row(row, Constants())["step_s_pred"] != without["step_s_pred"]

    write([configurations()["ptdp_table1-0001"]], tmp_path / "points.csv")
    out = tmp_path / "out.csv"
    assert main(["predict", "--points", str(tmp_path / "points.csv"), "--out", str(out)]) == 0
    with out.open() as file:
        [answer] = csv.DictReader(file)
    rate = predicted(claims()["device-rate-at-1-7-billion"])
    # In the unit of the bound: the source counts the recomputed pass, 137 for 104.4.
    work = 104.393 * 3.528
    assert rate.value == pytest.approx(work / float(answer["step_s_pred"]), rel=1e-4)
    assert rate.low == pytest.approx(work / float(answer["step_s_high"]), rel=1e-4)
    assert "without" not in rate.line


def test_a_ratio_is_that_of_two_steps_and_its_band_holds_it() -> None:
    found = predicted(claims()["amp-speeds-up-horovod-curves"])
    steps = [
        float(predict_row(configurations()[name], Constants("bai2022"))["step_s_pred"])
        for name in ("bai2022-0003", "bai2022-0005")
    ]
    assert found.value == pytest.approx(steps[0] / steps[1])
    assert set(found.points) == {"bai2022-0003", "bai2022-0005"}


def test_a_trend_is_its_weakest_link() -> None:
    found = predicted(claims()["more-nodes-shorten-the-iteration"])
    assert found.value is not None and 2240 / 2800 < found.value < 1
    assert "on 2,240 to 3,360 A100-80GB" in found.line


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fewer-cuts-are-faster-on-64", "the cost model knows no TPU"),
        ("1f1b-takes-as-long-as-gpipe", "whole configuration of pipeline-many"),
        ("dps-equals-horovod-one-node", "does not tell horovod from dps"),
        ("amp-speeds-up-dps", "no published dps-apex and dps did equal work"),
        ("dps-reaches-loss-first", "nothing with a band on seconds to loss"),
        ("sublinear-nodes", "has dps on one number of devices alone"),
    ],
)
def test_a_claim_without_enough_facts_says_what_is_missing(name, reason) -> None:
    found = predicted(claims()[name])
    assert found.line.startswith("not predicted: ") and reason in found.line
    assert found.value is found.low is found.high is None


def test_points_are_those_of_the_claims_own_cells_and_machine() -> None:
    assert {claim.document for claim in with_a_number()} == {
        "Alpa", "Bai 2022", "MT-NLG 530B", "PTD-P",
    }  # fmt: skip
    for claim in with_a_number():
        made, found = claim.made_at, predicted(claim)
        assert found.low and found.value and found.high
        assert found.low < found.value < found.high, claim.id
        assert made.world and made.parameters
        ranks = set()
        for cell in selectors(claim):
            for name in {*cell.points} & {*found.points}:
                row = configurations()[name]
                ranks.add(int(row["gpus"]))
                assert made.hardware in row["hardware"]
                assert int(row["gpus_per_node"]) == made.ranks_per_node
                assert row["tp"] == str(cell.axes.get("tensor", 1))
                assert row["pp"] == str(cell.axes.get("pipeline", 1))
                assert int(row["zero"] or 0) == cell.options.get("stage", 0)
                assert (row["precision"] == "fp32") == (cell.precision == "fp32")
                width = int(row["layers"]) * int(row["hidden"]) ** 2
                size = 12 * width + int(row["vocab"]) * int(row["hidden"])
                assert size == pytest.approx(made.parameters, rel=0.1)
        assert made.world[1] in ranks


def test_no_constant_comes_from_another_set_of_the_same_publication() -> None:
    for claim in with_a_number():
        rows = [configurations()[name] for name in predicted(claim).points]
        own = {source_of(row).split("_")[0] for row in rows}
        for row in rows:
            constants = Constants(source_of(row))
            predict_row(row, constants)
            assert not {source.split("_")[0] for source in constants.used} & own
