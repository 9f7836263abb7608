"""The model of a step: what a change of a job does, schedules, collectives, cuts of operators."""

from dataclasses import asdict, replace
from math import inf
from typing import Any

import pytest

from pipeline.cost.computation import Passes, host
from pipeline.cost.constants import Constants
from pipeline.cost.job import Job, Refused, jobs_of
from pipeline.cost.memory import parts
from pipeline.cost.points import read
from pipeline.cost.predict import Model, Prediction, on_gpus, predict
from pipeline.cost.schedule import exposed
from pipeline.cost.score import FOLDER
from pipeline.cost.sharding import Chain, Choice
from pipeline.models import num_parameters
from pipeline.parallel.mesh import Degrees
from pipeline.planner.ranking import Cluster, job_of
from pipeline.planner.sizes import size_of

ROW = next(row for row in read(FOLDER / "llmfoundry.csv") if row["model"] == "mpt-1b")
JOB = replace(jobs_of(ROW)[0], zero=0, seq=2048, micro=4, accum=8, recompute="none")
MANY: dict[str, Any] = {"gpus": 64, "dp": 64, "node_net_gbps": 1600}
STAGES: dict[str, Any] = {"pp": 4, "dp": 2}


def of(job: Job = JOB, **changes) -> Prediction:
    return predict(replace(job, **changes), Constants())


def kept(**changes) -> dict[str, float]:
    """Bytes of the first stage, part by part."""
    model = Model(replace(JOB, **changes), Constants())
    return parts(model.job, model.profile, model.layers[0], 0, model.device.element)


@pytest.mark.parametrize(
    ("part", "before", "after", "least", "most"),
    [
        ("computation", {}, {"accum": 16}, 2, 2),
        ("computation", {}, {"recompute": "full"}, 1.26, 1.41),
        ("computation", {}, {"kv_heads": 2}, 0, 0.999),
        ("computation", {}, {"gated": True}, 1.001, inf),
        ("computation", {"precision": "bf16"}, {"precision": "tf32"}, 1.001, inf),
        ("computation", {"precision": "tf32"}, {"precision": "fp32"}, 1.001, inf),
        # torchtitan's makes every second product again, others attention alone.
        ("computation", {"framework": "torchtitan"}, {"recompute": "selective"}, 1.05, 1.25),
        ("communication", {"framework": "torchtitan", "tp": 8, "dp": 1},
         {"recompute": "selective"}, 1.2, 1.25),
        ("computation", {"framework": "Megatron-LM"}, {"recompute": "selective"}, 1.001, 1.05),
        ("communication", {"framework": "Megatron-LM", "tp": 8, "dp": 1},
         {"recompute": "selective"}, 1, 1),
        # Autocast copies weights and gradients; masters need none of its own.
        ("computation", {"precision": "bf16"}, {"precision": "bf16 amp"}, 1.0001, 1.05),
        ("optimiser", {"precision": "bf16"}, {"precision": "bf16 amp"}, 0.8, 0.8),
        # Biases and dropout are passes of their own where nothing fuses them.
        ("computation", {}, {"biased": True}, 1.02, 1.2),
        ("computation", {"framework": "Megatron-LM"}, {"biased": True}, 1, 1),
        ("kept activations", {}, {"biased": True}, 17 / 16, 17 / 16),
        # All wait for the slowest of the devices.
        ("computation", MANY | {"gpus": 1, "dp": 1}, {"gpus": 512, "dp": 512}, 1.01, 1.06),
        ("communication", MANY, {"node_net_gbps": 10}, 5, inf),
        ("seconds", {}, {"node_net_gbps": 10}, 1, 1),  # of one node
        # Autocast reduces gradients in fp32.
        ("communication", MANY | {"framework": "x", "accum": 1, "node_net_gbps": 100,
                                  "precision": "fp16"}, {"precision": "fp16 amp"}, 1.9, inf),
        ("kept activations", {}, {"recompute": "full"}, 0, 0.4),
        ("kept logits", {}, {"bert": True}, 0.15, 0.15),
        ("kept weights", {}, {"tied": False}, 1.001, inf),
        ("kept weights", {}, {"zero": 1}, 1, 1),
        ("kept weights", {}, {"zero": 3}, 0, 0.999),
        ("kept optimiser", {}, {"zero": 1}, 1 / 8, 1 / 8),
        ("kept gradients", {}, {"zero": 3}, 1 / 8, 1 / 8),
        # Both ends of a pipeline add up the gradients of a tied table.
        ("communication", {"pp": 8, "dp": 1, "gpus_per_node": 1, "node_net_gbps": 10.0,
                           "tied": False}, {"tied": True}, 1.001, inf),
        ("bubble", STAGES | {"schedule": "1f1b"}, {"schedule": "gpipe"}, 0.9, 1.1),
        ("bubble", STAGES | {"schedule": "1f1b"}, {"schedule": "zero_bubble"}, 0, 0.6),
        # GPipe keeps the activations of all micro-batches, 1F1B those of as many as stages.
        ("kept activations", STAGES | {"schedule": "1f1b"}, {"schedule": "gpipe"}, 2, 2),
    ],
)  # fmt: skip
def test_a_change_has_its_effect(part, before, after, least, most) -> None:
    """The ratio of a part of the step, or of the memory, after a change to that before."""
    values = []
    for changes in (before, before | after):
        step, memory = of(**changes), kept(**changes)
        of_memory = {f"kept {name}": size for name, size in memory.items()}
        values.append({**asdict(step), "seconds": step.seconds, **of_memory}[part])
    assert least * (1 - 1e-6) <= values[1] / values[0] <= most * (1 + 1e-6)


def test_the_parts_of_the_memory_add_up() -> None:
    assert sum(kept().values()) == of().memory


def test_a_small_micro_batch_waits_for_the_host() -> None:
    small = of(micro=1, seq=128, layers=48, hidden=512, ffn=2048, heads=8)
    assert small.host > small.computation
    assert of(micro=32).host < 0.02 * of(micro=32).seconds


def test_a_host_starts_both_halves_of_what_sequence_parallelism_cuts() -> None:
    """Ten collectives a layer in place of four, fourteen for six where all is recomputed."""
    axis = replace(JOB, dp=1, tp=8, micro=1)
    for recompute, more in (("none", 6), ("full", 8)):
        cut, whole = (
            host(replace(axis, seq_parallel=each, recompute=recompute), Constants().profile("x"))
            for each in (True, False)
        )
        assert cut - whole == pytest.approx(1e-6 * 150 * more)


def test_a_pipeline_has_a_bubble() -> None:
    piped = of(pp=4, dp=2)
    assert piped.bubble / (piped.seconds - piped.bubble) == pytest.approx(3 / 8, abs=0.12)
    assert of().bubble == 0


def test_layers_of_each_chunk_are_those_that_are_stated() -> None:
    uneven = of(pp=2, dp=4, vpp=2, layers=8, counts=(1, 2, 2, 3))
    assert Model(replace(JOB, pp=2, vpp=2, counts=(3, 2, 2, 1)), Constants()).layers == (3, 2, 2, 1)
    assert uneven.seconds > of(pp=2, dp=4, vpp=2, layers=8).seconds, "the output layer is there too"


def test_more_stages_than_are_replayed_are_refused() -> None:
    with pytest.raises(Refused, match="257 stages are not modelled; of at most 256 the passes"):
        of(pp=257, layers=300)


def test_zero_3_of_deepspeed_waits_where_fsdp_does_not() -> None:
    """Its code gathers each matrix by itself, and again to recompute; collectives take lists.

    Of a layer whose largest matrix fills what may be gathered none is gathered ahead.
    """
    job = replace(JOB, zero=3, shard=64, accum=1.0, recompute="full", **MANY)

    def sharded(name: str, **changes) -> tuple[float, float, Passes]:
        model = Model(replace(job, framework=name, **changes), Constants())
        return *model.exchanged(job.layer_parameters, 4), model.zero

    # Four in the forward pass; twice four and as many reductions in the other one.
    lists = 1e-6 * 10 * 64 * 4
    gather, reduce, exposed = sharded("ZeRO-3", micro=64)
    assert lists < exposed.forward < lists + gather
    assert exposed.backward > reduce + 3 * lists
    assert sharded("FSDP", micro=64)[-1].backward < 0.5 * reduce
    assert exposed.backward - sharded("ZeRO-3", micro=64, recompute="none")[-1].backward > lists
    full = replace(job, framework="ZeRO-3", ffn=10**9 // job.hidden + 1)
    one_by_one = Model(full, Constants())
    gather, _ = one_by_one.exchanged(full.layer_parameters, 4)
    assert one_by_one.zero.forward == pytest.approx(gather + lists)


def test_ranks_of_the_tensor_axis_send_parts_and_gather() -> None:
    """Over a slow network a part each is less than the whole; inside of a node gathering costs."""
    slow = replace(JOB, gpus=16, dp=1, tp=8, pp=2, node_net_gbps=10.0)
    whole, parts = (of(slow, framework=name).communication for name in ("x", "Megatron-LM"))
    assert parts < 0.5 * whole
    cut = of(slow, framework="Megatron-LM", seq_parallel=True).communication
    gather = Model(slow, Constants()).network.gather("tensor", 2.0 * JOB.tokens * JOB.hidden)
    assert parts - cut == pytest.approx(JOB.accum * gather)


def test_no_more_than_all_but_the_last_bucket_is_hidden() -> None:
    assert exposed(10.0, 100.0, 5) == 2.0
    assert exposed(10.0, 100.0, 5, last=0.5) == 5.0, "the embedding's gradient comes last"
    assert exposed(10.0, 4.0, 5, last=0.1) == pytest.approx(10 - 4 * 4 / 5)


def test_a_host_that_runs_ahead_hides_behind_the_update() -> None:
    ours = jobs_of(read(FOLDER / "samestep_h200.csv")[0])[0]
    known = of(ours)
    assert known.host > 0
    other = of(ours, framework="other")
    assert other.host + other.computation == pytest.approx(1e-6 * (2 * (1800 + 330) + 1500))
    queued = known.host + known.optimiser + known.computation
    assert queued == pytest.approx(1e-6 * (2 * 1800 + 1500))


def test_the_cheapest_cuts_are_those_that_keep_few_enough_numbers() -> None:
    """Moves between cuts cost more than these gain, until the numbers forbid to do without."""
    operators = [[Choice("whole", 2.0, 9), Choice("cut", 1.0, kept)] for kept in (5, 4)]
    chain = Chain(operators, [[[0.0, 3.0], [3.0, 2.5]]])
    assert [chain.cheapest(most) for most in (inf, 17, 8)] == [(0, 0), (1, 1), None]


def test_on_gpus_a_cut_costs_what_links_and_products_do() -> None:
    """Within a node a ring is faster than over 10 Gbit/s; a half of a product is half as long."""
    size = size_of("1.3B")
    prices, steps = [], []
    for nodes, gpus in ((1, 8), (8, 1)):
        cluster = Cluster("a100-80", 80, nodes, gpus, 10.0)
        job = job_of(size, cluster, nodes, Degrees(4, 2, microbatches=8), 64, "bf16", False)
        whole, each = on_gpus(job, Constants(), num_parameters(size))
        prices.append(each)
        steps.append((whole, predict(job, Constants())))
    near, far = prices
    assert (near.ranks, near.pieces) == (2, 8)
    assert near.all_reduce(10**7) < far.all_reduce(10**7) / 10
    assert near.gather(10**7) < near.all_reduce(10**7)
    assert 0.45 < near.product(4096, 8192, 4096) / near.product(4096, 8192, 8192) < 0.55
    for whole, cut in steps:
        assert whole.computation > 1.5 * cut.computation, "each of two ranks does all of it"
