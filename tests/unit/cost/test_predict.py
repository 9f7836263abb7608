"""Response of the model when one thing about a job changes."""

from dataclasses import replace

import pytest

from pipeline.cost.constants import Constants
from pipeline.cost.job import Job, jobs_of
from pipeline.cost.memory import parts
from pipeline.cost.points import read
from pipeline.cost.predict import Model, Prediction, predict
from pipeline.cost.score import FOLDER


@pytest.fixture
def job() -> Job:
    row = next(r for r in read(FOLDER / "llmfoundry.csv") if r["model"] == "mpt-1b")
    return replace(jobs_of(row)[0], zero=0, seq=2048, micro=4, accum=8, recompute="none")


def of(job: Job, **changes) -> Prediction:
    return predict(replace(job, **changes), Constants())


def memory(job: Job, **changes) -> dict[str, float]:
    model = Model(replace(job, **changes), Constants())
    return parts(model.job, model.profile, model.counts[0], 0, model.device.element)


def test_twice_the_micro_batches_take_twice_the_computation(job) -> None:
    assert of(job, accum=16).computation == pytest.approx(2 * of(job).computation)


def test_recomputation_costs_a_third_and_saves_memory(job) -> None:
    full, none = of(job, recompute="full"), of(job)
    assert full.computation / none.computation == pytest.approx(4 / 3, abs=0.08)
    kept = [memory(job, recompute=how)["activations"] for how in ("full", "none")]
    assert kept[0] < 0.4 * kept[1]


def test_zero_cuts_states_and_stage_3_the_weights(job) -> None:
    plain, one, three = (memory(job, zero=zero) for zero in (0, 1, 3))
    assert one["optimiser"] == pytest.approx(plain["optimiser"] / 8)
    assert one["weights"] == plain["weights"] > three["weights"]
    assert three["gradients"] == pytest.approx(plain["gradients"] / 8)
    assert sum(plain.values()) == of(job).memory


def test_a_small_micro_batch_waits_for_the_host(job) -> None:
    small = of(job, micro=1, seq=128, layers=48, hidden=512, ffn=2048, heads=8)
    assert small.host > small.computation
    assert of(job, micro=32).host < 0.02 * of(job, micro=32).seconds


def test_a_slower_network_shows_where_nodes_are_crossed(job) -> None:
    fast, slow = (of(job, gpus=64, dp=64, node_net_gbps=rate) for rate in (1600, 10))
    assert slow.communication > 5 * fast.communication
    assert of(job, node_net_gbps=10).seconds == of(job).seconds


def test_a_pipeline_has_a_bubble(job) -> None:
    piped = of(job, pp=4, dp=2)
    assert piped.bubble / (piped.seconds - piped.bubble) == pytest.approx(3 / 8, abs=0.12)
    assert of(job).bubble == 0


def test_grouped_queries_gates_and_untied_tables_count(job) -> None:
    assert of(job, kv_heads=2).computation < of(job).computation < of(job, gated=True).computation
    assert memory(job, tied=False)["weights"] > memory(job)["weights"]


def test_bert_reads_few_positions_out(job) -> None:
    assert memory(job, bert=True)["logits"] == pytest.approx(0.15 * memory(job)["logits"])


def test_numbers_are_faster_in_narrow_formats(job) -> None:
    times = [of(job, precision=p).computation for p in ("bf16", "tf32", "fp32")]
    assert times == sorted(times) and times[0] < times[1] < times[2]


def test_all_wait_for_the_slowest_device(job) -> None:
    one, many = (of(job, gpus=n, dp=n, node_net_gbps=1600) for n in (1, 512))
    assert 1.01 < many.computation / one.computation < 1.06


def test_autocast_reduces_gradients_in_fp32(job) -> None:
    narrow, wide = (
        of(job, gpus=64, dp=64, node_net_gbps=100, precision=p, framework="x", accum=1)
        for p in ("fp16", "fp16 amp")
    )
    assert wide.communication > 1.9 * narrow.communication


def test_a_host_that_runs_ahead_hides_behind_the_update() -> None:
    ours = jobs_of(read(FOLDER / "samestep_h200.csv")[0])[0]
    known = predict(ours, Constants())
    assert known.host > 0
    assert of(ours, framework="other").host > known.host + 0.005
    queued = known.host + known.optimiser + known.computation
    assert queued == pytest.approx(1e-6 * (2 * 1800 + 1500))
