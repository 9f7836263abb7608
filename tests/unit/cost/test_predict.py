"""Response of the model when one thing about a job changes."""

from dataclasses import asdict, replace
from math import inf

import pytest

from pipeline.cost.constants import Constants
from pipeline.cost.job import Job, Refused, jobs_of
from pipeline.cost.memory import parts
from pipeline.cost.points import read
from pipeline.cost.predict import Model, Prediction, predict
from pipeline.cost.schedule import exposed
from pipeline.cost.score import FOLDER

ROW = next(row for row in read(FOLDER / "llmfoundry.csv") if row["model"] == "mpt-1b")
JOB = replace(jobs_of(ROW)[0], zero=0, seq=2048, micro=4, accum=8, recompute="none")
MANY = {"gpus": 64, "dp": 64, "node_net_gbps": 1600}


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


def test_a_pipeline_has_a_bubble() -> None:
    piped = of(pp=4, dp=2)
    assert piped.bubble / (piped.seconds - piped.bubble) == pytest.approx(3 / 8, abs=0.12)
    assert of().bubble == 0


def test_gpipe_keeps_the_activations_of_all_micro_batches() -> None:
    first, all_of_them = (kept(pp=4, dp=2, schedule=name) for name in ("1f1b", "gpipe"))
    assert all_of_them["activations"] == pytest.approx(8 / 4 * first["activations"])


def test_zero_bubble_leaves_less_of_it_and_gpipe_as_much_as_1f1b() -> None:
    bubbles = {name: of(pp=4, dp=2, accum=8.0, schedule=name).bubble
               for name in ("1f1b", "gpipe", "zero_bubble")}  # fmt: skip
    assert bubbles["gpipe"] == pytest.approx(bubbles["1f1b"], rel=0.1)
    assert bubbles["zero_bubble"] < 0.6 * bubbles["1f1b"]


def test_layers_of_each_chunk_are_those_that_are_stated() -> None:
    uneven = of(pp=2, dp=4, vpp=2, layers=8, counts=(3, 2, 2, 1))
    assert Model(replace(JOB, pp=2, vpp=2, counts=(3, 2, 2, 1)), Constants()).layers == (3, 2, 2, 1)
    assert uneven.bubble > of(pp=2, dp=4, vpp=2, layers=8).bubble


def test_more_stages_than_are_replayed_are_refused() -> None:
    with pytest.raises(Refused, match="257 stages are not modelled; of at most 256 the passes"):
        of(pp=257, layers=300)


def test_a_tied_table_is_added_up_between_both_ends() -> None:
    tied, untied = (of(pp=8, dp=1, gpus=8, tied=tied, gpus_per_node=1, node_net_gbps=10.0)
                    for tied in (True, False))  # fmt: skip
    assert tied.communication > untied.communication


def test_no_more_than_all_but_the_last_bucket_is_hidden() -> None:
    assert exposed(10.0, 100.0, 5) == 2.0
    assert exposed(10.0, 100.0, 5, last=0.5) == 5.0, "the embedding's gradient comes last"
    assert exposed(10.0, 4.0, 5, last=0.1) == pytest.approx(10 - 4 * 4 / 5)


def test_a_host_that_runs_ahead_hides_behind_the_update() -> None:
    ours = jobs_of(read(FOLDER / "samestep_h200.csv")[0])[0]
    known = of(ours)
    assert known.host > 0
    assert of(ours, framework="other").host > known.host + 0.005
    queued = known.host + known.optimiser + known.computation
    assert queued == pytest.approx(1e-6 * (2 * 1800 + 1500))
