"""When cells may be compared, and what a verdict says of its scale."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.claims.judge import judge
from pipeline.claims.load import FOLDER, load_claims
from pipeline.claims.quantities import estimate, over_repeats, ratio
from pipeline.claims.types import (
    NOT_REPRODUCED,
    NOT_TESTABLE,
    REPRODUCED,
    Claim,
    Estimate,
    NotTestableError,
    Region,
)
from pipeline.claims.worlds import Evidence, Place, choose
from pipeline.metrics import contrasts
from pipeline.study.study import Study
from tests.claims_worlds import arrange, copy, decide, make_world, set_metric, world_study
from tests.fake_records import make_study, make_table

CLAIMS = {claim.id: claim for claim in load_claims(FOLDER / "bai2022/claims.yaml")}
SLOWER, MIXED, BEST = (
    CLAIMS[name] for name in ("sps-slower-than-one", "amp-speeds-up-dps", "dps-apex-best-one-node")
)


@pytest.fixture(scope="module")
def world() -> Evidence:
    return make_world()


@pytest.fixture(scope="module")
def cpu() -> Evidence:
    return Evidence(Study.of(make_study()), make_table(repeats=3))


def with_cell(*names: str, **changes: Any) -> Evidence:
    """The world with these cells only, the first of them changed."""
    cells = [cell for cell in world_study()["cells"] if cell["name"] in names]
    return make_world(cells=[{**c, **(changes if c["name"] == names[0] else {})} for c in cells])


@pytest.mark.parametrize(
    ("region", "bounds", "verdict"),
    [
        (Region("above", 1.0, 0.0), (1.01, 1.2), REPRODUCED),
        (Region("above", 1.0, 0.0), (0.99, 1.2), NOT_TESTABLE),
        (Region("above", 1.0, 0.0), (0.8, 0.99), NOT_REPRODUCED),
        (Region("above", 1.0, 0.1), (0.95, 1.2), REPRODUCED),
        (Region("below", 2.0, 0.1), (1.0, 2.1), REPRODUCED),
        (Region("below", 2.0, 0.0), (2.1, 2.2), NOT_REPRODUCED),
        (Region("about", 2.0, 0.25), (1.6, 2.4), REPRODUCED),
        (Region("about", 2.0, 0.25), (1.4, 2.4), NOT_TESTABLE),
        (Region("about", 2.0, 0.25), (2.6, 2.8), NOT_REPRODUCED),
    ],
)
def test_only_a_whole_interval_counts(
    world: Evidence, region: Region, bounds: tuple[float, float], verdict: str
) -> None:
    claim = Claim(**{**vars(SLOWER), "region": region})
    evidence = copy(world)
    low, high = bounds
    arrange(evidence, claim, (low, (low + high) / 2, high))
    found = judge(claim, evidence)
    assert found.verdict == verdict
    assert ("the interval includes the bound" in found.line) == (verdict == NOT_TESTABLE)


def test_a_ratio_is_bounded_by_the_farthest_corners() -> None:
    found = ratio(Estimate(4, 3, 5, "x"), Estimate(2, 1, 4, "y"))
    assert (found.value, found.low, found.high) == (2.0, 0.75, 5.0)
    assert "x" in found.how and "y" in found.how
    with pytest.raises(NotTestableError, match="includes zero"):
        ratio(Estimate(1, 1, 1, "x"), Estimate(1, 0, 2, "y"))


def test_repeats_give_median_and_range() -> None:
    found = over_repeats([3.0, 1.0, 2.0])
    assert (found.value, found.low, found.high) == (2.0, 1.0, 3.0)


def test_on_a_cpu_the_line_says_so_and_what_ran_instead(cpu: Evidence) -> None:
    line = judge(MIXED, cpu).line
    assert "made on 4 V100 with 106 M parameters" in line
    assert "tested on 2 CPU ranks of one machine with 1.07 M parameters in 6 runs" in line
    assert "dps-amp ran in torch amp O1, bf16, not apex_o2" in line


def test_a_cell_that_did_not_run_gives_no_verdict(cpu: Evidence) -> None:
    found = judge(CLAIMS["amp-speeds-up-horovod-four"], cpu)
    assert found.verdict == NOT_TESTABLE
    assert "horovod-apex on 2 ranks is unsupported (apex.amp is not importable" in found.why


def test_ranks_without_a_core_of_their_own_are_not_compared(cpu: Evidence) -> None:
    evidence = copy(cpu)
    evidence.table.loc[evidence.table["metric"] == "num_cores", "value"] = 1.0
    assert "2 ranks share 1 core, so that not each has its own" in judge(SLOWER, evidence).why
    evidence.table.loc[evidence.table["metric"] == "num_cores", "value"] = 8.0
    assert "tested on 4 CPU ranks" in judge(SLOWER, evidence).scale


def test_one_rank_exchanges_nothing() -> None:
    cluster = {**make_study()["cluster"], "nodes": [1]}
    evidence = Evidence(
        Study.of(make_study(cluster=cluster)), make_table(repeats=2, cluster=cluster)
    )
    assert "several ranks on one machine, and here each has one" in judge(SLOWER, evidence).why


def test_one_repeat_has_no_interval() -> None:
    evidence = make_world(repeats=1)
    assert "has one finished run, so no interval" in judge(SLOWER, evidence).why


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"workload": {"global_batch": 32}}, "global batch"),
        ({"optimiser": {"learning_rate": 1e-5}}, "schedule"),
        ({"options": {"empty_cache": True}}, "empty cache"),
    ],
)
def test_unequal_work_is_not_compared(changes: dict[str, Any], field: str) -> None:
    found = judge(SLOWER, with_cell("server", "one", **changes))
    assert found.verdict == NOT_TESTABLE and found.effect is None
    assert found.why == f"server and one did unequal work, in {field}"


def test_two_updates_a_step_are_unequal_work() -> None:
    found = judge(CLAIMS["amp-horovod-gains-more"],
                  with_cell("ring-mixed", "ring", "ddp-mixed", "ddp",
                            options={"optimiser_steps": 2}))  # fmt: skip
    assert "did unequal work, in updates per step" in found.why


def test_another_training_is_not_compared(world: Evidence) -> None:
    evidence = copy(world)
    rows = (evidence.table["metric"] == "parity_verdict") & (evidence.table["cell"] == "server")
    assert rows.any()
    evidence.table.loc[rows, "text"] = "NOT EQUAL"
    assert "server on 4 ranks did not compute the same training" in judge(SLOWER, evidence).why


def test_apex_is_preferred_and_the_level_as_published() -> None:
    cells = [cell for cell in world_study()["cells"] if cell["name"] in ("ddp", "ddp-mixed")]
    extra = [
        {"name": f"also-{precision}", "label": "x", "strategy": "ddp", "precision": precision}
        for precision in ("amp_o2", "apex_o1")
    ]
    evidence = make_world(cells=[*extra, *cells])
    found = judge(MIXED, evidence)
    assert "throughput of ddp-mixed over ddp" in found.why and not found.notes
    without = make_world(cells=[*extra, *(c for c in cells if c["name"] != "ddp-mixed")])
    assert "throughput of also-apex_o1 over ddp" in judge(MIXED, without).why


def test_a_run_that_broke_settles_robustness(world: Evidence) -> None:
    claim, evidence = CLAIMS["horovod-apex-robust"], copy(world)
    arrange(evidence, claim, (1.2, 1.3, 1.4))
    assert judge(claim, evidence).verdict == REPRODUCED
    table = evidence.table
    rows = (table["metric"] == "status") & (table["cell"] == "ring-mixed") & (table["repeat"] == 1)
    table.loc[rows & (table["nodes"] == 2), "text"] = "timeout"
    found = judge(claim, Evidence(evidence.study, table))
    assert found.verdict == NOT_REPRODUCED
    assert "1 run of ring-mixed on 8 ranks ended as timeout" in found.why


def test_the_best_must_beat_each_of_the_others(world: Evidence) -> None:
    evidence = copy(world)
    arrange(evidence, BEST, (1.4, 1.5, 1.6))
    assert judge(BEST, evidence).verdict == REPRODUCED
    [ring, *_] = evidence.places(CLAIMS["amp-speeds-up-horovod-four"].test["a"])
    set_metric(evidence, ring, "tokens_per_second", (1.7, 1.8, 1.9))
    assert judge(BEST, evidence).verdict == NOT_REPRODUCED


def test_what_fits_is_asked_on_the_published_device_and_model_only(world: Evidence) -> None:
    claim = CLAIMS["amp-fits-batch-4"]
    other = copy(world)
    other.table.loc[other.table["metric"] == "gpus", "text"] = "NVIDIA H200"
    assert judge(claim, other).why.startswith("needs a V100: what fits depends on")
    assert "this study ran on NVIDIA H200" in judge(claim, other).scale
    other = copy(world)
    other.table.loc[other.table["metric"] == "num_parameters", "value"] = 1e6
    assert judge(claim, other).why.startswith("needs a model of 106 M parameters, and this one")


def test_the_devices_of_one_process_have_no_utilisation_of_their_own(world: Evidence) -> None:
    evidence = copy(world)
    gone = (evidence.table["level"] == "rank") & (evidence.table["rank"] > 0)
    one = Evidence(evidence.study, evidence.table[~gone])
    assert "recorded 1 of 4 devices" in judge(CLAIMS["sps-utilisation"], one).why
    assert "recorded one process" in judge(CLAIMS["horovod-symmetric-time"], one).why


def test_a_metric_that_was_not_measured_is_named(world: Evidence) -> None:
    gone = world.table["metric"] == "peak_memory_bytes"
    evidence = Evidence(world.study, world.table[~gone])
    why = judge(CLAIMS["amp-halves-memory"], evidence).why
    assert why == "the metrics hold no peak_memory_bytes of ddp-mixed"


def test_a_loss_that_is_nowhere_finite_gives_no_time_to_it(world: Evidence) -> None:
    evidence = copy(world)
    table = evidence.table
    table.loc[(table["metric"] == "loss") & (table["cell"] == "ring"), "value"] = float("nan")
    assert "no finite loss" in judge(CLAIMS["dps-reaches-loss-first"], evidence).why


def test_roughness_leaves_the_warm_up_out(world: Evidence) -> None:
    evidence = copy(world)
    [place, *_] = evidence.places(CLAIMS["small-batch-diverges"].test["a"])
    set_metric(evidence, place, "loss_roughness", (1.0, 1.0, 1.0))
    table = evidence.table
    early = (table["metric"] == "loss") & (table["step"] < world.study.optimiser.warmup_steps)
    table.loc[early, "value"] = 1e6
    assert estimate(Evidence(evidence.study, table), place, "loss_roughness").value == 1.0


def test_a_study_of_which_nothing_ran_has_its_reasons() -> None:
    cells = [{"name": "a", "label": "Apex", "strategy": "horovod", "precision": "apex_o1"}]
    evidence = Evidence(Study.of(make_study(cells=cells)), make_table(repeats=2, cells=cells))
    for claim in CLAIMS.values():
        assert judge(claim, evidence).verdict == NOT_TESTABLE


@pytest.mark.parametrize(
    ("effect", "said", "p_value", "verdict", "word"),
    [
        ((1.1, 1.2, 1.3), contrasts.FASTER, 0.01, REPRODUCED, "rank test p = 0.01"),
        ((0.7, 0.8, 0.9), contrasts.SLOWER, 0.01, NOT_REPRODUCED, "rank test p = 0.01"),
        ((1.1, 1.2, 1.3), contrasts.UNDECIDED, 0.3, NOT_TESTABLE, "undecided by the rank test"),
        ((0.7, 0.8, 0.9), contrasts.UNDECIDED, 0.3, NOT_TESTABLE, "undecided by the rank test"),
        ((1.1, 1.2, 1.3), contrasts.TOO_FEW, 0.4, NOT_TESTABLE, "too few for the rank test"),
    ],
)
def test_interval_and_rank_test_must_say_the_same(
    world, effect, said, p_value, verdict, word
) -> None:
    """`amp-speeds-up-dps`-like: throughput of one cell over another, claimed above 1."""
    claim = replace(MIXED, region=Region("above", 1.0, 0.0))
    evidence = copy(world)
    arrange(evidence, claim, effect)
    one, other = judge_places(evidence, claim)
    found = judge(claim, decide(evidence, one, other, said, p_value))
    assert (found.verdict, word in found.why) == (verdict, True), found.why


def judge_places(evidence: Evidence, claim: Claim) -> list[Place]:
    test = claim.test
    return choose(evidence, claim, [test["a"], test["b"]], test["where"])


def test_an_interval_around_one_needs_no_rank_test(world) -> None:
    claim = replace(MIXED, region=Region("below", 2.0, 0.0))
    evidence = copy(world)
    arrange(evidence, claim, (0.9, 1.0, 1.1))
    one, other = judge_places(evidence, claim)
    found = judge(claim, decide(evidence, one, other, contrasts.TOO_FEW, 1.0))
    assert found.verdict == REPRODUCED


@pytest.mark.parametrize(
    ("region", "bounds", "bias", "verdict"),
    [
        (Region("above", 1.0, 0.0), (1.06, 1.2), 0.05, REPRODUCED),
        (Region("above", 1.0, 0.0), (1.04, 1.2), 0.05, NOT_TESTABLE),
        (Region("above", 1.0, 0.0), (1.04, 1.2), 0.0, REPRODUCED),
        (Region("above", 1.0, 0.0), (0.9, 0.96), 0.05, NOT_TESTABLE),
        (Region("above", 1.0, 0.0), (0.9, 0.94), 0.05, NOT_REPRODUCED),
        (Region("below", 2.0, 0.0), (1.8, 1.95), 0.05, NOT_TESTABLE),
        (Region("about", 2.0, 0.1), (1.85, 2.15), 0.05, NOT_TESTABLE),
    ],
)
def test_times_on_emulated_nodes_count_outside_of_the_emulation_s_own_bias(
    world: Evidence, region: Region, bounds: tuple[float, float], bias: float, verdict: str
) -> None:
    claim, (low, high) = replace(SLOWER, region=region), bounds
    evidence = copy(world)
    arrange(evidence, claim, (low, (low + high) / 2, high))
    evidence.table["network"] = "emulated"
    evidence.table.loc[evidence.table["metric"] == "cores_per_node", "value"] = 4.0
    found = judge(claim, Evidence(evidence.study, evidence.table, bias))
    assert found.verdict == verdict, found.line
    said = "within the emulation's own bias of 5.0 % of the bound" in found.why
    assert said == (verdict == NOT_TESTABLE)
    assert not said or found.why.startswith("undecided")


def test_without_a_validation_no_time_of_emulated_nodes_decides(world: Evidence) -> None:
    evidence = copy(world)
    arrange(evidence, SLOWER, (3.0, 4.0, 5.0))
    evidence.table["network"] = "emulated"
    evidence.table.loc[evidence.table["metric"] == "cores_per_node", "value"] = 4.0
    found = judge(SLOWER, Evidence(evidence.study, evidence.table, None))
    assert found.verdict == NOT_TESTABLE
    assert "how far emulated times are off was not measured" in found.why


@pytest.mark.parametrize(
    ("name", "network"), [("sps-slower-than-one", "real"), ("amp-halves-memory", "emulated")]
)
def test_neither_a_real_network_nor_memory_has_the_emulation_s_bias(
    name: str, network: str, world: Evidence
) -> None:
    claim, evidence = replace(CLAIMS[name], region=Region("above", 1.0, 0.0)), copy(world)
    arrange(evidence, claim, (1.01, 1.02, 1.03))
    evidence.table["network"] = network
    found = judge(claim, Evidence(evidence.study, evidence.table, 0.5))
    assert found.verdict == REPRODUCED, found.line
