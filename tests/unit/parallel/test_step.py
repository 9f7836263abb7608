"""The shared step and the buckets of its gradients, of whose ranks this process is one."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from pipeline.parallel.group import buckets
from pipeline.parallel.mesh import BUCKET_BYTES, Layout
from pipeline.parallel.reduction import MeanBucket, Reduction
from pipeline.parallel.state import capture
from pipeline.parallel.step import Stepper
from pipeline.parallel.types import Batch, Parts
from pipeline.precision import make_precision
from pipeline.precision.native import MasterWeights
from tests.ranks import Operators


def test_no_gradient_of_a_master_is_there_in_a_forward_pass() -> None:
    """They are as large as the model in fp32, and activations come on top of them."""
    model, kept = nn.Linear(2, 2), list[bool]()
    layout = Layout((("data", 1),), 1, "cpu", "gloo")
    parts = Parts(model, torch.optim.AdamW, layout, make_precision("amp_o2", "cpu"), 1.0)
    prepared = parts.prepare()
    assert isinstance(prepared.optimiser, MasterWeights)
    masters = prepared.optimiser.inner.param_groups[0]["params"]

    def forward(inputs: Tensor, targets: Tensor) -> Tensor:
        kept.append(any(master.grad is not None for master in masters))
        out: Tensor = model(inputs)
        return out

    stepper = Stepper(prepared, forward=forward)
    for _ in range(2):
        stepper.step([Batch(torch.ones(1, 2, dtype=torch.bfloat16), torch.ones(1, 2))])
    assert all(master.grad is not None for master in masters) and kept == [False, False]


def test_a_captured_state_takes_no_memory_of_the_device() -> None:
    """A copy of the state on a GPU that it fills ended the run; `meta` stands for the GPU here."""
    with FakeTensorMode():
        model = nn.Module()
        model.weight = nn.Parameter(torch.empty(3, 2, device="meta"))
        optimiser = torch.optim.AdamW(model.parameters())
        optimiser.state[model.weight]["exp_avg"] = torch.empty_like(model.weight)
        with Operators() as made:
            state = capture(
                model, optimiser, make_precision("fp32", "cpu"), lambda name, axes: True
            )
    assert {piece.name for piece in state.pieces} == {"weights/weight", "optimiser/weight/exp_avg"}
    assert {piece.numbers.device.type for piece in state.pieces} == {"cpu"}
    results = [out for operator, out in made.calls if not operator.is_view]
    assert "meta" not in {out.device.type for out in results if isinstance(out, Tensor)}


RANKS = 8


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Buckets that were all-reduced among ranks that all have the same."""
    found: list[Tensor] = []

    def all_reduce(flat: Tensor, *, group: Any, async_op: bool) -> Any:
        found.append(flat.mul_(RANKS))
        return SimpleNamespace(wait=lambda: None)

    monkeypatch.setattr("torch.distributed.all_reduce", all_reduce)
    return found


def bucket(parameters: list[nn.Parameter], reduced_as: torch.dtype | None = None) -> MeanBucket:
    ranks: Any = SimpleNamespace(size=lambda: RANKS)
    return MeanBucket(parameters, ranks, reduced_as)


def test_tensors_travel_in_buckets_of_bounded_size() -> None:
    small = [torch.zeros(10) for _ in range(3)]
    large = torch.zeros(BUCKET_BYTES // 4)
    assert [len(one) for one in buckets([*small, large, *small])] == [4, 3]
    assert list(buckets([])) == []


def test_large_scaled_gradients_do_not_overflow_in_their_mean(sent) -> None:
    """Eight times 32,768 is more than float16 holds; their mean is not."""
    weight = nn.Parameter(torch.zeros(3, dtype=torch.float16))
    weight.grad = torch.full((3,), 32_768.0, dtype=torch.float16)
    Reduction([bucket([weight])]).finish()
    assert weight.grad.tolist() == [32_768.0] * 3


def test_of_several_micro_batches_the_last_backward_pass_reduces_the_last_weights_first(
    sent, monkeypatch
) -> None:
    """So those of a pipeline travel while it still computes, and none of them twice."""
    weights = [nn.Parameter(torch.full((1,), float(number))) for number in (1, 2)]
    reduction = Reduction(bucket([weight]) for weight in reversed(weights))
    for step in range(2):
        reduction.begin(passes=3)
        for passed in range(3):
            assert len(sent) == 2 * step, f"{passed} of 3 have passed"
            torch.autograd.backward(torch.sin(weights[0]) * weights[1])
        assert len(sent) == 2 * step + 2
        reduction.finish()
        first, last = (float(weight.grad) for weight in weights)  # type: ignore[arg-type]
        assert last == pytest.approx(3 * 0.8415, rel=1e-3) and first == pytest.approx(
            3.2418, rel=1e-3
        )
        for weight in weights:
            weight.grad = None
