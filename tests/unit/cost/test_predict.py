"""The model of a step: what a change of a job does, what is hidden, and cuts of operators."""

from dataclasses import asdict, replace
from math import inf
from typing import Any

import pytest

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
        ("computation", {}, {"recompute": "full"}, 1.26, 1.41),
        # torchtitan's makes every second product again, others attention alone.
        ("computation", {"framework": "torchtitan"}, {"recompute": "selective"}, 1.05, 1.25),
        ("communication", {"framework": "torchtitan", "tp": 8, "dp": 1},
         {"recompute": "selective"}, 1.2, 1.25),
        ("computation", {"framework": "Megatron-LM"}, {"recompute": "selective"}, 1.001, 1.05),
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
        # Autocast reduces gradients in fp32.
        ("communication", MANY | {"framework": "x", "accum": 1, "node_net_gbps": 100,
                                  "precision": "fp16"}, {"precision": "fp16 amp"}, 1.9, inf),
        ("kept activations", {}, {"recompute": "full"}, 0, 0.4),
        ("kept logits", {}, {"bert": True}, 0.15, 0.15),
        ("kept weights", {}, {"tied": False}, 1.001, inf),
        ("kept weights", {}, {"zero": 3}, 0, 0.999),
        ("kept optimiser", {}, {"zero": 1}, 1 / 8, 1 / 8),
        ("kept gradients", {}, {"zero": 3}, 1 / 8, 1 / 8),
        # Both ends of a pipeline add up the gradients of a tied table.
        ("communication", {"pp": 8, "dp": 1, "gpus_per_node": 1, "node_net_gbps": 10.0,
                           "tied": False}, {"tied": True}, 1.001, inf),
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


def test_more_stages_than_are_replayed_are_refused() -> None:
    with pytest.raises(Refused, match="257 stages are not modelled; of at most 256 the passes"):
        of(pp=257, layers=300)


def test_no_more_than_all_but_the_last_bucket_is_hidden() -> None:
    assert exposed(10.0, 100.0, 5) == 2.0
    assert exposed(10.0, 100.0, 5, last=0.5) == 5.0, "the embedding's gradient comes last"
    assert exposed(10.0, 4.0, 5, last=0.1) == pytest.approx(10 - 4 * 4 / 5)


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
