"""The recorder of phases, with a clock that only moves when told, and in the real loop."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from pipeline import strategies
from pipeline.corpus.batches import Batches
from pipeline.emulation.pacing import Pacer
from pipeline.records import Step
from pipeline.schemas import validate
from pipeline.strategies.base import Strategy
from pipeline.strategies.pipeline_parallel.stages import Waits
from pipeline.study.profiling import BACKWARD, COMMUNICATION, FORWARD, IN_STEP, OPTIMISER
from pipeline.training.clock import Clock
from pipeline.training.loop import Loop
from pipeline.training.phases import Paced, PhaseTimer
from tests.parity.cases import Case
from tests.ranks import ON_ONE_RANK, group_alone


class FakeClock(Clock):
    """Time stands still but for `now += seconds`."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.now = 100.0

    def stamp(self) -> float:
        return self.now

    def between(self, start: float, stop: float) -> float:
        return stop - start


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def timer(clock: FakeClock) -> PhaseTimer:
    return PhaseTimer(clock)


def test_phases_lie_end_to_end_and_the_rest_is_what_no_mark_claims(clock, timer) -> None:
    def step() -> str:
        clock.now += 1
        for _ in range(2):
            timer.begin(FORWARD)
            clock.now += 2
            timer.begin(BACKWARD)
            clock.now += 4
        with timer.during(COMMUNICATION):
            clock.now += 8
        clock.now += 16
        timer.begin(OPTIMISER)
        clock.now += 32
        return "done"

    assert timer.record(step) == "done"
    assert timer.split(70.0, 0.5) == {
        "forward": 4.0,
        "backward": 24.0,
        "communication": 8.0,
        "optimiser": 32.0,
        "rest": 2.0,
        "data": 0.5,
    }


def test_passes_are_computation_and_a_loss_belongs_to_its_forward_pass(clock, timer) -> None:
    waits = Waits(timer)

    def step() -> None:
        with waits.everywhere():
            clock.now += 1
            with waits.not_while(FORWARD, (FORWARD, 1, 0), goes_on=True):
                clock.now += 2
                with timer.during(COMMUNICATION):  # along a tensor axis, within the pass
                    clock.now += 4
                clock.now += 8
            clock.now += 32  # the loss
            waits.wait()
            clock.now += 64
            with waits.not_while(BACKWARD, (BACKWARD, 1, 0)):
                clock.now += 128
            clock.now += 256
        timer.begin(OPTIMISER)
        clock.now += 512

    timer.record(step)
    assert timer.split_passes() == [["forward", 1, 0, 42.0], ["backward", 1, 0, 128.0]]
    assert timer.split(1007.0, 0.0)["communication"] == 1 + 4 + 64 + 256
    timer.record(lambda: None)
    assert timer.split_passes() is None


class Backward(torch.autograd.Function):
    """Passes a tensor on; its backward pass calls `work`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, work: Callable[[], None]) -> Tensor:
        ctx.work = work
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.work()
        return gradient, None


@pytest.mark.parametrize(
    ("after", "sends", "backward", "communication"),
    [(COMMUNICATION, False, 6.0, 3.0), (None, False, 9.0, 0.0), (COMMUNICATION, True, 6.0, 27.0)],
)
def test_a_backward_pass_ends_with_the_last_gradient_where_it_goes_on_to_reduce(
    clock, timer, after, sends, backward, communication
) -> None:
    """Collectives between gradients leave it what it computes."""
    layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
    timer.watch(layers)

    def compute() -> None:
        clock.now += 2

    def send() -> None:
        with timer.during(COMMUNICATION):
            clock.now += 8

    def step() -> None:
        x = torch.ones(1, 2, requires_grad=True)
        for layer in layers:
            x = Backward.apply(layer(x), compute)
            x = Backward.apply(x, send) if sends else x
        timer.begin(BACKWARD, after_gradients=after)
        # The first two seconds pass before any gradient is there.
        x.sum().backward()
        clock.now += 3
        timer.begin(OPTIMISER)
        clock.now += 1

    timer.record(step)
    parts = timer.split(34.0 if sends else 10.0, 0.0)
    assert (parts["backward"], parts["communication"]) == (backward, communication)
    assert parts["optimiser"] == 1.0


def test_what_follows_a_collective_after_the_last_gradient_is_no_backward_pass(
    clock: FakeClock, timer: PhaseTimer
) -> None:
    layer = nn.Linear(2, 2)
    timer.watch(layer)

    def step() -> None:
        timer.begin(BACKWARD, after_gradients=COMMUNICATION)
        clock.now += 1
        layer(torch.ones(1, 2)).sum().backward()
        clock.now += 2
        with timer.during(COMMUNICATION):
            clock.now += 4
        clock.now += 8
        timer.begin(OPTIMISER)

    timer.record(step)
    parts = timer.split(15.0, 0.0)
    assert (parts["backward"], parts["communication"]) == (1.0, 14.0)


def test_parts_that_exceed_the_whole_by_the_tick_of_a_clock_leave_no_negative_rest(
    clock: FakeClock, timer: PhaseTimer
) -> None:
    def step() -> None:
        timer.begin(FORWARD)
        clock.now += 1

    timer.record(step)
    assert timer.split(0.9999999, 0.0)["rest"] == 0.0


def test_cpu_seconds_are_split_at_the_same_marks(timer, monkeypatch) -> None:
    cpu = [10.0]
    monkeypatch.setattr("pipeline.emulation.pacing.time.thread_time", lambda: cpu[0])

    def step() -> None:
        timer.begin(FORWARD)
        cpu[0] += 2
        with timer.during(COMMUNICATION):
            cpu[0] += 0.5
        cpu[0] += 1

    timer.record(step)
    assert timer.split_cpu(4.0) == {
        "forward": 3.0,
        "backward": 0.0,
        "communication": 0.5,
        "optimiser": 0.0,
        "rest": 0.5,
    }


class Settlements(Pacer):
    """What had been done each time that it was to be paid for."""

    def __init__(self) -> None:
        super().__init__(2.0)
        self.done: list[str] = []
        self.seen: list[tuple[list[str], str]] = []

    def on_the_way(self) -> None:
        self.seen.append((list(self.done), "on the way"))

    def waited(self) -> None:
        self.seen.append((list(self.done), "waited"))

    def settle(self) -> None:
        self.seen.append((list(self.done), "settled"))


def test_an_emulated_node_pays_before_a_collective_and_after_it() -> None:
    pacer = Settlements()
    phases = Paced(pacer)
    with phases.during(COMMUNICATION):
        pacer.done.append("sent")
    assert pacer.seen == [([], "settled"), (["sent"], "waited")]


@pytest.mark.parametrize("profiled", [False, True])
def test_a_backward_pass_that_reduces_ends_with_a_collective(clock, profiled) -> None:
    pacer = clock.pacer = Settlements()
    phases = PhaseTimer(clock) if profiled else Paced(pacer)
    for phase, after in ((BACKWARD, COMMUNICATION), (OPTIMISER, None), (FORWARD, None)):
        phases.begin(phase, after_gradients=after)
    assert [how for _, how in pacer.seen] == ["settled", "waited", "settled"]


@pytest.mark.parametrize("profiled", [False, True])
def test_an_emulated_node_pays_for_each_gradient_before_it_can_be_sent(clock, profiled) -> None:
    pacer = clock.pacer = Settlements()
    phases = PhaseTimer(clock) if profiled else Paced(pacer)
    layers = [nn.Linear(2, 2, bias=False) for _ in range(2)]
    phases.watch(nn.Sequential(*layers))
    for layer in layers:
        node: Any = layer.weight.expand_as(layer.weight).grad_fn
        node.next_functions[0][0].register_hook(
            lambda *_: pacer.done.append("sent")
        )  # as DDP and Horovod do
    phases.begin(BACKWARD)
    pacer.seen.clear()
    layers[1](layers[0](torch.ones(1, 2))).sum().backward()
    assert pacer.seen == [([], "on the way"), (["sent"], "settled")]


def train(tokens: Path, strategy: Strategy, *, profile: bool, accumulation: int = 2) -> list[Step]:
    case = Case("single", accumulation=accumulation, architecture=strategy.example or None)
    spec = replace(case.spec(1), profile=profile)
    batches = Batches(tokens, spec.model.context, spec.workload.global_batch, spec.seed)
    steps: list[Step] = []
    loop = Loop(spec, strategy, batches, 0, Clock(torch.device("cpu")))
    assert (loop.phases is not None) == profile
    loop.run(steps.append)
    return steps


def test_single_profiled_takes_the_same_steps_and_communicates_not_at_all(small_tokens) -> None:
    timed = train(small_tokens, strategies.load("single", {}), profile=False)
    steps = train(small_tokens, strategies.load("single", {}), profile=True)
    assert [(s.loss, s.grad_norm) for s in steps] == [(s.loss, s.grad_norm) for s in timed]
    assert all(step.phases is None for step in timed)
    for step in steps:
        assert step.phases is not None
        assert step.phases["communication"] == 0.0
        assert all(step.phases[name] > 0 for name in ("forward", "backward", "optimiser", "data"))
        assert sum(step.phases[name] for name in IN_STEP) == pytest.approx(step.seconds, rel=1e-9)
        assert step.squares is not None and step.grad_norm is not None
        assert {*step.squares} == {"wte", "wpe", "h.0", "h.1", "ln_f"}
        clipped = min(step.grad_norm, 1.0)
        assert sum(step.squares.values()) == pytest.approx(clipped**2, rel=1e-4)


def in_another_thread(*given: Any, **named: Any) -> None:
    """The backward pass as on CUDA, where each device has a thread of its own for it."""
    dispatcher: Any = DTensor._op_dispatcher
    replicates = dispatcher._allow_implicit_replication  # torch hands this on to its threads

    def backward() -> None:
        dispatcher._allow_implicit_replication = replicates
        real_backward(*given, **named)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(backward).result()


real_backward = torch.autograd.backward
TORCH_ALONE = [name for name in strategies.names() if not strategies.load(name, {}).requires]


@pytest.mark.parametrize("name", TORCH_ALONE)
def test_a_backward_pass_in_another_thread_gives_phases_that_the_schema_takes(
    monkeypatch: pytest.MonkeyPatch, small_tokens: Path, name: str
) -> None:
    monkeypatch.setattr("torch.autograd.backward", in_another_thread)
    with group_alone():
        steps = train(small_tokens, strategies.load(name, ON_ONE_RANK.get(name, {})), profile=True)
    for step in steps:
        validate(step.to_dict(), "step", "a step")
