"""Layouts of a model on a cluster, by predicted step time."""

import json
import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from pipeline import models
from pipeline.__main__ import main
from pipeline.cost.communication import Network
from pipeline.cost.constants import DEVICES, Constants, content, device_of, name_of
from pipeline.cost.predict import Prediction, predict
from pipeline.errors import StudyError
from pipeline.parallel.mesh import Degrees
from pipeline.planner.memory import peak, predict_sent
from pipeline.planner.ranking import (
    Cluster,
    Ranked,
    answer,
    job_of,
    jobs,
    rank,
    run_on_gpus,
    table,
)
from pipeline.planner.sizes import model_of, size_of


def cluster(nodes: int, gpus: int, link: float = 0.0) -> Cluster:
    return Cluster("a100-80", 80, nodes, gpus, link)


@cache
def on_four_nodes(size: str) -> list[Ranked]:
    return rank(size_of(size), cluster(4, 8, 200.0), 512, "bf16")


def test_the_first_is_the_simplest_that_may_be_fastest() -> None:
    first, *others = found = on_four_nodes("1.3B")
    fastest = min(found, key=lambda one: one.prediction.seconds)
    seconds = [one.prediction.seconds for one in others]
    assert seconds == sorted(seconds)
    close = [one for one in found if not one.is_told_from(fastest)]
    assert first in close and first.parts == min(one.parts for one in close)


def test_a_slow_link_keeps_tensors_inside_and_a_large_model_is_cut() -> None:
    slow = rank(size_of("6.7B"), cluster(4, 8, 10.0), 512, "bf16")
    assert slow[0].job.dp < 32
    large = rank(size_of("13B"), cluster(1, 8), 8, "bf16")
    assert all(one.job.tp * one.job.pp > 1 or one.job.zero == 3 for one in large)


def test_what_fits_nowhere_says_what_the_least_needs() -> None:
    def of(nodes: float, gib: float) -> list[Ranked]:
        return rank(size_of("2.7B"), Cluster("v100-16", gib, int(nodes), 2, 100.0), 8, "fp16")

    with pytest.raises(StudyError) as refused:
        of(1, 16.0)
    found = re.fullmatch(
        r"no layout of 2,6.. M parameters fits 1 x 2 devices of 16 GiB: the least, .*, needs "
        r"([\d.]+) GiB, ([\d.]+) more than a process can have; devices of ([\d.]+) GiB would do, "
        r"and so would (\d) nodes \(.*\)",
        str(refused.value),
    )
    assert found is not None, refused.value
    needs, more, gib, nodes = map(float, found.groups())
    assert more == pytest.approx(needs - 0.94 * 16, abs=0.06)
    # What would do does, and less does not.
    assert of(1, 1.01 * gib) and of(nodes, 16)
    for less in ((1, 0.99 * gib), (nodes / 2, 16)):
        with pytest.raises(StudyError, match="no layout of"):
            of(*less)


@pytest.mark.parametrize("device", [True, False], ids=["stated", "of this machine"])
def test_the_table_says_that_it_is_a_prediction(device, capsys, monkeypatch) -> None:
    here = {"gpus": [] if device else ["NVIDIA A100-SXM4-80GB"] * 2}
    monkeypatch.setattr("pipeline.commands.plan.hardware", lambda: here)
    words = "plan --model 1.3B --nodes 2 --link 200gbit --batch 8"
    stated = " --device a100-80 --gpus-per-node 2" if device else ""
    assert main((words + stated).split()) == 0
    printed = capsys.readouterr().out.splitlines()
    asked, blank, *ranking = printed
    assert asked.startswith("gpt2, 1,316 M parameters: 24 layers of width 2048, 16 heads, ")
    assert asked.endswith(
        "global batch 8, bf16, on 2 x 2 a100-80 (80 GiB), 200 Gbit/s a node in all"
    )
    assert not blank and ranking == table(rank(size_of("1.3B"), cluster(2, 2, 200.0), 8, "bf16"))
    assert printed[-1].startswith("Predicted, nothing is measured; errors by published points")
    assert any(line.startswith(("Runner-up: ", "Fastest: ")) for line in printed)


def test_a_device_of_data_sheets_alone_says_that_no_step_of_it_was_published(monkeypatch) -> None:
    entry = {**content()["devices"]["H200"], "pattern": "B200"}
    monkeypatch.setitem(content()["devices"], "B200", entry)
    monkeypatch.setitem(DEVICES, "b200-180", 180)
    found = rank(size_of("350M"), Cluster("b200-180", 180, 1, 2, 0.0), 8, "bf16")
    assert answer(found)[-1].endswith("is measured; held against no step of this device (B200).")
    entry["driver_name"] = "NVIDIA B200"
    assert name_of("NVIDIA B200") == "b200-180" and name_of("NVIDIA H200 NVL") == "h200-141"
    assert name_of("NVIDIA GB200") is None and name_of("NVIDIA A100-SXM4-40GB") == "a100-40"


def test_every_choice_is_a_cell_that_its_strategy_takes() -> None:
    """What `strategy`, `options` and `workload` state is the layout that was predicted."""
    found = on_four_nodes("6.7B")
    assert len({one.cell["strategy"] for one in found}) >= 4
    names = {one.name for one in found}
    assert {"data 32, ZeRO 3 within nodes", "data 8 x tensor 4, ZeRO 3"} <= names
    for one in found:
        run, job = run_on_gpus(size_of("6.7B"), 512, one.job, one.cell), one.job
        assert run is not None
        spec = run.spec
        run.layout.check_batch(spec)
        axes = dict(run.layout.axes)
        assert job.dp == run.layout.data_parallel
        assert [job.tp, job.pp] == [axes.get(a, 1) for a in ("tensor", "pipeline")]
        assert job.shard == axes.get("data", 1)
        degrees = run.strategy.degrees(spec, run.layout)
        assert degrees is not None
        assert (job.seq_parallel, job.counts) == (degrees.sequence, degrees.layers)
        assert (job.zero, job.shard) == (degrees.zero, degrees.shard or degrees.data)
        if (idle := run.strategy.idle_share(spec)) is not None:
            bubble = (job.pp - 1) / (job.vpp * job.accum)
            assert idle == pytest.approx(bubble / (1 + bubble))


def test_fewer_nodes_are_taken_where_the_link_is_slow() -> None:
    small = rank(size_of("125M"), cluster(8, 1, 0.01), 8, "bf16")
    assert small[0].nodes == 1 and small[0].cell["strategy"] == "single"
    assert any(one.nodes == 8 for one in small)


def test_a_configuration_of_transformers_is_ranked_too(tmp_path, capsys) -> None:
    """Of grouped keys, a gate and a head of its own, and of fewer positions than it has."""
    config = models.examples()["LlamaForCausalLM"]
    path = tmp_path / "config.json"
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8,
             "vocab_size": 302, "max_position_embeddings": 16}  # fmt: skip
    kind = {"model_type": "llama", "architectures": [config.architecture]}
    path.write_text(json.dumps({**kind, **sizes, **(config.config or {})}))
    model = replace(model_of(str(path)), context=8)
    assert models.family(model).shape(model) == models.Shape(48, 4, gated=True, tied=False)
    words = "plan --gpus-per-node 2 --device a100-80 --batch 8 --context 8 --model"
    assert main([*words.split(), str(path)]) == 0
    shown = capsys.readouterr().out
    assert "data 2" in shown and "tensor 2" in shown
    assert "Predicted, nothing is measured" in shown
    assert main([*words.replace("8 --model", "17 --model").split(), str(path)]) == 2
    assert "model.context 17 is over the 16 positions" in capsys.readouterr().err


def test_of_a_mixture_layouts_that_cut_its_experts_are_ranked_too() -> None:
    """With memory and bytes of the strategy's own plan; dense models have none of them."""
    model = models.examples()["MixtralForCausalLM"]
    found = rank(model, cluster(2, 4, 100.0), 32, "bf16")
    cut = [one for one in found if one.cell["strategy"] == "expert"]
    meshes = {(one.job.dp, one.job.ep, one.job.zero) for one in cut}
    assert meshes == {(8, 2, 0), (8, 4, 0), (8, 2, 1), (8, 4, 1)} | {
        (4, 2, 0), (4, 2, 1), (4, 4, 0),
    }  # fmt: skip
    assert {"data 8, experts over 4, ZeRO 1"} <= {one.name for one in cut}
    for one in cut:
        run = run_on_gpus(model, 32, one.job, one.cell)
        assert run is not None and dict(run.layout.axes)["expert"] == one.job.ep
        assert one.prediction.memory == peak(run, {0, one.job.gpus - 1})
        [exchanged, *_] = predict_sent(run)
        least = Network(one.job, device_of(one.job, Constants())).seconds(exchanged)
        assert one.prediction.communication >= least > 0
    others = [one for one in found if one.job.ep == 1]
    assert {"ddp", "sharded"} <= {one.cell["strategy"] for one in others}
    # Of two experts a token takes two of the four: less computing than of four, more than of one.
    job = next(one.job for one in others if one.job.dp == 8)
    steps = [predict(replace(job, chosen=n), Constants()).computation for n in (1, 2, 4)]
    assert steps == sorted(steps) and steps[0] < steps[2]
    for dense in (size_of("125M"), models.examples()["LlamaForCausalLM"]):
        listed = [job for job, _ in jobs(dense, cluster(2, 4, 100.0), 32, "bf16")]
        assert {(job.experts, job.chosen, job.ep) for job in listed} == {(1, 1, 1)}


def test_stages_are_cut_by_their_work() -> None:
    """Of a vocabulary whose output layer is as large as all eight others."""
    model = replace(size_of("1.3B"), num_layers=8, width=512, num_heads=8)
    found = rank(model, cluster(1, 2), 64, "bf16")
    (pipe,) = [one for one in found if one.job.pp == 2 and one.job.vpp == 1]
    layers = pipe.cell["options"]["layers"]
    assert tuple(layers) == pipe.job.counts and sum(layers) == 8 and layers[0] > layers[1]
    even = replace(pipe.job, counts=())
    assert pipe.prediction.seconds < predict(even, Constants()).seconds


def ranked(seconds: float, communication: float = 0.0, calibrated: bool = False) -> Ranked:
    """A layout of two ranks with such a step."""
    degrees = Degrees(2) if communication else Degrees(tensor=2)
    job = job_of(size_of("125M"), cluster(1, 2), 1, degrees, 8, "bf16", False)
    step = Prediction(seconds - communication, communication, 0.0, 0.0, 0.0, 2.0**30)
    cell: dict[str, Any] = {"strategy": "ddp" if communication else "tensor", "options": {}}
    return Ranked(job, cell, step, calibrated)


CALIBRATED = "of the 4% that count as equal on a calibrated machine"


@pytest.mark.parametrize(
    ("calibrated", "second", "words"),
    [
        (False, 1.02, "2% slower, mostly by communication, inside the band: no difference."),
        (False, 9.0, "800% slower, mostly by communication, outside of the band."),
        (
            True,
            1.02,
            f"2% slower, mostly by communication, inside {CALIBRATED[3:]}: no difference.",
        ),
        (True, 1.2, f"20% slower, mostly by communication, outside {CALIBRATED}."),
    ],
)
def test_the_runner_up_stands_with_its_margin_against_the_band(calibrated, second, words) -> None:
    pair = [ranked(1.0, calibrated=calibrated), ranked(second, second - 0.9, calibrated)]
    lines = answer(pair)
    assert lines[0].startswith("Choice of 2 layouts that fit: tensor 2 on 1 node, global batch 8, ")
    assert "of which computing 100%" in lines[0]
    assert lines[1] == f"Runner-up: data 2 on 1 node, {words}"


def test_a_simplest_layout_that_is_not_the_fastest_is_told_beside_that() -> None:
    told = answer([ranked(1.0), ranked(0.98)])[1]
    assert told.startswith("Fastest: tensor 2 on 1 node, 2% faster, mostly by computing, inside")
    assert told.endswith("no difference, and the choice is the simplest.")


def test_which_degrees_there_are() -> None:
    """12 layers on 3 nodes of 8; a tensor axis crosses nodes of one device alone."""
    found = [job for job, _ in jobs(size_of("125M"), cluster(3, 8, 200.0), 96, "bf16")]
    assert {job.pp for job in found} == {1, 2, 3, 4, 6, 8, 12}
    for gpus, expected in ((2, {1, 2}), (1, {1, 2, 4})):
        of = jobs(size_of("125M"), cluster(4, gpus, 9.0), 8, "bf16")
        assert {job.tp for job, _ in of} == expected


def test_sequences_are_cut_over_every_tensor_axis_too() -> None:
    """By `tensor` and by `hybrid`, and each such layout stands beside that without."""
    found = [one for one in rank(size_of("1.3B"), cluster(1, 8), 32, "bf16") if one.job.tp > 1]
    cut = [one for one in found if one.job.seq_parallel]
    assert {one.cell["strategy"] for one in cut} == {"tensor", "hybrid"}
    for one in cut:
        assert one.cell["options"]["sequence"] is True and ", sequences cut" in one.name
        axes = ("gpus", "dp", "tp", "pp", "vpp", "zero")
        mesh = [getattr(one.job, axis) for axis in axes]
        alike = [each for each in found if [getattr(each.job, axis) for axis in axes] == mesh]
        assert sorted(each.job.seq_parallel for each in alike) == [False, True]
