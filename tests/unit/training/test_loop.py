"""Which steps of a run are timed, what is counted over them, and the optimiser."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline import strategies
from pipeline.corpus.batches import Batches
from pipeline.emulation import tcp
from pipeline.models.build import build_model
from pipeline.study.spec import OptimiserSpec
from pipeline.training.clock import Clock
from pipeline.training.loop import Loop, by_block
from pipeline.training.optimiser import make_optimiser
from tests.parity.cases import DECAYED, Case

WORK = replace(Case("ddp").spec(1).workload, steps=20, untimed_steps=4)


def a_loop(tokens: Path, **work: Any) -> Loop:
    spec = Case("single").spec(1)
    spec = replace(spec, workload=replace(spec.workload, **work))
    batches = Batches(tokens, spec.model.context, spec.workload.global_batch, spec.seed)
    return Loop(spec, strategies.load("single", {}), batches, 0, Clock(torch.device("cpu")))


@pytest.mark.parametrize(
    ("done", "first"),
    [(0, 4), (10, 14), (2, 6), (18, 19)],
    ids=["from the start", "resumed", "resumed in the warm-up", "resumed near the end"],
)
def test_a_run_that_goes_on_warms_up_anew(done: int, first: int) -> None:
    assert WORK.first_timed(done) == first


def test_what_tcp_counted_is_that_of_the_timed_steps(small_tokens, monkeypatch) -> None:
    """A time-out of a start or an end delays no step, and must not mark the run as stalled."""
    done = 0
    monkeypatch.setattr(tcp, "counters", lambda: {"TCPTimeouts": 100 * done})
    loop = a_loop(small_tokens, steps=5, untimed_steps=2)

    def count(_: object) -> None:
        nonlocal done
        done += 1

    monkeypatch.setattr(loop.trainable, "close", lambda: count(None))
    loop.run(count)
    assert done == 6
    assert loop.tcp == {"TCPTimeouts": 300}


def test_a_step_is_timed_between_a_barrier_and_its_report(small_tokens, monkeypatch) -> None:
    """What a rank does besides its steps (NVML, a checkpoint) must not count as the others'."""
    loop = a_loop(small_tokens, steps=2, untimed_steps=1, checkpoint_every=1)
    done: list[str] = []
    calls: list[tuple[Any, str]] = [(loop.trainable, n) for n in ("barrier", "step", "report")]
    for owner, name in [*calls, (loop.sampler, "sample")]:
        call = getattr(owner, name)

        def noted(*given: object, name: str = name, call: Callable[..., Any] = call) -> object:
            done.append(name)
            return call(*given)

        monkeypatch.setattr(owner, name, noted)
    clock = loop.clock.time

    def time(call: Callable[[], Any], *barrier: Callable[[], None]) -> Any:
        result = clock(call, *barrier)
        done.append("clock stopped")
        return result

    monkeypatch.setattr(loop.clock, "time", time)
    loop.run(lambda _: None, lambda *_: done.append("checkpoint"))
    assert done == 2 * ["barrier", "step", "clock stopped", "report", "sample", "checkpoint"]


def test_the_share_of_padding_of_each_timed_step_is_kept(small_tokens: Path) -> None:
    spec = Case("single", architecture="BertForPreTraining").spec(1)
    work = spec.workload
    batches = Batches(
        small_tokens, spec.model.context, work.global_batch, spec.seed, spec.objective
    )
    strategy = strategies.load("single", {})
    loop = Loop(spec, strategy, batches, 0, Clock(torch.device("cpu")))
    loop.run(lambda _: None)
    expected = []
    for step in range(work.untimed_steps, work.steps):
        segments = batches.slice(step, 0, work.global_batch).segments
        assert segments is not None
        expected.append(float((segments == 0).mean()))
    assert loop.padding == pytest.approx(expected) and min(expected) > 0


@pytest.mark.parametrize(
    ("schedule", "warmup", "rates"),
    [
        ("constant", 4, [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1, 1]),
        ("linear", 4, [0.25, 0.5, 0.75, 1, *(left / 6 for left in (6, 5, 4, 3, 2, 1))]),
        ("constant", 0, [1] * 10),
    ],
)
def test_rates_rise_to_the_full_one_and_fall_by_the_schedule(schedule, warmup, rates) -> None:
    spec = OptimiserSpec("adamw", 1.0, 0.9, 0.999, 1e-8, 0.0, 1.0, schedule, warmup)
    assert [spec.rate(step, 10) for step in range(10)] == pytest.approx(rates)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "amp_o2"])
def test_steps_that_run_freely_leave_the_weights_to_the_bit(small_tokens, precision) -> None:
    loop, kept = a_loop(small_tokens, steps=4, untimed_steps=1), list[list[torch.Tensor]]()
    loop = Loop(replace(loop.spec, precision=precision), loop.strategy, loop.batches, 0, loop.clock)

    def keep(_: object) -> None:
        kept.append([weight.detach().clone() for weight in loop.model.parameters()])

    loop.run(keep, free_steps=50)
    assert loop.free_running is not None
    assert loop.free_running["steps"] == 3 and loop.free_running["step_seconds"] > 0
    assert len(kept) == 4, "they are not recorded"
    pairs = zip(kept[-1], loop.model.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_freely_run_whole_rounds_of_a_strategy_that_has_some(small_tokens, monkeypatch) -> None:
    """Else their mean step would have too many of those that send, or too few."""
    loop = a_loop(small_tokens, steps=10, untimed_steps=1)
    for period, most, steps in ((3, 8, 6), (3, 2, 3), (1, 8, 8)):
        monkeypatch.setattr(type(loop.strategy), "period", period)
        counts = list[int]()
        monkeypatch.setattr(loop, "_run_freely", counts.append)
        loop.run(lambda _: None, free_steps=most)
        assert counts == [steps]


def test_squares_of_gradients_are_added_up_by_the_parts_of_a_model() -> None:
    """Each block, and each module outside of them, by the names of several families."""
    names = {
        "h.1.ln_2.weight": "h.1",
        "h.1.attn.c_attn.bias": "h.1",
        "wte.weight": "wte",
        "model.model.layers.0.self_attn.q_proj.weight": "model.model.layers.0",
        "model.model.embed_tokens.weight": "model.model.embed_tokens",
        "model.bert.encoder.layer.10.output.dense.bias": "model.bert.encoder.layer.10",
    }
    sums: dict[str, float] = {}
    for number, part in enumerate(names.values()):
        sums[part] = sums.get(part, 0.0) + number
    assert by_block({name: float(n) for n, name in enumerate(names)}) == sums


@pytest.mark.parametrize("architecture", [None, "OPTForCausalLM"])
def test_biases_norms_and_nothing_else_keep_their_weights(architecture) -> None:
    model = Case("single", architecture=architecture).model
    named = dict(build_model(model, seed=0).named_parameters())
    optimiser = make_optimiser(DECAYED, named.values())
    decay = {p: group["weight_decay"] for group in optimiser.param_groups for p in group["params"]}
    kept = {name for name, parameter in named.items() if decay[parameter] == 0}
    vectors = {n for n in named if n.endswith("bias") or "norm" in n or "ln_" in n}
    assert kept == vectors
    assert {decay[parameter] for parameter in named.values()} == {0, DECAYED.weight_decay}
