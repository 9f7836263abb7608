"""When cells may be compared, and what a verdict says of its scale."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipeline.claims.decide import Beside, Outcome, corrected, settle
from pipeline.claims.judge import judge
from pipeline.claims.quantities import measure
from pipeline.claims.types import (
    NOT_REPRODUCED,
    NOT_TESTABLE,
    REPRODUCED,
    UNDECIDED,
    Claim,
    NotTestableError,
    Region,
)
from pipeline.claims.worlds import Evidence, Place, choose
from pipeline.claims.write import count, counted, to_dict, total
from pipeline.metrics import contrasts
from pipeline.metrics.results import Results
from pipeline.metrics.statistics import Interval
from pipeline.study.study import Study
from tests.claims_worlds import (
    CLAIMS,
    CLUSTER,
    agree,
    apart,
    arranged,
    copy,
    decide,
    make_world,
    on,
    set_metric,
    with_rows,
    world_study,
)
from tests.fake_records import altered, make_study, make_table

SLOWER, MIXED, BEST = (
    CLAIMS[name] for name in ("sps-slower-than-one", "amp-speeds-up-dps", "dps-apex-best-one-node")
)
ANY_MIXED = replace(MIXED, test={**MIXED.test, "a": replace(MIXED.test["a"], software=None)})
"""The same of mixed precision, whichever software makes it."""


@pytest.fixture(scope="module")
def world() -> Evidence:
    return make_world()


@pytest.fixture(scope="module")
def cpu() -> Evidence:
    return fake_evidence(repeats=3)


def fake_evidence(**changes: Any) -> Evidence:
    return Evidence(Study.of(make_study(**changes)), Results(make_table(**changes)))


Change = Callable[[Evidence], Evidence]


def put(metric: str, cell: str | None = None, **values: Any) -> Change:
    """The same study with other values of a metric, of one cell or of all."""
    where = {"metric": metric} | ({"cell": cell} if cell else {})
    return lambda evidence: on(evidence, altered(evidence.results.table, where, **values))


def one_process(evidence: Evidence) -> Evidence:
    table = evidence.results.table
    gone = (table["level"] != "step") & (table["rank"] > 0).fillna(False)
    return on(evidence, table[~gone])


def short(evidence: Evidence) -> Evidence:
    table = evidence.results.table
    return on(evidence, table[~(table["step"] >= 60).fillna(False)])


def emulated(evidence: Evidence, bias: float | None) -> Evidence:
    """The same on emulated nodes of four cores, whose times may be off by a share."""
    own = put("cores_per_node", value=4.0)(evidence)
    own.results.table["network"] = "emulated"
    return own if bias is None else with_bias(own, bias)


def with_bias(evidence: Evidence, bias: float) -> Evidence:
    row = {"level": "study", "metric": "emulation_bias", "value": bias}
    return with_rows(evidence, pd.DataFrame([row]))


def with_cell(*names: str, **changes: Any) -> Evidence:
    """The world with these cells only, the first of them changed."""
    cells = world_study(*names)["cells"]
    cells = [{**c, **(changes if c["name"] == names[0] else {})} for c in cells]
    return make_world(cells=cells, repeats=2, profile=None)


BIAS_THAT_DECIDES = {
    (1.045, 1.2): "emulated times off by at most 4 %, or real nodes",
    (0.9, 0.96): "emulated times off by at most 4 %, or real nodes",
    (1.85, 2.15): "emulated times off by at most 2 %, or real nodes",
}
ABOVE, BELOW, ABOUT = (
    Region("above", 1.0, 0.0), Region("below", 2.0, 0.0), Region("about", 2.0, 0.25)
)  # fmt: skip


@pytest.mark.parametrize(
    ("region", "bounds", "bias", "verdict"),
    [
        (ABOVE, (1.01, 1.2), None, REPRODUCED),
        (ABOVE, (0.99, 1.2), None, UNDECIDED),
        (Region("above", 1.0, 0.1), (0.95, 1.2), None, REPRODUCED),
        (ABOUT, (1.6, 2.4), None, REPRODUCED),
        (ABOUT, (1.4, 2.4), None, UNDECIDED),
        (ABOUT, (2.6, 2.8), None, NOT_REPRODUCED),
        (ABOVE, (1.06, 1.2), 0.05, REPRODUCED),
        (ABOVE, (1.045, 1.2), 0.05, UNDECIDED),
        (ABOVE, (1.04, 1.2), 0.0, REPRODUCED),
        (ABOVE, (0.9, 0.96), 0.05, UNDECIDED),
        (ABOVE, (0.9, 0.94), 0.05, NOT_REPRODUCED),
        (Region("about", 2.0, 0.1), (1.85, 2.15), 0.05, UNDECIDED),
    ],
)
def test_only_a_whole_interval_counts(world, region, bounds, bias, verdict) -> None:
    """On emulated nodes it must be outside of their own bias too."""
    claim, (low, high) = replace(SLOWER, region=region), bounds
    evidence = arranged(world, claim, (low, (low + high) / 2, high))
    found = judge(claim, evidence if bias is None else emulated(evidence, bias))
    assert found.verdict == verdict, found.line
    said = "the interval includes the bound"
    if bias is not None:
        said = "within the emulation's own bias of 5.0 % of the bound"
        assert found.takes == ("" if found.verdict != UNDECIDED else BIAS_THAT_DECIDES[bounds])
    assert (said in found.why) == (verdict == UNDECIDED)


@pytest.mark.parametrize("repeats", [2, 5])
def test_fewer_than_six_repeats_decide_nothing(world: Evidence, repeats: int) -> None:
    few = world.results.table[~(world.results.table["repeat"] >= repeats).fillna(False)]
    found = judge(SLOWER, arranged(on(world, few), SLOWER, (0.3, 0.3, 0.3)))
    assert found.verdict == UNDECIDED
    assert f"0.300 (no interval: {repeats} of the 6 runs it needs)" in found.why


def test_on_a_cpu_the_line_says_so_and_what_ran_instead(cpu: Evidence) -> None:
    evidence = copy(cpu)
    table = evidence.results.table
    fast = (table["metric"] == "peak_flops_per_second") & (table["precision"] != "fp32")
    table.loc[fast, "value"] *= 4
    line = judge(ANY_MIXED, evidence).line
    assert "made on 4 V100 with 106 M parameters" in line
    assert "tested on 2 CPU ranks of one machine with 1.07 M parameters in 6 runs" in line
    assert "(DDP) + AMP ran in torch amp O1, bf16, not apex_o2" in line


def test_speed_of_mixed_precision_is_asked_only_where_it_is_measured_to_be_fast(world, cpu) -> None:
    found = judge(ANY_MIXED, on(cpu, cpu.results.table))
    assert found.verdict == NOT_TESTABLE and found.effect is None
    assert found.why.startswith(
        "needs a low-precision peak of at least 2 times the fp32 peak, and here it is 1.00 times ("
    )
    assert judge(MIXED, world).verdict != NOT_TESTABLE
    gone = world.results.table["metric"] != "peak_flops_per_second"
    unknown = on(world, world.results.table[gone].copy())
    assert "ddp-mixed [apex O2, bf16] recorded none" in judge(MIXED, unknown).why
    assert judge(CLAIMS["amp-halves-memory"], unknown).verdict != NOT_TESTABLE


def test_what_ran_in_place_of_named_software_decides_nothing_and_is_told_beside_it() -> None:
    """Torch's own mixed precision decides a claim on mixed precision, and none on Apex."""
    plain, mixed = world_study("ddp", "ddp-mixed")["cells"]
    amp = make_world(cells=[plain, mixed | {"label": "DDP + AMP O2", "precision": "amp_o2"}])
    for repeats, value in (
        (6, "2.00 [2.00, 2.00]"),
        (5, "2.00 (no interval: 5 of the 6 runs it needs)"),
    ):
        few = amp.results.table[~(amp.results.table["repeat"] >= repeats).fillna(False)]
        found = judge(MIXED, arranged(on(amp, few), MIXED, (2.0, 2.0, 2.0)))
        assert (found.verdict, found.effect, found.runs) == (NOT_TESTABLE, None, ())
        assert found.why == (
            "it is about Apex, and DDP + AMP O2 ran in torch amp O2, bf16; measured instead: "
            f"throughput of DDP + AMP O2 over ddp is {value}"
        )
    halves = CLAIMS["amp-halves-memory"]
    assert judge(halves, arranged(amp, halves, (0.5, 0.5, 0.5))).verdict == REPRODUCED


def test_ranks_without_a_core_of_their_own_are_not_compared(cpu: Evidence) -> None:
    one, eight = (put("num_cores", value=cores)(cpu) for cores in (1.0, 8.0))
    assert "2 ranks share 1 core, so that not each has its own" in judge(SLOWER, one).why
    found = judge(SLOWER, eight)
    assert "tested on 4 CPU ranks" in found.scale
    assert [name for name, _ in found.worlds] == ["4 nodes with 4 ranks", "2 nodes with 2 ranks"]


def test_one_rank_exchanges_nothing_and_one_repeat_has_no_interval() -> None:
    cluster = {**make_study()["cluster"], "nodes": [1]}
    alone = fake_evidence(repeats=2, cluster=cluster)
    assert "several ranks on one machine, and here each has one" in judge(SLOWER, alone).why
    once = make_world("one", "server", repeats=1)
    assert "has one finished run, so no interval" in judge(SLOWER, once).why


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
    declare = "; a test that is about it says `compares: [global_batch]`"
    more = declare if field == "global batch" else ""
    assert found.why == f"server and one did unequal work, in {field}{more}"


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("sps-slower-than-one", put("parity_verdict", "server", text="NOT EQUAL"),
         "server on 4 ranks did not compute the same training"),
        ("amp-fits-batch-4", put("gpus", text="NVIDIA H200"), "needs a V100: what fits depends on"),
        ("amp-fits-batch-4", put("num_parameters", value=1e6),
         "needs a model of 106 M parameters, and this one"),
        ("sps-utilisation", one_process, "recorded 1 of 4 devices"),
        ("horovod-symmetric-time", one_process, "recorded one process"),
        ("dps-reaches-loss-first", put("loss", "ring", value=float("nan")), "no finite loss"),
        ("horovod-apex-steady", short,
         "a 95th percentile needs 100 timed steps, and a run of ring-mixed [apex O1, bf16] has"),
        ("horovod-apex-robust", lambda one: replace(one, study=replace(one.study, begin_steps=12)),
         "robustness is asked of whole trainings, and most runs here end after 12 of"),
    ],
)  # fmt: skip
def test_what_was_not_measured_so_gives_its_reason(world, name, change, why) -> None:
    found = judge(CLAIMS[name], change(world))
    assert found.verdict == NOT_TESTABLE and why in found.why


def test_apex_is_preferred_and_the_level_as_published() -> None:
    plain, mixed = world_study("ddp", "ddp-mixed")["cells"]
    extra = [
        {"name": name, "label": "x", "strategy": "ddp", "precision": precision}
        for name, precision in (("also-amp", "amp_o2"), ("also-apex", "apex_o1"))
    ]
    found = judge(MIXED, make_world(cells=[*extra, plain, mixed], repeats=2, profile=None))
    assert "throughput of ddp-mixed [apex O2, bf16] over ddp" in found.why and not found.notes
    without = make_world(cells=[*extra, plain], repeats=2, profile=None)
    assert "throughput of x [apex O1, bf16] over ddp" in judge(MIXED, without).why


def test_a_run_that_broke_settles_robustness_and_six_runs_what_fits(world: Evidence) -> None:
    fits, robust = CLAIMS["amp-fits-batch-4"], CLAIMS["horovod-apex-robust"]
    evidence = arranged(arranged(world, fits, (0.5, 0.6, 0.7)), robust, (1.2, 1.3, 1.4))
    assert judge(fits, evidence).verdict == judge(robust, evidence).verdict == REPRODUCED
    table = evidence.results.table
    rows = (table["metric"] == "status") & (table["cell"] == "ring-mixed") & (table["repeat"] == 1)
    rows &= table["level"] == "run"
    table.loc[rows & (table["nodes"] == 2), "text"] = "timeout"
    found = judge(robust, on(evidence, table))
    assert found.verdict == NOT_REPRODUCED
    assert "1 run of ring-mixed [apex O1, bf16] on 8 ranks ended as timeout" in found.why
    five = on(evidence, table[(table["repeat"] != 5).fillna(True)])
    found = judge(fits, five)
    assert found.verdict == NOT_TESTABLE and "has 5 runs of the 6 that a decision" in found.why
    assert judge(robust, five).verdict not in (REPRODUCED, NOT_REPRODUCED)


def test_the_best_must_beat_each_of_the_others(world: Evidence) -> None:
    evidence = arranged(world, BEST, (1.4, 1.5, 1.6))
    assert judge(BEST, evidence).verdict == REPRODUCED
    evidence = copy(evidence)
    [ring, *_] = evidence.places(CLAIMS["amp-speeds-up-horovod-four"].test["a"])
    set_metric(evidence, ring, "tokens_per_second", (1.7, 1.8, 1.9))
    agree(evidence, "tokens_per_second")
    assert judge(BEST, evidence).verdict == NOT_REPRODUCED


def test_roughness_leaves_the_warm_up_out_and_has_one_value_a_seed(world: Evidence) -> None:
    evidence = copy(world)
    [place, *_] = evidence.places(CLAIMS["small-batch-diverges"].test["a"])
    set_metric(evidence, place, "loss_roughness", (1.0, 1.0, 1.0))
    table = evidence.results.table
    early = (table["metric"] == "loss") & (table["step"] < world.study.optimiser.warmup_steps)
    table.loc[early, "value"] = 1e6
    found = measure(on(evidence, table), place, "loss_roughness")
    assert found.interval.value == 1.0 and len(found.values) == 6
    # Runs of one seed have the same losses.
    table.loc[table["seed"].notna(), "seed"] = 1
    again = on(evidence, table)
    assert measure(again, place, "loss_roughness").interval.n == 1


def test_time_is_uneven_where_one_rank_computes_while_the_others_wait(world: Evidence) -> None:
    """The steps of all ranks take as long, since each ends in a collective."""
    evidence = copy(world)
    [place, *_] = evidence.places(CLAIMS["horovod-symmetric-time"].test["a"])
    set_metric(evidence, place, "time_asymmetry", (1.5, 1.5, 1.5))
    assert measure(evidence, place, "time_asymmetry").interval.value == pytest.approx(3.0)
    unmarked = evidence.results.table["metric"] == "phase_seconds:communication"
    evidence.results.table.loc[unmarked, "value"] = 0.0
    with pytest.raises(NotTestableError, match="tell no communication apart"):
        measure(on(evidence, evidence.results.table), place, "time_asymmetry")


def test_loss_of_speedup_is_not_communication_where_little_is_sent(world: Evidence) -> None:
    claim = CLAIMS["sublinear-by-communication"]
    evidence = arranged(world, claim, (0.05, 0.06, 0.07))
    found = judge(claim, evidence)
    assert found.verdict == NOT_REPRODUCED
    # The loss is of timed runs, the share of profiled ones.
    assert "in 24 timed and 24 profiled runs" in found.scale and len(found.runs) == 48
    for place in evidence.places(CLAIMS["dps-beats-horovod-one-node"].test["b"]):
        rate = (2.0, 2.0, 2.0) if place.nodes == 2 else (1.0, 1.0, 1.0)
        set_metric(evidence, place, "tokens_per_second", rate)
    found = judge(claim, evidence)
    assert found.verdict == NOT_TESTABLE and "lost no speedup that the data show" in found.why


def test_passes_that_an_exchange_slows_leave_open_what_costs_the_speedup(world: Evidence) -> None:
    """Little is exposed, but the passes of two nodes take as long as those of one."""
    claim = CLAIMS["sublinear-by-communication"]
    evidence = arranged(world, claim, (0.05, 0.06, 0.07))
    table = evidence.results.table
    passes = (table["metric"] == "phase_seconds:forward") & (table["nodes"] == 1)
    table.loc[passes, "value"] /= 2
    found = judge(claim, evidence)
    assert found.verdict == UNDECIDED
    assert "passes take longer than ideal counted as communication it is 1.03" in found.why


def test_an_equal_pair_is_decided_by_its_band_and_by_no_test_against_equality(world) -> None:
    claim = CLAIMS["dps-equals-horovod-one-node"]
    evidence = arranged(world, claim, (1.01, 1.02, 1.03))
    one, other = judge_places(evidence, claim)
    for said, p_value in ((contrasts.UNDECIDED, 0.9), (contrasts.FASTER, 0.001)):
        found = judge(claim, decide(evidence, other, one, said, p_value))
        assert found.verdict == REPRODUCED, found.line
    set_metric(evidence, one, "step_seconds", (0.96, 1.0, 1.07))
    assert judge(claim, evidence).verdict == UNDECIDED


def test_best_without_one_of_its_comparisons_is_undecided(world: Evidence) -> None:
    claim = CLAIMS["dps-fastest-one-node"]
    evidence = arranged(world, claim, (1.4, 1.5, 1.6))
    test = claim.test
    places = choose(evidence, claim, [test["a"], *test["others"]], test["where"])
    for other in places[1:-1]:
        evidence = decide(evidence, places[0], other, contrasts.FASTER, 0.01)
    evidence = apart(evidence, places[0], places[-1])
    found = judge(claim, evidence)
    assert found.verdict == UNDECIDED
    assert f"no comparison of ddp with {places[-1].cell} was planned" in found.why
    unlike = decide(evidence, places[0], places[-1], "not compared: unequal batches", math.nan)
    found = judge(claim, unlike)
    assert (found.verdict, found.takes) == (UNDECIDED, "equal work and training")
    # The least ratio is above 1 where all are, so the weakest comparison counts.
    near = decide(evidence, places[0], places[-1], contrasts.UNDECIDED, 0.2)
    assert judge(claim, near).takes == "15 runs a cell"
    # It is below 1 where one is, so the strongest does.
    slower = arranged(world, claim, (0.5, 0.6, 0.7))
    for other, p_value in zip(places[1:], (0.2, *(0.9 for _ in places[2:])), strict=True):
        slower = decide(slower, places[0], other, contrasts.UNDECIDED, p_value)
    assert judge(claim, slower).takes == "15 runs a cell"
    whole = decide(evidence, places[0], places[-1], contrasts.FASTER, 0.01)
    assert judge(claim, whole).verdict == REPRODUCED


def test_a_part_of_the_runs_that_overlaps_is_no_decision(world: Evidence) -> None:
    """The interval leaves out the bound, the ranks of the runs do not."""
    contrast = np.arange(1.0, 7.0), np.arange(2.0, 8.0)
    found = Outcome([], "x", Interval(1.2, 1.1, 1.3, 6, "made up"), [contrast])
    settled = settle(found, Region("above", 1.0, 0.0), world)
    assert (settled.verdict, settled.p_value) == (UNDECIDED, None)
    assert "the rank tests do not decide" in settled.against
    assert f"x is 1.20 [1.10, 1.30], and {settled.against} (claimed above 1)" == settled.why


def test_a_second_metric_is_said_where_the_interval_includes_the_bound(world: Evidence) -> None:
    """The libraries of each rank draw a ratio of memory to one; more repeats cannot help."""
    region, effect = Region("below", 1.05, 0.0), Interval(1.04, 1.03, 1.06, 6, "made up")
    other = Interval(1.13, 1.12, 1.15, 6, "made up")
    said = "without the libraries 1.13 [1.12, 1.15]"
    beside = Beside(other, "without the libraries", "")
    found = settle(Outcome([], "x", effect, beside=beside), region, world)
    assert (found.verdict, found.against) == (UNDECIDED, said)
    assert f"includes the bound, and {said} (claimed" in found.why


@pytest.mark.parametrize(
    ("bounds", "n", "other", "takes"),
    [
        # Half the width must become a third: nine times the runs.
        ((0.9, 1.1, 1.7), 6, None, "24 runs a cell"),
        ((0.99, 1.01, 1.1), 6, None, "24 runs a cell"),
        ((0.9, 1.0, 1.1), 6, None, "60 runs a cell"),
        ((0.9, 1.1, 1.7), 3, None, "6 runs a cell"),
        ((0.9, 1.1, 1.7), 6, 1.2, "24 runs a cell"),
        ((0.9, 1.1, 1.7), 6, 0.8, "a GPU"),
        ((1.1, 1.2, 1.3), 6, 0.8, "a GPU"),
    ],
)
def test_an_open_claim_says_what_would_decide_it(world: Evidence, bounds, n, other, takes) -> None:
    """By how far the interval reaches over the bound, at the same effect and spread."""
    low, value, high = bounds
    beside = None
    if other:
        beside = Beside(Interval(other, other, other, 6, "made up"), "without libraries", "a GPU")
    outcome = Outcome([], "x", Interval(value, low, high, n, "made up"), beside=beside)
    found = settle(outcome, ABOVE, world)
    assert (found.verdict, found.takes) == (UNDECIDED, takes)


@pytest.mark.parametrize(
    ("value", "takes"),
    [(1.02, "emulated times off by at most 2 %, or real nodes"), (1.2, "60 runs a cell")],
)
def test_more_runs_are_told_only_where_the_emulation_leaves_the_value(world, value, takes) -> None:
    """Times that may be off by a twentieth leave a value near the bound open, however exact."""
    evidence = emulated(arranged(world, SLOWER, (0.6, 0.65, 0.7)), 0.05)
    places = judge_places(evidence, SLOWER)
    outcome = Outcome(places, "x", Interval(value, 0.4, 2.0, 6, "made up"), num_times=1)
    found = settle(outcome, ABOVE, evidence)
    assert (found.verdict, found.takes) == (UNDECIDED, takes)


def test_a_p_value_says_how_many_runs_would_decide(world: Evidence) -> None:
    contrast = np.arange(1.0, 7.0), np.arange(2.0, 8.0)
    found = settle(Outcome([], "x", Interval(1.2, 1.1, 1.3, 6, ""), [contrast]), ABOVE, world)
    assert found.takes == "60 runs a cell"
    barely = judge(SLOWER, arranged(world, SLOWER, (0.6, 0.65, 0.7)))
    weak = [replace(barely, claim=replace(SLOWER, id=f"c{n}"), p_value=0.02) for n in range(3)]
    assert [one.takes for one in corrected(weak)] == ["7 runs a cell"] * 3  # by p = 0.06
    # Of no test it is always 0.05, however many runs there are.
    alone = [replace(one, p_value=0.05) for one in weak[:2]]
    assert corrected(alone)[0].takes == "that all other tested claims are decided"
    assert corrected(weak)[0].line.count("to decide it takes at least 7 runs a cell") == 1


def test_a_world_that_says_the_contrary_leaves_a_claim_undecided() -> None:
    claim = CLAIMS["sublinear-nodes"]
    three = make_world("ddp", "ring", cluster=CLUSTER | {"nodes": [1, 2, 4]})
    for rates, verdict, said in (
        ({2: 1.4, 4: 2.2}, REPRODUCED, "2 of 2 worlds agree"),
        ({2: 1.4, 4: 5.5}, UNDECIDED, "1 of 2 worlds agree, 1 not reproduced"),
    ):
        evidence = copy(three)
        for selector in claim.test["cells"]:
            for place in evidence.places(selector):
                rate = rates.get(place.nodes, 1.0)
                set_metric(evidence, place, "tokens_per_second", (rate, rate, rate))
        found = judge(claim, evidence)
        assert found.verdict == verdict and said in found.why, found.line
        assert found.worlds[0][0] == "2 nodes with 8 ranks"


def test_all_decided_claims_of_a_study_keep_one_error_rate(world: Evidence) -> None:
    """Each of many barely decided claims is decided by itself, and none of all of them."""
    barely = judge(SLOWER, arranged(world, SLOWER, (0.6, 0.65, 0.7)))
    assert barely.verdict == REPRODUCED and barely.p_value is not None
    weak = [replace(barely, claim=replace(SLOWER, id=f"c{n}"), p_value=0.02) for n in range(3)]
    assert [one.verdict for one in corrected(weak[:2])] == [REPRODUCED] * 2
    assert [one.verdict for one in corrected(weak)] == [UNDECIDED] * 3
    strong = replace(barely, claim=replace(SLOWER, id="strong"), p_value=0.001)
    found = corrected([strong, *weak])
    assert [one.verdict for one in found] == [REPRODUCED, *[UNDECIDED] * 3]
    assert "p = 0.004 after correction for 4 tested claims" in found[0].why


def test_sources_that_disagree_on_one_effect_count_once(world: Evidence) -> None:
    names = ("sps-slower-than-one", "sps-improves", "dps-fastest-one-node")
    evidence = arranged(world, SLOWER, (0.6, 0.65, 0.7))
    shown = [to_dict(judge(CLAIMS[name], evidence)) for name in names]
    assert [one["verdict"] for one in shown[:2]] == [REPRODUCED, NOT_REPRODUCED]
    assert total(shown) == "3 claims on 2 effects"
    assert count(shown)[REPRODUCED] == 2 and count(shown)[NOT_REPRODUCED] == 0
    assert "Family-wise error rate: 5 %." in counted(shown)


@pytest.mark.parametrize(
    ("region", "effect", "said", "p_value", "verdict", "word"),
    [
        (ABOVE, (1.1, 1.2, 1.3), contrasts.FASTER, 0.01, REPRODUCED, "claimed above 1"),
        (ABOVE, (0.7, 0.8, 0.9), contrasts.SLOWER, 0.01, NOT_REPRODUCED, "claimed above 1"),
        (ABOVE, (1.1, 1.2, 1.3), contrasts.UNDECIDED, 0.3, UNDECIDED, "not decide (p = 0.3)"),
        (ABOVE, (1.1, 1.2, 1.3), contrasts.TOO_FEW, 0.4, UNDECIDED, "too few for the rank test"),
        # An interval around one needs no rank test.
        (BELOW, (0.9, 1.0, 1.1), contrasts.TOO_FEW, 1.0, REPRODUCED, "claimed below 2"),
    ],
)
def test_interval_and_rank_test_must_say_the_same(
    world, region, effect, said, p_value, verdict, word
) -> None:
    claim = replace(MIXED, region=region)
    evidence = arranged(world, claim, effect)
    one, other = judge_places(evidence, claim)
    found = judge(claim, decide(evidence, one, other, said, p_value))
    assert (found.verdict, word in found.why) == (verdict, True), found.why


def judge_places(evidence: Evidence, claim: Claim) -> list[Place]:
    test = claim.test
    return choose(evidence, claim, [test["a"], test["b"]], test["where"])


def test_without_a_validation_no_time_of_emulated_nodes_decides(world: Evidence) -> None:
    found = judge(SLOWER, emulated(arranged(world, SLOWER, (3.0, 4.0, 5.0)), None))
    assert found.verdict == UNDECIDED
    assert "how far emulated times are off was not measured" in found.why
    assert "cluster.real_time on a machine with a core for each node" in found.takes


@pytest.mark.parametrize(
    ("name", "network"), [("sps-slower-than-one", "real"), ("amp-halves-memory", "emulated")]
)
def test_neither_a_real_network_nor_memory_has_the_emulation_s_bias(name, network, world) -> None:
    claim = replace(CLAIMS[name], region=ABOVE)
    evidence = arranged(world, claim, (1.01, 1.02, 1.03))
    evidence.results.table["network"] = network
    found = judge(claim, with_bias(evidence, 0.5))
    assert found.verdict == REPRODUCED, found.line
