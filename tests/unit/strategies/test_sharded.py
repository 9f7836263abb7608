"""What ranks of ZeRO send, and when: this process is one of many, or the only one."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from pipeline import strategies
from pipeline.parallel.group import buckets
from pipeline.parallel.types import Batch
from pipeline.strategies.sharded.step import shard
from tests.ranks import MODEL, Operators, fake_group, group_alone, parts_of

GRADIENT = 20_000.0
"""Of a scaled loss; the largest float16 is 65,504."""
ROWS = 64


class Layer(nn.Module):
    """Gives each of its weights the gradient that it is fed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ROWS))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sum()


class Model(nn.Sequential):
    @property
    def blocks(self) -> nn.Sequential:
        return self


@pytest.fixture(params=[2, 64])
def ranks(request: pytest.FixtureRequest) -> Iterator[int]:
    with fake_group(request.param) as size:
        yield size


def summed(whole: Tensor, ranks: int) -> Tensor:
    """This rank's piece of the sum over ranks that all have the same, one after the other."""
    piece = whole.chunk(ranks)[0]
    total = piece.clone()
    for _ in range(ranks - 1):
        total += piece
    return total


def test_large_gradients_are_divided_before_they_are_added_as_ddp_does(ranks, monkeypatch) -> None:
    monkeypatch.setattr(
        "pipeline.strategies.sharded.step.ring_reduce_scatter",
        lambda whole, group: summed(whole, ranks),
    )
    model, mesh = Model(Layer()), init_device_mesh("cpu", (ranks,))
    precision = SimpleNamespace(narrow_weights=torch.float16, gradients=None, reduced=None)
    parts: Any = SimpleNamespace(precision=precision)
    shard(model, mesh, parts, reshard=True)
    model(torch.full((ROWS,), GRADIENT, dtype=torch.float16)).backward()
    parameter: Any = model.blocks[0].weight
    of_ddp = summed(torch.full((ROWS,), GRADIENT, dtype=torch.float16) / ranks, ranks)
    assert parameter.grad.to_local().tolist() == of_ddp.float().tolist()


def operators_of_an_update(strategy: str, size: int, **options: Any) -> int:
    """Of the optimiser, gradients being reduced; what is gathered comes from the fake group."""
    with fake_group(size):
        chosen = strategies.load(strategy, options)
        optimiser: Any = chosen.build(parts_of(chosen, size)).optimiser
        optimiser.param_groups[0]["lr"] = 1e-3
        for parameter in optimiser.param_groups[0]["params"]:
            parameter.grad = torch.zeros_like(parameter)
        optimiser.step()  # makes its state
        with Operators() as counted:
            optimiser.step()
            if strategy == "sharded":
                optimiser.reduction.publish()
    return len(counted.calls)


def test_the_host_s_work_of_stage_1_does_not_grow_with_the_ranks() -> None:
    """It was a copy for each rank and parameter: on 256 ranks 98 ms of a step for AdamW's 2."""
    plain = operators_of_an_update("single", 1)
    few, many = (operators_of_an_update("sharded", ranks, stage=1) for ranks in (2, 256))
    assert plain < many == few < 3 * plain


def test_updated_rows_travel_while_the_next_forward_pass_runs(monkeypatch) -> None:
    """Each part of a model waits for its own weights alone; who reads them between steps, for all.

    With one bucket for each weight.
    """
    monkeypatch.setattr(
        "pipeline.strategies.sharded.rows.buckets", lambda all_, _: buckets(all_, 1)
    )
    chosen, events = strategies.load("sharded", {"stage": 1}), list[str]()
    real = dist.all_gather_into_tensor

    def gather(gathered: Tensor, own: Tensor, *given: Any, **named: Any) -> Any:
        work, name = real(gathered, own, *given, **named), name_of[own.data_ptr()]
        events.append("gather")

        def wait() -> None:
            work.wait()
            events.append(f"{name} is there")

        return SimpleNamespace(wait=wait)

    with group_alone():
        parts = parts_of(chosen, 1)
        trainable: Any = chosen.build(parts)
        names = [name for name, _ in parts.model.named_parameters()]
        own = [bucket.own.data_ptr() for bucket in trainable.optimiser.buckets]
        name_of = dict(zip(own, names[::-1], strict=True))
        modules = ["wte", "wpe", *(f"h.{n}" for n in range(MODEL.num_layers)), "ln_f", "lm_head"]
        for piece in modules:
            parts.model.get_submodule(piece).register_forward_pre_hook(
                lambda *_, piece=piece: events.append(f"{piece} begins")
            )
        trainable.optimiser.param_groups[0]["lr"] = 1e-3
        tokens = torch.arange(2 * MODEL.context).view(2, -1)
        monkeypatch.setattr(dist, "all_gather_into_tensor", gather)
        trainable.step([Batch(tokens, tokens)])
        events.clear()
        trainable.step([Batch(tokens, tokens)])
        expected = ["gather"] * len(names)
        for piece in modules:
            expected += [f"{name} is there" for name in names if name.startswith(f"{piece}.")]
            expected.append(f"{piece} begins")
        assert events == expected
        whole: Any = parts.model.get_parameter("wte.weight")
        rows = trainable.optimiser.rows[whole]
        assert not torch.equal(whole, rows)
        pieces = {piece.name: piece.numbers for piece in trainable.shards().pieces}
        assert torch.equal(pieces["weights/wte.weight"], rows), "a checkpoint is of rows"
        trainable.complete()
        assert torch.equal(whole, rows)
