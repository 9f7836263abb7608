"""Strategies without ranks: layouts, options, what is refused, what is sent and kept."""

import importlib.metadata
import math
import os
import sys
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pipeline import models, strategies
from pipeline.cost.traffic import SEND, Traffic
from pipeline.errors import StudyError, UnsupportedError
from pipeline.models.build import build_model
from pipeline.parallel.mesh import BUCKET_BYTES
from pipeline.parallel.types import Batch, Defects, Parts
from pipeline.planner import memory
from pipeline.precision import PrecisionInfo, make_precision
from pipeline.resolved import resolve
from pipeline.strategies.deepspeed.step import load as load_deepspeed
from pipeline.study.expansion import expand
from pipeline.study.load import find_study, load_study
from pipeline.study.spec import RunSpec, WorldSpec
from tests.programs import ran
from tests.ranks import MODEL, ON_ONE_RANK, group_alone, parts_of

FP32 = PrecisionInfo("fp32", "torch", "float32", "float32", False, False)
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
    if strategies.load(name, {}).example:
        spec = replace(spec, model=strategies.example(name))
    strategies.check([spec])
    layout = strategy.layout(world)
    strategy.footprint(spec, layout, 0, 100), strategy.sends(spec, layout, 0, 100)
    strategy.idle_share(spec)
print("torch" in sys.modules)
"""


def predict(spec: RunSpec, rank: int = 0) -> memory.Memory:
    return memory.predict(resolve(spec), rank)


def predict_sent(spec: RunSpec, rank: int = 0) -> tuple[Traffic, ...]:
    return tuple(memory.predict_sent(resolve(spec), rank))


def sized(ranks: int) -> WorldSpec:
    return WorldSpec(1, ranks, "cpu", "gloo", "loopback")


WORLD = sized(8)
GPUS = WorldSpec(2, 4, "cuda", "nccl", "loopback")


@cache
def first_run(study: str) -> RunSpec:
    return expand(load_study(find_study(study)))[0]


def a_run(
    strategy: str, options: Any = None, world: WorldSpec = WORLD, study: str = "smoke", **other: Any
) -> RunSpec:
    """A run of a study with these settings; `work` and `model` are what differs of those."""
    run = first_run(study)
    work, model = other.pop("work", {}), other.pop("model", {})
    return replace(
        run,
        strategy=strategy,
        options=options or {},
        world=world,
        **{"precision": "fp32", **other},
        workload=replace(run.workload, **work),
        model=replace(run.model, **model),
    )


HEADS = {"num_heads": 16, "context": 100}
MIXTURE = models.examples()["MixtralForCausalLM"]
REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("zero", {}, {}, "'zero' has no file .*; use one of annotated"),
    ("auto", {}, {}, "`plan --auto` chooses one"),
    ("ddp", {}, {"model": {"architecture": "GPT2LMHeadModel"}}, "are for the family transformers"),
    ("ddp", {}, {"model": {"family": "transformers"}}, "name the class of a model"),
    ("ddp", {"empty_cache": "no"}, {}, "empty_cache = 'no' is no bool"),
    ("single", {}, {"world": WorldSpec(2, 4, "cpu", "gloo", "loopback")},
     "runs on 1 rank, given 2 nodes x 4 ranks"),
    ("parameter_server", {"engine": "data_parallel"}, {"world": GPUS}, "given 2 nodes"),
    ("parameter_server", {"staleness": 1, "engine": "data_parallel"}, {},
     "staleness 1 needs engine process_group; .* set that, or staleness 0"),
    ("parameter_server", {"staleness": 1}, {"work": {"untimed_steps": 0}},
     "before step 1 have no late gradients, and 0 are untimed"),
    ("parameter_server", {"staleness": 1}, {"work": {"checkpoint_every": 5}},
     r"checkpoint_every 5, .* no checkpoint holds; set it to 0"),
    ("horovod", {"autotune": True}, {"work": {"steps": 2_000, "untimed_steps": 4}},
     "before step 1250 tune Horovod .*, and 4 are untimed; raise workload.untimed_steps to 1250"),
    ("horovod", {"autotune": True, "cycle_time_ms": 2.0}, {}, "2.0 do nothing with autotune"),
    ("ddp", {"compression": "zip"}, {}, "'zip' is unknown; use one of none, fp16, bf16"),
    ("ddp", {"powersgd_rank": 2}, {}, "powersgd_rank 2 .* do nothing with compression none"),
    ("ddp", {"compression": "powersgd", "powersgd_start": 9}, {"work": {"untimed_steps": 4}},
     "steps before step 9 are sent in full .*, and 4 are untimed; raise .*steps to 9"),
    ("ddp", {"compression": "powersgd"}, {"work": {"checkpoint_every": 5, "untimed_steps": 4}},
     r"checkpoint_every 5, .* no checkpoint holds; set it to 0"),
    ("local_sgd", {"outer_momentum": 1.0}, {}, "momentum = 1.0 is not from 0 to 0.999;"),
    ("local_sgd", {"inner_steps": 7}, {"work": {"steps": 20, "untimed_steps": 4}},
     r"16 timed steps are no whole rounds of 7, .* to a multiple"),
    ("ddp", {}, {"work": {"recompute": [0, 9]}}, "names block 9, and the model has blocks 0 to 1"),
    ("pipeline_parallel", {"ranks": 2}, {"work": {"recompute": (0,)}},
     "strategy pipeline_parallel takes none, full or attention"),
    ("hybrid", {"zero_stage": 3}, {}, "3: beside 2 pipeline ranks .* set zero_stage to 2, which"),
    ("hybrid", {"zero_stage": 3, "pipeline": 1}, {},
     "strategy tensor has it .* with ranks 2, zero_stage 3, or set pipeline to 2 or more"),
    ("hybrid", {"zero_stage": 2}, {"world": sized(4)},
     "pipeline 2 x tensor 2 x data 1 has no .* nearest is pipeline 2 x tensor 1 x data 2"),
    ("sharded", {"offload": True}, {}, "offload: weights lie on the CPU already"),
    ("sharded", {"offload": True, "stage": 1}, {"world": GPUS},
     "stage 1 keeps whole weights on the device; set stage"),
    ("sharded", {"offload": True, "ranks": 4}, {"world": GPUS},
     "offload: not offered beside ranks 4; leave it out"),
    ("sharded", {"ranks": 3}, {},
     "8 ranks are no replicas x 3 ranks .* the nearest is 4 x 2: set ranks to 2, or to 0 for all"),
    ("tensor", {"ranks": 3}, {"world": sized(4)},
     "3 tensor ranks do not divide 4 ranks; set .* the nearest that divides these is 2"),
    ("tensor", {}, {}, "8 tensor ranks do not divide 2 attention heads; the nearest .* ranks is 2"),
    ("tensor", {"sequence": True}, {"model": HEADS},
     "8 tensor ranks do not divide 100 tokens of a sequence; the nearest option ranks is 10, or"),
    ("tensor", {"ranks": 2, "zero_stage": 1}, {},
     "zero_stage 1: strategy hybrid has it .* pipeline 1, tensor 2, zero_stage 1, or set"),
    ("tensor", {"ranks": 2, "zero_stage": 3}, {"world": sized(2)},
     "data 1 x tensor 2 has no data axis .* nearest is data 2 x tensor 1 .* set zero_stage to 0"),
    ("context", {"ranks": 8}, {"model": HEADS},
     "8 context ranks with 2 pieces each do not divide 100 tokens of a sequence; the nearest option"
     " ranks is 10, or set model.context to a multiple of 16"),
    ("context", {"zero_stage": 1}, {},
     "hybrid has it beside 2 context .* pipeline 1, tensor 1, context 2, zero_stage 1, or set"),
    ("hybrid", {"context": 3}, {},
     "pipeline 2 x tensor 2 x context 3 x data 1 are 12 ranks, the world has 8; the nearest layout "
     "is pipeline 2 x tensor 2 x context 2 x data 1"),
    ("hybrid", {"context": 2, "sequence": True}, {"model": {"context": 90}},
     "2 context ranks with 2 pieces each beside 2 tensor ranks do not divide 90 tokens of a"),
    ("hybrid", {"pipeline": 1, "context": 2, "zero_stage": 2}, {},
     "beside 2 context ranks strategy context has it, without a tensor axis; set zero_stage to 1"),
    ("hybrid", {"expert": 2}, {}, "hybrid cuts the experts of a mixture, which gpt2 has not; use"),
    ("hybrid", {"expert": 2, "zero_stage": 2}, {},
     "expert 2: not offered beside zero_stage 2, .* set zero_stage to 1"),
    ("hybrid", {"expert": 2}, {"model": vars(MIXTURE)},
     "a router's loss over all layers, .* stages; set model.config.router_aux_loss_coef to 0, or"),
    ("tensor", {"ranks": 4}, {"model": vars(replace(MIXTURE, config={"intermediate_size": 42}))},
     "4 tensor ranks do not divide 42 features of an expert; the nearest option ranks is 3"),
    ("expert", {"ranks": 0}, {"model": vars(MIXTURE)},
     "8 expert ranks do not divide 4 experts; the nearest .* divides these and 8 ranks is 4"),
    ("expert", {"ranks": 0, "zero_stage": 1}, {"model": vars(MIXTURE), "world": sized(4)},
     "data 1 x expert 4 has no data axis to cut over; the nearest is data 2 x expert 2 .option ra"),
    ("annotated", {"annotations": {"h.0.mlp.up.weight": [None, None]}}, {}, "no such tensor"),
    ("annotated", {"updates": {"h.0.mlp": ["data", None, None]}}, {}, "h.0.mlp: no such tensor"),
    ("annotated", {"axes": {"data": 3}}, {}, "axes data 3 do not make 8"),
    ("annotated", {"axes": 3}, {}, "axes = 3 is no dict"),
    # DTensor fails on them in the first view of a batch.
    ("annotated", {}, {"work": {"global_batch": 4, "accumulation_steps": 4}},
     "takes no micro-batches of one sequence in all"),
    ("hybrid", {}, {"world": sized(6)},
     "4 ranks, the world has 6; .* pipeline 1 x tensor 2 x data 3"),
    ("hybrid", {"tensor": 4}, {}, "4 tensor ranks do not divide 2 .* option tensor is 2"),
    ("pipeline_parallel", {"schedule": "zero_bubble"}, {"world": sized(2), "compile": True},
     "set compile to false, or schedule to 1f1b"),
    ("pipeline_parallel", {"schedule": "zero_bubble"},
     {"world": sized(2), "work": {"recompute": True}},
     r"set workload\.recompute to none or attention, or schedule to 1f1b"),
]  # fmt: skip
"""Strategy, options, what else differs from the first run of `smoke` on eight ranks, the error."""


@pytest.mark.parametrize(("strategy", "options", "changes", "said"), REFUSED)
def test_what_no_run_can_have_is_refused_before_one(strategy, options, changes, said) -> None:
    with pytest.raises(StudyError, match=said):
        strategies.check([a_run(strategy, options, **changes)])


@pytest.mark.parametrize("name", strategies.names())
def test_a_knob_at_its_bounds_is_refused_or_can_be_counted_with(name) -> None:
    """Also the predictions are made of whatever `check` has accepted."""
    plain = strategies.load(name, {})
    ranges = {knob: limits for knob, *limits in plain.ranges}
    numbers = {k: v for k, v in vars(plain).items() if type(v) in (int, float)}
    assert ranges.keys() <= numbers.keys()
    more = {"compression": "powersgd"} if name == "ddp" else {}
    for knob, default in numbers.items():
        for value in (default, *ranges.get(knob, (0, strategies.MAX_KNOB))):
            options = more | {knob: type(default)(value)}
            run = a_run(name, options, sized(1 if name == "single" else 2))
            run = replace(run, workload=replace(run.workload, untimed_steps=2, steps=20_002))
            run = replace(run, model=strategies.example(name)) if plain.example else run
            try:
                strategies.check([run])
            except StudyError:
                continue
            sent = [part.bytes for part in predict_sent(run)]
            assert all(map(math.isfinite, [predict(run).model_peak, *sent])), options


COMPRESSED = {"compression": "bf16"}
UNABLE: list[tuple[str, dict[str, Any], str, str]] = [
    ("ddp", COMPRESSED, "fp16", "fp16 has not; use fp32, tf32, bf16"),
    ("ddp", COMPRESSED, "bf16_masters", "bf16_masters has not; use fp32, tf32, bf16"),
    ("parameter_server", {"staleness": 2}, "fp16", "staleness 2 takes .* which fp16 has not; use"),
    ("sharded", {"offload": True}, "fp16", "fp16 scales the loss, .*; use fp32, tf32 or bf16"),
    ("sharded", {"stage": 1}, "amp_o2", "stage 1: amp_o2 narrows weights by FSDP2"),
    ("sharded", {"ranks": 2}, "bf16_reduced", "ranks 2: .* use bf16_masters, stage 1, or ranks 0"),
    ("hybrid", {"zero_stage": 2, "schedule": "zero_bubble"}, "bf16_masters",
     "zero_stage 2: under .* gradients of bf16_masters would .* set schedule to 1f1b"),
    ("sharded", {}, "apex_o2", "sharded does not train in apex_o2; use one of fp32"),
]  # fmt: skip


@pytest.mark.parametrize(("strategy", "options", "precision", "said"), UNABLE)
def test_a_precision_that_a_strategy_cannot_train_in_is_unsupported(
    strategy, options, precision, said
) -> None:
    with pytest.raises(UnsupportedError, match=said):
        strategies.load(strategy, options).check_precision(precision)


@pytest.mark.parametrize(
    ("strategy", "options", "axes", "axis", "ranks"),
    [
        ("tensor", {"ranks": 2}, (("data", 4), ("tensor", 2)), "tensor", [0, 1]),
        ("sharded", {"ranks": 4}, (("replica", 2), ("data", 4)), "data", [0, 1, 2, 3]),
        ("hybrid", {}, (("pipeline", 2), ("data", 2), ("tensor", 2)), "tensor", [0, 1]),
        ("hybrid", {"context": 2},
         (("pipeline", 2), ("data", 1), ("context", 2), ("tensor", 2)), "context", [0, 2]),
        ("hybrid", {"expert": 2},
         (("pipeline", 2), ("data", 1), ("expert", 2), ("tensor", 2)), "expert", [0, 2]),
        ("hybrid", {"inside": "pipeline"}, (("tensor", 2), ("data", 2), ("pipeline", 2)),
         "pipeline", [0, 1]),
    ],
)  # fmt: skip
def test_ranks_that_exchange_most_are_neighbours(strategy, options, axes, axis, ranks) -> None:
    layout = strategies.load(strategy, options).layout(WORLD)
    assert (layout.axes, layout.along(axis, 0)) == (axes, ranks)


SERVER = strategies.load("parameter_server", {"engine": "data_parallel"})


def test_data_parallel_is_one_process_with_all_devices_of_one_node() -> None:
    layout = SERVER.layout(sized(4))
    assert (layout.num_processes, layout.devices_per_process) == (1, 4)
    assert layout.batch_slice(0, 16) == (0, 16)


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
        Defects(empty_cache=True).check("cpu", FP32)
    scaled = replace(FP32, name="fp16", loss_scaling=True)
    with pytest.raises(UnsupportedError, match="cannot run with torch's loss scaling"):
        Defects(optimiser_steps=2).check("cpu", scaled)


def test_local_steps_keep_the_weights_twice() -> None:
    run = a_run("local_sgd", world=sized(4))
    weights = 4 * models.num_parameters(run.model)
    single, diloco, averaged = (
        predict(replace(run, strategy=name, options=options)).parameters
        for name, options in (("ddp", {}), ("local_sgd", {}), ("local_sgd", {"outer_momentum": 0}))
    )
    assert (diloco - single, averaged - single) == (2 * weights, weights)


def test_data_parallel_refuses_compiled_modules() -> None:
    """Its replicas would call the compiled function of the first device's module."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model[0]._compiled_call_impl = model[0].forward  # as compile() does, which takes seconds
    layout = SERVER.layout(WorldSpec(1, 2, "cuda", "nccl", "loopback"))
    with pytest.raises(UnsupportedError, match="set compile to false"):
        SERVER.build(Parts(model, torch.optim.AdamW, layout, make_precision("fp32", "cpu"), 1.0))


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_data_parallel_enters_autocast_in_the_thread_of_each_device(monkeypatch) -> None:
    """torch's DataParallel re-enters it without its dtype, which made bf16 fp16 on two GPUs."""
    given: list[torch.nn.Module] = []

    class Engine(torch.nn.Module):
        def __init__(self, module: torch.nn.Module, device_ids: list[int]) -> None:
            super().__init__()
            given.append(module)

    monkeypatch.setattr("pipeline.strategies.parameter_server.step.DataParallel", Engine)
    layout = SERVER.layout(WorldSpec(1, 2, "cuda", "nccl", "loopback"))
    model = torch.nn.Linear(2, 2)
    SERVER.build(Parts(model, torch.optim.AdamW, layout, make_precision("bf16", "cpu"), 1.0))
    [module] = given
    with torch.autocast("cpu", dtype=torch.float16):
        assert module(torch.ones(1, 2)).dtype == torch.bfloat16


def test_narrow_weights_are_a_matter_of_fsdp_and_halve_what_is_sent() -> None:
    for stage in (2, 3):
        cut = a_run("sharded", {"stage": stage}, sized(4), "bai2022")
        count = models.num_parameters(cut.model)
        [full], [narrow] = (predict_sent(replace(cut, precision=p)) for p in ("bf16", "amp_o2"))
        assert (narrow.bytes, narrow.formula) == (full.bytes / 2, full.formula)
        held = [predict(replace(cut, precision=p)) for p in ("fp32", "amp_o2")]
        # A quarter of fp32 weights, gradients and slots; what is gathered is narrow.
        assert held[0].gradients == pytest.approx(held[1].gradients, abs=4)
        gathered = [one.parameters - count for one in held]
        assert gathered[0] == pytest.approx(2 * gathered[1], rel=1e-6)
        assert held[0].optimiser == held[1].optimiser
        masters = predict(replace(cut, precision="bf16_masters"))
        assert masters.parameters == held[1].parameters


def test_offloaded_shards_are_no_memory_of_the_device() -> None:
    world = replace(first_run("bai2022").world, nodes=2)
    kept, moved = (predict(a_run("sharded", o, world, "bai2022")) for o in ({}, {"offload": True}))
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
    monkeypatch.setattr(sharded, "Stepper", lambda parts, group, **how: group)
    monkeypatch.setattr(Group, "join", lambda layout, backend=None: backend)
    spec = first_run("smoke").model
    model, precision = build_model(spec, 0), make_precision("fp32", "cpu")
    for offload, kind, backend in (
        (True, CPUOffloadPolicy, "cpu:gloo,cuda:nccl"),
        (False, OffloadPolicy, None),
    ):
        strategy = strategies.load("sharded", {"offload": offload})
        parts = Parts(model, torch.optim.AdamW, strategy.layout(GPUS), precision, 1.0)
        joined: Any = strategy.build(parts)
        assert joined == backend
        assert [type(how["offload_policy"]) for how in given] == [kind] * (1 + spec.num_layers)
        given.clear()


def test_what_is_sharded_is_a_share_of_a_rank_s_memory() -> None:
    needs = {
        stage: predict(a_run("sharded", {"stage": stage}, sized(4), "bai2022"))
        for stage in (1, 2, 3)
    }
    whole = predict(a_run("ddp", {}, sized(4), "bai2022"))
    assert all(4 * need.optimiser == whole.optimiser for need in needs.values())
    assert needs[1].gradients == whole.gradients == 4 * needs[2].gradients
    assert needs[3].parameters < needs[2].parameters


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_replicas_hold_what_as_many_ranks_alone_do(stage) -> None:
    few, all_of_four = (
        a_run("sharded", {"stage": stage}, sized(size), "bai2022") for size in (2, 4)
    )
    cut = replace(all_of_four, options={"stage": stage, "ranks": 2})
    assert predict(cut).optimiser == predict(few).optimiser
    assert predict(cut).parameters == predict(few).parameters > predict(all_of_four).parameters
    same = replace(all_of_four, options={"stage": stage, "ranks": 4})
    assert resolve(same).layout == resolve(all_of_four).layout


@pytest.mark.parametrize("stage", [2, 3])
def test_zero_cuts_what_a_tensor_rank_has_over_the_data_axis(stage) -> None:
    """And one tensor rank has of it what a rank of `sharded` has."""
    run = a_run("tensor", {"ranks": 2}, sized(8), "bai2022")
    cut = replace(run, options={"ranks": 2, "zero_stage": stage})
    assert predict(run).optimiser == pytest.approx(4 * predict(cut).optimiser, abs=8)
    assert predict(cut).parameters < predict(run).parameters + 4 * predict(cut).optimiser
    whole = replace(cut, options={"ranks": 1, "zero_stage": stage}, world=sized(4))
    alone = a_run("sharded", {"stage": stage}, sized(4), "bai2022")
    assert predict(whole) == predict(alone)


@pytest.mark.parametrize("precision", ["fp32", "bf16_masters"])
def test_fsdp_cuts_what_a_stage_keeps_between_steps(precision) -> None:
    """On the rank with the embedding, of data 4 x pipeline 2; in a step weights are whole."""
    knobs = {"pipeline": 2, "tensor": 1}
    whole, rows, cut = (
        a_run("hybrid", {**knobs, "zero_stage": n}, WORLD, "bai2022", precision=precision)
        for n in range(3)
    )
    own = predict(whole).optimiser / 8  # parameters of the rank
    width = 2 if precision == "bf16_masters" else 4
    assert predict(cut).optimiser == predict(rows).optimiser == pytest.approx(8 * own / 4)
    assert predict(cut).parameters == pytest.approx(width * own + 4 * own / 4, abs=4)
    assert predict(cut).gradients == pytest.approx(4 * own / 4, abs=4)
    assert predict(cut).held_gradients == predict(whole).held_gradients
    assert predict(cut).activations == predict(whole).activations


def test_beside_a_tensor_axis_a_rank_has_its_part_of_its_experts() -> None:
    """By hand, for the experts of the test below; ZeRO cuts them over data ranks alone."""
    knobs = {"pipeline": 1, "expert": 2}
    run = a_run("hybrid", knobs, sized(8), model=vars(MIXTURE), work={"accumulation_steps": 1})
    count, experts = models.num_parameters(MIXTURE), 2 * 4 * 3 * 32 * 48
    cut = models.axis_cuts(MIXTURE).parameters - experts
    rest, own = count - experts - cut / 2, experts / 4
    held, zero = predict(run), predict(replace(run, options={**knobs, "zero_stage": 1}))
    assert (held.parameters, held.optimiser) == (4 * (rest + own), 8 * (rest + own))
    assert zero.optimiser == pytest.approx(8 * (rest / 4 + own / 2), abs=4)


def test_a_rank_has_its_experts_and_sends_tokens_to_the_others() -> None:
    """By hand, for 2 layers of 4 experts of 3 x 32 x 48 numbers, 2 of which a token goes to."""
    world = replace(sized(4), nodes=2, ranks_per_node=2)
    work = {"global_batch": 32, "accumulation_steps": 4}
    run = a_run("expert", {}, world, model=vars(MIXTURE), work=work)
    count, experts, rows = models.num_parameters(MIXTURE), 2 * 4 * 3 * 32 * 48, 8 * 16 * 2 * 32
    kept = count - experts / 2
    held = predict(run)
    assert (held.parameters, held.gradients, held.optimiser) == (4 * kept, 4 * kept, 8 * kept)
    exchanged, rest, own = predict_sent(run)
    assert exchanged.bytes == 4 * 2 * 4 * rows / 2
    assert (rest.axis, rest.bytes) == ("data x expert", 2 * 3 / 4 * 4 * (count - experts))
    assert (own.axis, own.bytes) == ("data", 2 / 2 * 4 * experts / 2)
    [alone] = predict_sent(replace(run, options={"ranks": 1}))
    assert (alone.axis, alone.bytes) == ("data", 2 * 3 / 4 * 4 * count)
    # ZeRO: a fourth of all states, and its rows of gradients and of fp32 weights; in a bucket, in
    # what comes from three other ranks and in what is gathered a CPU keeps the rank's part of all.
    zero = replace(run, options={"zero_stage": 1})
    sharded = predict(zero)
    assert (sharded.optimiser, sharded.gradients) == (8 * count // 4, held.gradients)
    assert sharded.parameters == held.parameters + 2 * 4 * count // 4 + 3.75 * 4 * kept
    assert [one.bytes for one in predict_sent(zero)] == [exchanged.bytes, rest.bytes, own.bytes]
    narrow = replace(zero, precision="bf16_masters")
    assert predict(narrow).parameters == (2 + 1.75 * 4 + 2 * 2) * kept + (4 + 4) * count // 4
    # Its neighbour is on its node; of three others two are not, and of the ring one in two is.
    assert leaving(run, 0)["expert"] == 0
    four = replace(run, options={"ranks": 4})
    assert leaving(four, 0)["expert"] == pytest.approx(exchanged.bytes)
    assert leaving(four, 1)["expert"] == pytest.approx(exchanged.bytes + rest.bytes)


def test_deepspeed_gathers_large_weights_again_and_reduces_as_the_backend_can() -> None:
    """Counted with DeepSpeed 0.19.8 on two ranks: tests/system/test_deepspeed.py has small ones."""
    model = {"num_layers": 2, "width": 256, "num_heads": 4, "context": 16, "vocab_size": 302}
    work = {"accumulation_steps": 2}
    run = a_run("deepspeed", {}, sized(2), "bai2022", work=work, model=model)
    [sent] = predict_sent(run)
    assert sent.bytes == 19_497_984  # counted: 8 more, single numbers
    assert sent.formula == "(n-1)/n (2 m G + W + (m-1) P)"
    [nccl] = predict_sent(replace(run, world=replace(run.world, device="cuda", backend="nccl")))
    assert nccl.formula == "(n-1)/n (m G + W + (m-1) P)"
    assert nccl.bytes == sent.bytes - 4 * models.num_parameters(run.model)
    assert predict_sent(replace(run, model=replace(run.model, num_layers=1300))) == ()


def test_deepspeed_gathers_a_large_model_in_parts_and_a_small_one_whole() -> None:
    """Its defaults: 10^9 numbers gathered at a time, gradients in buckets of 5 x 10^8."""
    run = a_run("deepspeed", {}, sized(4), "bai2022")
    count, small = models.num_parameters(run.model), predict(run)
    assert (small.parameters, small.buffers) == (count + 4 * count, 5 * count)
    large = replace(run, model=replace(run.model, num_layers=96, width=12288, num_heads=96))
    count, found = models.num_parameters(large.model), predict(large)
    assert (found.parameters, found.buffers) == (count + 4 * 10**9, 4 * 5 * 10**8 + count)


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (None, "DeepSpeed is not installed, an optional extra .*; run `DS_ACCELERATOR=cpu .*lock`"),
        ("0.19.7", r"version 0\.19\.7, older than 0\.19\.8, which reads weights before"),
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


def test_annotated_weights_are_held_in_parts() -> None:
    options = {"axes": {"data": 0, "model": 2}, "annotations": {"wte.weight": [None, "model"]}}
    run, strategy = a_run("annotated", options), strategies.load("annotated", options)
    found = strategy.footprint(run, strategy.layout(WORLD), 0, gradients=100)
    count, cut = models.num_parameters(run.model), run.model.vocab_size * run.model.width
    assert found.weight_share == pytest.approx((count - cut / 2) / count)
    assert predict(run, 0).parameters < predict(replace(run, options={}), 0).parameters


def test_ranks_of_a_pipeline_need_the_memory_of_their_stages() -> None:
    run = a_run("pipeline_parallel", {}, sized(4), "bai2022")
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
    ("strategy", "options", "rank", "precision", "embeddings", "buckets"),
    [
        ("ddp", {}, 0, "bf16_masters", 1, 0),
        ("sharded", {"stage": 1}, 0, "fp32", 1, 1),  # two on their way
        ("tensor", {"ranks": 2}, 0, "bf16_masters", 1 / 2, 0),
        ("pipeline_parallel", {"ranks": 4}, 0, "bf16_masters", 1, 0),
        ("pipeline_parallel", {"ranks": 4}, 2, "bf16_masters", 0, 1),  # a stage without it
        ("hybrid", {"zero_stage": 1}, 0, "fp32", 1 / 2, 1),
    ],
)
def test_an_embedding_overfills_a_bucket(
    strategy, options, rank, precision, embeddings, buckets
) -> None:
    """No weight is divided, so a bucket is planned as large as the largest."""
    run = a_run(strategy, options, GPUS, "bai2022", precision=precision)
    count, layout = models.num_parameters(run.model), resolve(run).layout
    planned = strategies.load(strategy, options).footprint(run, layout, rank, 4 * count)
    embedding = 4 * run.model.vocab_rows * run.model.width
    assert embedding / 2 > BUCKET_BYTES
    assert planned.buffer_bytes == embeddings * embedding + buckets * BUCKET_BYTES


@pytest.mark.parametrize(("study", "cap"), [("layouts", 25.0), ("smoke", 0.25), ("smoke", 0.01)])
def test_ddp_s_buckets_are_those_that_torch_makes(study, cap) -> None:
    """The last weights first, and the last bucket of another size than the others."""
    run = a_run("ddp", {"bucket_cap_mb": cap}, sized(4), study)
    shapes = models.family(run.model).parameter_shapes(run.model).values()
    weights = [torch.empty(shape) for shape in shapes][::-1]
    limits = [round(limit * 2**20) for limit in (1.0 if cap == 25.0 else cap, cap)]
    buckets, _ = dist._compute_bucket_assignment_by_size(weights, limits)  # type: ignore[attr-defined]
    (sent,) = predict_sent(run, 0)
    assert sent.messages == len(buckets) > 1
    last = sum(weights[place].numel() for place in buckets[-1])
    assert sent.last == last / models.num_parameters(run.model)


def leaving(spec: RunSpec, rank: int) -> dict[str, float | None]:
    """Bytes of a rank to other nodes, by axis."""
    layout = resolve(spec).layout
    return {s.axis: memory.sent_between_nodes(layout, rank, s) for s in predict_sent(spec, rank)}


@pytest.mark.parametrize("axis", ["tensor", "pipeline"])
def test_knobs_of_a_layout_s_degrees_make_that_layout(axis) -> None:
    world = replace(sized(4), nodes=2, ranks_per_node=2)
    run = a_run("hybrid", {"inside": axis}, world)
    strategy, layout = strategies.load("hybrid", run.options), resolve(run).layout
    degrees = strategy.degrees(run, layout)
    assert degrees is not None and (knobs := strategy.knobs(degrees))
    assert strategies.load("hybrid", dict(knobs)).layout(world) == layout


def test_a_pipeline_over_two_nodes_leaves_them_at_their_border_and_for_its_tied_weight() -> None:
    world = replace(sized(4), nodes=2, ranks_per_node=2)
    run = a_run("pipeline_parallel", {}, world, "bai2022")
    sent = [predict_sent(run, rank)[0].bytes for rank in range(4)]
    activations = sent[1] / 2
    away = [leaving(run, rank)["pipeline"] for rank in range(4)]
    assert away == [sent[0] - activations, activations, activations, sent[3] - activations]
    # The receivers of other messages are not stated.
    layout, star = resolve(run).layout, Traffic("pipeline", "", 1.0, kind=SEND)
    assert memory.sent_between_nodes(layout, 0, star) is None


def test_a_second_node_on_the_same_machine_takes_its_own_gpu(monkeypatch) -> None:
    deepspeed = SimpleNamespace(logger=SimpleNamespace(setLevel=lambda _: None))
    monkeypatch.setitem(sys.modules, "deepspeed", deepspeed)
    monkeypatch.setitem(sys.modules, "deepspeed.comm.torch", SimpleNamespace())
    monkeypatch.setattr("torch.cuda.current_device", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "0")
    load_deepspeed("cuda")
    assert os.environ["LOCAL_RANK"] == "1"
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    load_deepspeed("cpu")
    assert os.environ["LOCAL_RANK"] == "0"


BATCH = Batch(*(torch.zeros(2, MODEL.context, dtype=torch.int64),) * 2)
SEVERAL = [n for n in strategies.names() if n != "single" and not strategies.load(n, {}).requires]
"""The strategies of several ranks that torch alone runs; a new file joins by itself."""


@pytest.mark.parametrize("name", SEVERAL)
def test_the_clock_begins_at_a_barrier_and_leaves_out_the_mean_loss(name, monkeypatch) -> None:
    """Without the barrier a rank's checkpoint is within the next step of the others."""
    strategy, done = strategies.load(name, ON_ONE_RANK.get(name, {})), list[str]()
    with group_alone():
        trainable: Any = strategy.build(parts_of(strategy, 1))
        mean = trainable.mean

        def noted(value: torch.Tensor) -> torch.Tensor:
            done.append("mean")
            return mean(value)

        monkeypatch.setattr(trainable, "mean", noted)
        with monkeypatch.context() as patch:
            patch.setattr(dist, "barrier", lambda *_, **__: done.append("all"))
            trainable.barrier()
        trainable.step([BATCH])
        done.append("step")
        trainable.report()
    assert done == ["all", "step", "mean"]


def test_the_arithmetic_of_no_strategy_loads_torch() -> None:
    done = ran([sys.executable, "-c", ARITHMETIC])
    assert done.stdout == "False\n", done.stderr


def test_annotated_updates_are_held_in_parts_beside_what_the_passes_need() -> None:
    options = {"axes": {"data": 0}, "updates": {"wte.weight": [None, "data"]}}
    run, strategy = a_run("annotated", options), strategies.load("annotated", options)
    found = strategy.footprint(run, strategy.layout(WORLD), 0, gradients=100)
    count, cut = models.num_parameters(run.model), run.model.vocab_size * run.model.width
    part = cut / WORLD.size
    assert found.weight_share == found.optimiser_share == pytest.approx(1 - (cut - part) / count)
    assert found.gathered_bytes == 4 * cut and found.gradient_share == 1
    assert predict(run, 0).optimiser < predict(replace(run, options={}), 0).optimiser
    assert strategy.sends_unstated and not strategy.sends(run, strategy.layout(WORLD), 0, 100)


@pytest.mark.parametrize("recompute", [False, True, "attention"])
@pytest.mark.parametrize("precision", ["fp32", "amp_o1"])
def test_a_hybrid_of_one_stage_sends_what_tensor_does(precision, recompute) -> None:
    how = {"precision": precision, "work": {"recompute": recompute}}
    knobs = {"tensor": 2, "pipeline": 1, "sequence": True}
    hybrid, tensor = (
        {one.axis: one.bytes for one in predict_sent(a_run(s, o, sized(4), "bai2022", **how))}
        for s, o in (("hybrid", knobs), ("tensor", {"ranks": 2, "sequence": True}))
    )
    assert hybrid == pytest.approx(tensor)


@pytest.mark.parametrize("recompute", [False, True, "attention"])
@pytest.mark.parametrize("world", [sized(2), sized(4)])
def test_a_hybrid_with_a_context_axis_alone_is_as_strategy_context(world, recompute) -> None:
    how = {"precision": "bf16", "work": {"recompute": recompute}}
    hybrid, context = (
        a_run(s, o, world, "bai2022", **how)
        for s, o in (("hybrid", {"pipeline": 1, "tensor": 1, "context": 2}), ("context", {}))
    )
    one, other = (predict_sent(run) for run in (hybrid, context))
    assert [(s.axis, s.formula) for s in one] == [(s.axis, s.formula) for s in other]
    assert [s.bytes for s in one] == pytest.approx([s.bytes for s in other])
    assert predict(hybrid).activations == pytest.approx(predict(context).activations)
    assert predict(hybrid).recomputed == pytest.approx(predict(context).recomputed)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("zero_stage", [0, 1])
def test_a_hybrid_with_an_expert_axis_alone_is_as_strategy_expert(zero_stage, recompute) -> None:
    work, knobs = {"recompute": recompute}, {"pipeline": 1, "tensor": 1, "expert": 2}
    hybrid, expert = (
        a_run(name, {**own, "zero_stage": zero_stage}, sized(4), model=vars(MIXTURE), work=work)
        for name, own in (("hybrid", knobs), ("expert", {}))
    )
    one, other = (predict_sent(run, 1) for run in (hybrid, expert))
    assert [(s.axis, s.formula) for s in one] == [(s.axis, s.formula) for s in other]
    assert [s.bytes for s in one] == pytest.approx([s.bytes for s in other])
    assert [s.leaving for s in one] == [s.leaving for s in other]
    kept = [(one.optimiser, one.activations) for one in (predict(hybrid), predict(expert))]
    assert kept[0] == pytest.approx(kept[1])
