"""Strategies without ranks: discovery, layouts, options, what is refused."""

import importlib.metadata
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline import models, strategies
from pipeline.errors import LaunchError, StudyError, UnsupportedError
from pipeline.models.build import build_model
from pipeline.parallel.faults import Faults
from pipeline.parallel.mesh import DATA
from pipeline.parallel.types import Parts
from pipeline.planner.memory import predict, predict_sent
from pipeline.precision import PrecisionInfo, make_precision
from pipeline.strategies.base import Footprint, Strategy
from pipeline.study.expansion import expand
from pipeline.study.load import load_study, shipped_studies
from pipeline.study.spec import WorldSpec

FP32 = PrecisionInfo("fp32", "torch", "float32", "float32", False, False)
WORLD = WorldSpec(nodes=2, ranks_per_node=4, device="cpu", backend="gloo", network="loopback")


def test_the_package_finds_its_files() -> None:
    assert {"single", "parameter_server", "ddp", "horovod"} <= set(strategies.names())
    for name in strategies.names():
        assert isinstance(strategies.load(name, {}), Strategy)


ARITHMETIC = """
import sys
from dataclasses import replace
from pathlib import Path
from pipeline import strategies
from pipeline.study.expansion import expand
from pipeline.study.load import load_study

run = expand(load_study(Path("workflow/config/bai2022/study.yaml")))[0]
for name in strategies.names():
    strategy = strategies.load(name, {})
    world = replace(run.world, nodes=1, ranks_per_node=1 if name == "single" else 4)
    spec = replace(run, strategy=name, options={}, world=world)
    strategies.check([spec])
    layout = strategy.layout(world)
    strategy.footprint(spec, layout, 0, 100), strategy.sends(spec, layout, 0, 100)
    strategy.idle_share(spec)
print("torch" in sys.modules)
"""


def test_the_arithmetic_of_no_strategy_loads_torch() -> None:
    done = subprocess.run([sys.executable, "-c", ARITHMETIC], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_unknown_names_and_options_list_the_known_ones() -> None:
    with pytest.raises(StudyError, match=r"'zero' has no file .*; use one of annotated"):
        strategies.load("zero", {})
    with pytest.raises(StudyError, match="no option 'bucket'; use one of bucket_cap_mb"):
        strategies.load("ddp", {"bucket": 1})


def test_every_shipped_study_names_strategies_that_exist() -> None:
    for path in shipped_studies().values():
        strategies.check(expand(load_study(path)))


def test_a_study_with_an_impossible_world_is_refused_at_the_door() -> None:
    study = load_study(Path("workflow/config/smoke/study.yaml"))
    study = study.but(cluster=study.to_dict()["cluster"] | {"ranks_per_node": 2})
    with pytest.raises(StudyError, match="strategy single runs on 1 rank"):
        strategies.check(expand(study))


def test_an_option_of_another_type_is_refused() -> None:
    with pytest.raises(StudyError, match="empty_cache = 'no' is no bool"):
        strategies.load("ddp", {"empty_cache": "no"})


@pytest.mark.parametrize("name", [n for n in strategies.names() if n != "single"])
def test_slices_cover_the_global_batch_once(name) -> None:
    layout = strategies.load(name, {}).layout(WORLD)
    slices = [layout.batch_slice(rank, 16) for rank in layout.along(DATA, 0)]
    assert [i for start, stop in slices for i in range(start, stop)] == list(range(16))


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(StudyError, match="global batch 12 is not a multiple of 8 data-parallel"):
        strategies.load("ddp", {}).layout(WORLD).batch_slice(0, 12)


def test_single_refuses_a_larger_world() -> None:
    with pytest.raises(StudyError, match="runs on 1 rank, given 2 nodes x 4 ranks"):
        strategies.load("single", {}).layout(WORLD)


def test_data_parallel_is_one_process_with_all_devices_of_one_node() -> None:
    server = strategies.load("parameter_server", {"engine": "data_parallel"})
    layout = server.layout(replace(WORLD, nodes=1))
    assert (layout.num_processes, layout.devices_per_process) == (1, 4)
    assert layout.batch_slice(0, 16) == (0, 16)
    with pytest.raises(StudyError, match="given 2 nodes"):
        server.layout(WORLD)
    with pytest.raises(StudyError, match="engine 'tree' is unknown"):
        strategies.load("parameter_server", {"engine": "tree"}).layout(WORLD)


def test_a_missing_package_is_unsupported(monkeypatch) -> None:
    strategy = strategies.load("ddp", {})
    strategy.check()
    monkeypatch.setattr(type(strategy), "requires", ("no_such_package",))
    with pytest.raises(UnsupportedError, match="no_such_package is not installed"):
        strategy.check()


@pytest.mark.parametrize("name", ["sharded", "pipeline_parallel", "hybrid"])
def test_a_torch_that_lacks_what_it_needs_is_unsupported(monkeypatch, name) -> None:
    """As torch 2.7 does: at `build` it would end as a lasting `failed`."""
    strategy = strategies.load(name, {})
    strategy.check()
    api = importlib.import_module("torch.distributed.fsdp._fully_shard._fsdp_api")
    monkeypatch.delattr(api, "ReduceScatter")
    schedule = importlib.import_module("torch.distributed.pipelining").Schedule1F1B
    monkeypatch.setattr(schedule, "step", lambda self, *given, target=None: None)
    with pytest.raises(UnsupportedError, match=r"torch 2\.\S+ has no torch\.dist.*`current`"):
        strategy.check()


def test_a_fault_that_cannot_be_shown_here_is_not_ignored() -> None:
    with pytest.raises(UnsupportedError, match="empty_cache needs a CUDA device"):
        Faults(empty_cache=True).check("cpu", FP32)
    scaled = replace(FP32, name="fp16", loss_scaling=True)
    with pytest.raises(UnsupportedError, match="cannot run with torch's loss scaling"):
        Faults(optimiser_steps=2).check("cpu", scaled)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimiser_steps": 0}, "optimiser_steps 0 is under 1"),
        ({"fusion_threshold_mb": 1_000_000}, "fusion_threshold_mb 1000000 is over 4096"),
        ({"compression": "zip"}, "compression 'zip' is unknown"),
    ],
)
def test_what_no_run_of_horovod_can_have_is_refused_before_one(options, words) -> None:
    with pytest.raises(StudyError, match=words):
        strategies.load("horovod", options).layout(WORLD)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"compression": "zip"}, "compression 'zip' is unknown; use one of none, fp16, bf16"),
        ({"powersgd_rank": 2}, "powersgd_rank 2 .* do nothing with compression none"),
        ({"compression": "powersgd", "powersgd_start": 1}, "set them to at least 1 and 2"),
        ({"compression": "powersgd", "powersgd_start": 9}, "first 9 steps are sent in full"),
        ({"compression": "powersgd"}, r"checkpoint_every 5, .* no checkpoint holds; set it to 0"),
    ],
)
def test_a_compression_that_no_run_can_have_is_refused_before_one(options, words) -> None:
    run = expand(load_study(Path("workflow/config/smoke/study.yaml")))[0]
    work = replace(run.workload, checkpoint_every=5, untimed_steps=4)
    run = replace(run, strategy="ddp", world=WORLD, options=options, workload=work)
    with pytest.raises(StudyError, match=words):
        strategies.check([run])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"inner_steps": 0}, "inner_steps 0: a round has at least one step; set it to 1"),
        ({"outer_learning_rate": 0}, "expected a rate over 0 and a momentum under 1"),
        ({"outer_momentum": 1.0}, "expected a rate over 0 and a momentum under 1"),
        ({"inner_steps": 7}, r"16 timed steps are no whole rounds of 7, .* to a multiple"),
    ],
)
def test_a_round_that_no_run_can_have_is_refused_before_one(options, words) -> None:
    run = expand(load_study(Path("workflow/config/smoke/study.yaml")))[0]
    work = replace(run.workload, steps=20, untimed_steps=4)
    run = replace(run, strategy="local_sgd", world=WORLD, options=options, workload=work)
    with pytest.raises(StudyError, match=words):
        strategies.check([run])


def test_local_steps_send_the_weights_once_a_round_and_keep_them_twice() -> None:
    run = expand(load_study(Path("workflow/config/smoke/study.yaml")))[0]
    run = replace(run, strategy="local_sgd", precision="fp32", world=sized(4), options={})
    weights = 4 * models.num_parameters(run.model)
    [one] = predict_sent(replace(run, options={"inner_steps": 8}))
    assert (one.wire_bytes, one.formula) == (2 * 3 / 4 * weights / 8, "2(n-1)/n W / 8")
    single, diloco, averaged = (
        predict(replace(run, strategy=name, options=options)).parameters
        for name, options in (("ddp", {}), ("local_sgd", {}), ("local_sgd", {"outer_momentum": 0}))
    )
    assert (diloco - single, averaged - single) == (2 * weights, weights)


def test_a_compression_takes_gradients_that_are_neither_narrow_nor_scaled() -> None:
    hooked = strategies.load("ddp", {"compression": "bf16"})
    hooked.check_precision("bf16")
    for name in ("fp16", "bf16_masters", "amp_o2"):
        with pytest.raises(UnsupportedError, match=f"{name} has not; use fp32, tf32, bf16"):
            hooked.check_precision(name)


def test_compressed_gradients_send_less_and_what_is_held_back_takes_memory() -> None:
    run = expand(load_study(Path("workflow/config/smoke/study.yaml")))[0]
    run = replace(run, strategy="ddp", precision="fp32", world=sized(4), options={})
    sent, need = {}, {}
    for name in ("none", "fp16", "bf16", "powersgd"):
        cell = replace(run, options={"compression": name})
        [one] = predict_sent(cell)
        parts = predict(cell)
        sent[name], need[name] = one.wire_bytes, parts.parameters + parts.buffers
    assert sent["fp16"] == sent["bf16"] == sent["none"] / 2 > 4 * sent["powersgd"]
    assert need["none"] < need["fp16"] < need["powersgd"]


def test_a_group_without_a_launcher_is_refused(monkeypatch) -> None:
    from pipeline.parallel.group import Group

    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(LaunchError, match="through torchrun"):
        Group.join(strategies.load("ddp", {}).layout(WORLD))


def test_data_parallel_refuses_compiled_modules() -> None:
    """Its replicas would call the compiled function of the first device's module."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model[0].compile()
    server = strategies.load("parameter_server", {"engine": "data_parallel"})
    layout = server.layout(WorldSpec(1, 2, "cuda", "nccl", "loopback"))
    with pytest.raises(UnsupportedError, match="set compile to false"):
        server.build(Parts(model, torch.optim.AdamW, layout, make_precision("fp32", "cpu"), 1.0))


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_data_parallel_enters_autocast_in_the_thread_of_each_device(monkeypatch) -> None:
    """torch's DataParallel re-enters it without its dtype, which made bf16 fp16 on two GPUs."""
    given: list[torch.nn.Module] = []

    class Engine(torch.nn.Module):
        def __init__(self, module: torch.nn.Module, device_ids: list[int]) -> None:
            super().__init__()
            given.append(module)

    monkeypatch.setattr("pipeline.strategies.parameter_server.step.DataParallel", Engine)
    server = strategies.load("parameter_server", {"engine": "data_parallel"})
    layout = server.layout(WorldSpec(1, 2, "cuda", "nccl", "loopback"))
    model = torch.nn.Linear(2, 2)
    server.build(Parts(model, torch.optim.AdamW, layout, make_precision("bf16", "cpu"), 1.0))
    [module] = given
    with torch.autocast("cpu", dtype=torch.float16):
        assert module(torch.ones(1, 2)).dtype == torch.bfloat16


def test_a_strategy_s_memory_is_its_own_to_say() -> None:
    run = expand(load_study(Path("workflow/config/smoke/study.yaml")))[0]
    layout = strategies.load("ddp", {}).layout(WORLD)
    found = {
        name: strategies.load(name, {}).footprint(run, layout, 1, gradients=100)
        for name in ("single", "parameter_server", "ddp", "horovod")
    }
    assert found == {
        "single": Footprint(0),
        "parameter_server": Footprint(100, optimiser_share=0.0),
        "ddp": Footprint(0, holds_gradients=True),
        "horovod": Footprint(100),
    }


def test_an_unknown_stage_of_sharding_is_refused() -> None:
    with pytest.raises(StudyError, match="stage 4 is unknown; use one of 1, 2, 3"):
        strategies.load("sharded", {"stage": 4}).layout(WORLD)


def test_an_offload_that_moves_nothing_is_refused() -> None:
    with pytest.raises(StudyError, match="offload: weights lie on the CPU already"):
        strategies.load("sharded", {"offload": True}).layout(WORLD)
    gpus = replace(WORLD, device="cuda", backend="nccl")
    with pytest.raises(StudyError, match="stage 1 keeps whole weights on the device; set stage"):
        strategies.load("sharded", {"offload": True, "stage": 1}).layout(gpus)
    strategy = strategies.load("sharded", {"offload": True})
    with pytest.raises(UnsupportedError, match=r"fp16 scales the loss, .*; use fp32, tf32 or bf16"):
        strategy.check_precision("fp16")
    strategy.check_precision("bf16")


def test_narrow_weights_are_a_matter_of_fsdp_and_halve_what_is_sent() -> None:
    run = expand(load_study(Path("workflow/config/bai2022/study.yaml")))[0]
    count = models.num_parameters(run.model)
    for stage in (2, 3):
        strategies.load("sharded", {"stage": stage}).check_precision("amp_o2")
        cut = replace(run, strategy="sharded", options={"stage": stage}, world=sized(4))
        [full], [narrow] = (predict_sent(replace(cut, precision=p)) for p in ("bf16", "amp_o2"))
        assert (narrow.wire_bytes, narrow.formula) == (full.wire_bytes / 2, full.formula)
        held = [predict(replace(cut, precision=p)) for p in ("fp32", "amp_o2")]
        # A quarter of fp32 weights, gradients and slots; what is gathered is narrow.
        assert held[0].gradients == pytest.approx(held[1].gradients, abs=4)
        gathered = [one.parameters - count for one in held]
        assert gathered[0] == pytest.approx(2 * gathered[1], rel=1e-6)
        assert held[0].optimiser == held[1].optimiser
        [wide] = predict_sent(replace(cut, precision="bf16_masters"))
        assert wide.wire_bytes == narrow.wire_bytes + 2 * count * 3 / 4, "gradients are fp32"
        [less] = predict_sent(replace(cut, precision="bf16_reduced"))
        assert less.wire_bytes == narrow.wire_bytes
        masters = predict(replace(cut, precision="bf16_masters"))
        assert masters.parameters == held[1].parameters
    with pytest.raises(UnsupportedError, match="stage 1: amp_o2 narrows weights by FSDP2"):
        strategies.load("sharded", {"stage": 1}).check_precision("amp_o2")
    with pytest.raises(UnsupportedError, match="amp_o2 scales the loss"):
        strategies.load("sharded", {"offload": True}).check_precision("amp_o2")


def test_offloaded_shards_are_no_memory_of_the_device() -> None:
    run = expand(load_study(Path("workflow/config/bai2022/study.yaml")))[0]
    run = replace(run, precision="fp32", strategy="sharded", world=replace(run.world, nodes=2))
    kept, moved = predict(run), predict(replace(run, options={"offload": True}))
    assert moved.optimiser == moved.gradients == 0
    assert kept.parameters - moved.parameters == pytest.approx(kept.gradients, abs=8)


def test_the_policy_of_fsdp_and_both_backends_are_handed_over(monkeypatch) -> None:
    """What runs on GPUs alone: torch's functions are told what the option says."""
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy

    from pipeline.parallel.group import Group
    from pipeline.strategies.sharded import step as sharded

    given: list[Any] = []

    def take(module: Any, **how: Any) -> Any:
        given.append(how)
        return module

    monkeypatch.setattr(sharded, "fully_shard", take)
    monkeypatch.setattr(sharded, "mesh_of", lambda layout: SimpleNamespace(device_type="cuda"))
    monkeypatch.setattr(sharded, "ShardedStepper", lambda parts, group, **how: group)
    monkeypatch.setattr(Group, "join", lambda layout, backend=None: backend)
    run = expand(load_study(Path("workflow/config/smoke/study.yaml")))[0]
    gpus = replace(WORLD, device="cuda", backend="nccl")
    model, precision = build_model(run.model, 0), make_precision("fp32", "cpu")
    for offload, kind, backend in (
        (True, CPUOffloadPolicy, "cpu:gloo,cuda:nccl"),
        (False, OffloadPolicy, None),
    ):
        strategy = strategies.load("sharded", {"offload": offload})
        parts = Parts(model, torch.optim.AdamW, strategy.layout(gpus), precision, 1.0)
        joined: Any = strategy.build(parts)
        assert joined == backend
        assert [type(how["offload_policy"]) for how in given] == [kind] * (1 + run.model.num_layers)
        given.clear()


def test_tensor_ranks_are_neighbours_on_the_last_axis() -> None:
    layout = strategies.load("tensor", {"ranks": 2}).layout(WorldSpec(2, 2, "cpu", "gloo", "real"))
    assert layout.axes == (("data", 2), ("tensor", 2))
    assert layout.along("tensor", 0) == [0, 1]


def test_a_tensor_axis_that_does_not_fit_names_its_factors() -> None:
    said = r"3 tensor ranks do not divide 4 ranks; set .* the nearest that divides these is 2"
    with pytest.raises(StudyError, match=said):
        strategies.load("tensor", {"ranks": 3}).layout(WorldSpec(2, 2, "cpu", "gloo", "real"))
    run = expand(load_study(Path("workflow/config/smoke/study.yaml")))[0]
    wide = WorldSpec(1, 8, "cpu", "gloo", "loopback")
    assert run.model.num_heads % 8
    run = replace(run, strategy="tensor")
    said = "8 tensor ranks do not divide 2 attention heads; the nearest option ranks is 2, or"
    with pytest.raises(StudyError, match=said):
        strategies.check([replace(run, world=wide)])
    model = replace(run.model, num_heads=16, context=100)
    strategies.check([replace(run, world=wide, model=model)])
    said = "8 tensor ranks do not divide 100 tokens of a sequence; the nearest option {} is 10, or"
    for strategy, options in (("tensor", {}), ("hybrid", {"pipeline": 1, "tensor": 8})):
        cut = replace(run, world=wide, model=model, strategy=strategy)
        cut = replace(cut, options={**options, "sequence": True})
        with pytest.raises(StudyError, match=said.format("tensor" if options else "ranks")):
            strategies.check([cut])


def test_cut_sequences_need_less_memory() -> None:
    run = expand(load_study(Path("workflow/config/bai2022/study.yaml")))[0]
    run = replace(run, precision="fp32", strategy="tensor", world=sized(4))
    for recompute in (False, True, "attention"):
        work = replace(run.workload, recompute=recompute)
        whole = replace(run, workload=work)
        cut = replace(whole, options={"sequence": True})
        assert predict(cut).activations < predict(whole).activations


def test_a_precision_that_a_strategy_cannot_train_in_is_unsupported() -> None:
    with pytest.raises(
        UnsupportedError, match="sharded does not train in apex_o2; use one of fp32"
    ):
        strategies.load("sharded", {}).check_precision("apex_o2")
    strategies.load("ddp", {}).check_precision("apex_o2")


def test_what_is_sharded_is_a_share_of_a_rank_s_memory() -> None:
    run = expand(load_study(Path("workflow/config/bai2022/study.yaml")))[0]
    run = replace(run, precision="fp32")
    four = WorldSpec(1, 4, "cpu", "gloo", "loopback")
    needs = {
        stage: predict(replace(run, strategy="sharded", options={"stage": stage}, world=four))
        for stage in (1, 2, 3)
    }
    whole = predict(replace(run, strategy="ddp", world=four))
    assert all(4 * need.optimiser == whole.optimiser for need in needs.values())
    assert needs[1].gradients == whole.gradients == 4 * needs[2].gradients
    assert needs[3].parameters < needs[2].parameters


def test_deepspeed_gathers_large_weights_again_and_reduces_as_the_backend_can() -> None:
    """Counted with DeepSpeed 0.19.8 on two ranks: tests/system/test_deepspeed.py has small ones."""
    run = expand(load_study(Path("workflow/config/bai2022/study.yaml")))[0]
    model = replace(run.model, num_layers=2, width=256, num_heads=4, context=16, vocab_size=302)
    work = replace(run.workload, accumulation_steps=2)
    run = replace(run, strategy="deepspeed", options={}, model=model, workload=work)
    run = replace(run, precision="fp32", world=WorldSpec(1, 2, "cpu", "gloo", "loopback"))
    [sent] = predict_sent(run)
    assert sent.wire_bytes == 19_497_984  # counted: 8 more, single numbers
    assert sent.formula == "(n-1)/n (2 m G + W + (m-1) P)"
    [nccl] = predict_sent(replace(run, world=replace(run.world, device="cuda", backend="nccl")))
    assert nccl.formula == "(n-1)/n (m G + W + (m-1) P)"
    assert nccl.wire_bytes == sent.wire_bytes - 4 * models.num_parameters(model)
    assert predict_sent(replace(run, model=replace(model, num_layers=1300))) == ()


def test_deepspeed_gathers_a_large_model_in_parts_and_a_small_one_whole() -> None:
    """Its defaults: 10^9 numbers gathered at a time, gradients in buckets of 5 x 10^8."""
    run = expand(load_study(Path("workflow/config/bai2022/study.yaml")))[0]
    run = replace(run, strategy="deepspeed", options={}, precision="fp32", world=sized(4))
    count = models.num_parameters(run.model)
    small = predict(run)
    assert (small.parameters, small.buffers) == (count + 4 * count, 5 * count)
    large = replace(run, model=replace(run.model, num_layers=96, width=12288, num_heads=96))
    count, found = models.num_parameters(large.model), predict(large)
    assert (found.parameters, found.buffers) == (count + 4 * 10**9, 4 * 5 * 10**8 + count)


def test_deepspeed_names_what_it_cannot_do() -> None:
    with pytest.raises(StudyError, match="deepspeed stage 0 is unknown; use one of 1, 2, 3"):
        strategies.load("deepspeed", {"stage": 0}).layout(WORLD)
    with pytest.raises(UnsupportedError, match="deepspeed does not train in fp16; use one of fp32"):
        strategies.load("deepspeed", {}).check_precision("fp16")


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (None, "DeepSpeed is not installed, an optional extra .*; run `DS_ACCELERATOR=cpu .*lock`"),
        (
            "0.19.7",
            r"version 0\.19\.7, older than 0\.19\.8, which reads weights before",
        ),
    ],
)
def test_a_deepspeed_that_is_missing_or_wrong_is_unsupported(monkeypatch, version, said) -> None:
    def installed(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)
    with pytest.raises(UnsupportedError, match=said):
        strategies.load("deepspeed", {}).check()


def test_annotated_names_tensors_and_axes_that_do_not_fit() -> None:
    run = expand(load_study(Path("workflow/config/smoke/study.yaml")))[0]
    run = replace(run, world=WORLD, strategy="annotated")
    wrong: dict[str, dict[str, Any]] = {
        "no such tensor": {"annotations": {"h.0.mlp.up.weight": [None, None]}},
        "names the axis 'model'": {"annotations": {"h.0.ln_1.weight": ["model"]}},
        "axes data 3 do not make 8": {"axes": {"data": 3}},
        "axes = 3 is no dict": {"axes": 3},
    }
    for said, options in wrong.items():
        with pytest.raises(StudyError, match=said):
            strategies.check([replace(run, options=options)])


def test_annotated_weights_are_held_in_parts() -> None:
    run = expand(load_study(Path("workflow/config/smoke/study.yaml")))[0]
    options = {"axes": {"data": 0, "model": 2}, "annotations": {"wte.weight": [None, "model"]}}
    run = replace(run, world=WORLD, strategy="annotated", options=options)
    strategy = strategies.load("annotated", options)
    found = strategy.footprint(run, strategy.layout(WORLD), 0, gradients=100)
    whole = replace(run, options={})
    count = models.num_parameters(run.model)
    cut = run.model.vocab_size * run.model.width
    assert found.weight_share == pytest.approx((count - cut / 2) / count)
    assert predict(run, 0).parameters < predict(whole, 0).parameters


def sized(ranks: int) -> WorldSpec:
    return WorldSpec(1, ranks, "cpu", "gloo", "loopback")


def test_pipeline_ranks_that_do_not_fit_name_the_nearest() -> None:
    layout = strategies.load("pipeline_parallel", {"ranks": 2}).layout(sized(8))
    assert layout.axes == (("pipeline", 2), ("data", 4))
    assert layout.along("data", 0) == [0, 1, 2, 3]
    with pytest.raises(StudyError, match=r"3 pipeline ranks do not divide 8 .* does is 2; set"):
        strategies.load("pipeline_parallel", {"ranks": 3}).layout(sized(8))


def test_a_hybrid_that_does_not_multiply_up_names_its_factors() -> None:
    layout = strategies.load("hybrid", {}).layout(sized(8))
    assert layout.axes == (("pipeline", 2), ("data", 2), ("tensor", 2))
    said = (
        r"pipeline 2 x tensor 2 x data 3 are 12 ranks, the world has 8; the nearest layout is "
        r"pipeline 2 x tensor 2 x data 2"
    )
    with pytest.raises(StudyError, match=said):
        strategies.load("hybrid", {"data": 3}).layout(sized(8))
    with pytest.raises(
        StudyError, match=r"4 ranks, the world has 6; .* pipeline 1 x tensor 2 x data 3"
    ):
        strategies.load("hybrid", {"pipeline": 2}).layout(sized(6))
    with pytest.raises(StudyError, match="zero_stage 2 is unknown; use 0 or 1"):
        strategies.load("hybrid", {"zero_stage": 2}).layout(sized(8))


def test_layers_heads_and_sequences_of_a_pipeline_are_checked_before_a_run() -> None:
    run = expand(load_study(Path("workflow/config/smoke/study.yaml")))[0]
    deep = replace(run, strategy="pipeline_parallel", world=sized(4))
    with pytest.raises(StudyError, match=r"4 pipeline ranks x 1 chunks are 4 stages, .* 2 layers"):
        strategies.check([deep])
    hybrid = replace(run, strategy="hybrid", world=sized(8), options={"tensor": 4})
    with pytest.raises(StudyError, match=r"4 tensor ranks do not divide 2 .* option tensor is 2"):
        strategies.check([hybrid])
    compiled = replace(deep, world=sized(2), compile=True, options={"schedule": "zero_bubble"})
    with pytest.raises(StudyError, match="set compile to false, or schedule to 1f1b"):
        strategies.check([compiled])
    work = replace(run.workload, recompute=True)
    again = replace(compiled, compile=False, workload=work)
    with pytest.raises(StudyError, match=r"set workload\.recompute to none or attention, or sche"):
        strategies.check([again])
    strategies.check([replace(again, workload=replace(work, recompute="attention"))])


def test_ranks_of_a_pipeline_need_the_memory_of_their_stages() -> None:
    run = expand(load_study(Path("workflow/config/bai2022/study.yaml")))[0]
    run = replace(run, precision="fp32", strategy="pipeline_parallel", world=sized(4))
    count = models.num_parameters(run.model)
    shared = run.model.vocab_size * run.model.width
    needs = [predict(run, rank) for rank in range(4)]
    assert sum(need.parameters for need in needs) == pytest.approx(4 * (count + shared), abs=16)
    assert needs[1].parameters < needs[0].parameters
    assert [need.logits > 0 for need in needs] == [False, False, False, True]
    all_at_once = replace(run, options={"schedule": "gpipe", "microbatches": 8})
    one_by_one = replace(run, options={"microbatches": 8})
    assert predict(all_at_once, 3).activations > 4 * predict(one_by_one, 3).activations
    cut = replace(run, strategy="hybrid", options={"pipeline": 2, "tensor": 2})
    assert predict(cut).parameters < predict(replace(run, options={"ranks": 2})).parameters


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("pipeline_parallel", {}),
        ("pipeline_parallel", {"ranks": 2, "schedule": "interleaved"}),
        ("hybrid", {"pipeline": 2, "tensor": 2}),
        ("hybrid", {"pipeline": 4, "tensor": 1}),
        ("tensor", {}),
    ],
)
def test_every_weight_of_a_product_has_its_narrow_copy_once(strategy, options) -> None:
    """On each set of ranks that hold the model together; embedding and norms are not narrowed."""
    run = expand(load_study(Path("workflow/config/bai2022/study.yaml")))[0]
    run = replace(run, precision="bf16", world=sized(4), strategy=strategy, options=options)
    chosen = strategies.load(strategy, options)
    layout = chosen.layout(run.world)
    shares = [chosen.footprint(run, layout, rank, 100).copy_share for rank in range(4)]
    assert sum(shares) / layout.data_parallel == pytest.approx(1)


@pytest.mark.parametrize("recompute", [False, True, "attention"])
@pytest.mark.parametrize("precision", ["fp32", "amp_o1"])
def test_a_hybrid_of_one_stage_sends_what_tensor_does(precision: str, recompute: Any) -> None:
    run = expand(load_study(Path("workflow/config/bai2022/study.yaml")))[0]
    work = replace(run.workload, recompute=recompute)
    run = replace(run, precision=precision, world=sized(4), workload=work)
    knobs = {"tensor": 2, "pipeline": 1, "sequence": True}
    hybrid, tensor = (
        {one.axis: one.wire_bytes for one in predict_sent(replace(run, strategy=s, options=o))}
        for s, o in (("hybrid", knobs), ("tensor", {"ranks": 2, "sequence": True}))
    )
    assert hybrid == pytest.approx(tensor)
