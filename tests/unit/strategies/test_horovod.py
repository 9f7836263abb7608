"""Horovod: usable or why not, the job that a rank joins, what a resume sends, its search."""

import importlib.util
import json
import os
import subprocess
import sys
import weakref
from contextlib import nullcontext
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.errors import LaunchError, UnsupportedError
from pipeline.machine import addresses as network
from pipeline.machine.limits import free_port
from pipeline.parallel.mesh import DATA, Layout
from pipeline.parallel.step import Stepper
from pipeline.strategies import load
from pipeline.strategies.horovod import job
from pipeline.strategies.horovod.plan import (
    TUNED_MB,
    TUNED_POINTS,
    UNSUPPORTED_FILE,
    settled,
    why_unusable,
)
from tests.parity.launch import environment


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose `torch` and `horovod` are the only ones that are found."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.13.0+cpu'\n")

    def find(name: str) -> ModuleSpec | None:
        origin = tmp_path / name / "__init__.py"
        return ModuleSpec(name, None, origin=str(origin)) if origin.parent.is_dir() else None

    monkeypatch.setattr(importlib.util, "find_spec", find)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return tmp_path


def install_horovod(packages: Path, torch: str) -> None:
    (packages / "horovod" / "torch").mkdir(parents=True)
    (packages / "horovod" / "torch" / "mpi_lib_v2.cpython-311.so").touch()
    (packages / "horovod" / "metadata.json").write_text(json.dumps({"pytorch": torch}))


def test_only_a_horovod_of_this_torch_is_usable(packages: Path) -> None:
    assert "never built here" in str(why_unusable())
    install_horovod(packages, "2.13.0+cpu")
    assert why_unusable() is None
    recorded = packages / "horovod" / "metadata.json"
    recorded.write_text(recorded.read_text().replace("2.13", "2.12"))
    other = "built for torch 2.12.0+cpu, but torch 2.13.0+cpu is installed"
    assert other in str(why_unusable())
    next((packages / "horovod" / "torch").iterdir()).unlink()
    assert "without its torch library" in str(why_unusable())


def test_the_reason_of_the_failed_build_is_passed_on(packages: Path) -> None:
    (packages / UNSUPPORTED_FILE).write_text("the compiler is too old\nlasting: x\n")
    with pytest.raises(UnsupportedError, match=r"not installed: the compiler is too old$"):
        load("horovod", {}).check()


@pytest.mark.parametrize("left", [b"", b"\xff\n", b"\0" * 9])
def test_what_a_disk_emptied_is_a_reason_too(packages: Path, left: bytes) -> None:
    (packages / UNSUPPORTED_FILE).write_bytes(left)
    assert str(why_unusable()).startswith("not installed: ")
    install_horovod(packages, "2.13.0+cpu")
    (packages / "horovod/metadata.json").write_bytes(left or b"[]")
    assert "built for torch unknown" in str(why_unusable())


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher's variables come in."""
    for name in list(os.environ):
        if name.startswith(("HOROVOD_", "GLOO_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("running", "size", "variables", "said"),
    [
        (False, 1, {}, None),
        (True, 2, {"HOROVOD_CYCLE_TIME": "5"}, None),
        (True, 2, {"HOROVOD_CYCLE_TIME": "1.0"}, r"HOROVOD_CYCLE_TIME=1\.0, given 5"),
        (True, 4, {"HOROVOD_CYCLE_TIME": "5"}, "came up with 2 ranks, the spec says 4"),
    ],
)
def test_another_job_than_the_spec_s_is_an_error(
    monkeypatch: pytest.MonkeyPatch, running: bool, size: int, variables: Any, said: str | None
) -> None:
    begun: list[str] = []
    horovod = SimpleNamespace(
        is_initialized=lambda: running, size=lambda: 2 if running else 1,
        init=lambda: begun.append(os.environ["HOROVOD_CYCLE_TIME"]),
    )  # fmt: skip
    for name, module in (("horovod", SimpleNamespace(torch=horovod)), ("horovod.torch", horovod)):
        monkeypatch.setitem(sys.modules, name, module)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    layout = Layout(((DATA, size),), size, "cpu", "gloo")
    with nullcontext() if said is None else pytest.raises(LaunchError, match=said):
        job.join(layout, {"HOROVOD_CYCLE_TIME": "5"})
    assert begun == ["5"] * (said is None and not running)


def test_the_store_that_rank_0_serves_outlives_the_meeting(monkeypatch) -> None:
    """Else a rank that reads it last finds nobody, and rank 0 waits for that rank."""
    stores, alive = [Store(["127.0.0.1", "127.0.0.1"])], list[bool]()
    stores[0].set("server", "127.0.0.1 9")
    served = weakref.ref(stores[0])
    horovod = SimpleNamespace(
        is_initialized=lambda: False,
        size=lambda: 2,
        init=lambda: alive.append(served() is not None),
    )
    for name, module in (("horovod", SimpleNamespace(torch=horovod)), ("horovod.torch", horovod)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(job, "rendezvous", lambda _: iter([(stores.pop(), 0, 2)]))
    monkeypatch.setattr(job, "PrefixStore", lambda _, store: store)
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    job.join(Layout(((DATA, 2),), 2, "cpu", "gloo"), {})
    assert alive == [True]


class Store:
    """A launcher's key-value store in which the other ranks have written already."""

    def __init__(self, addresses: list[str]) -> None:
        self.values = {f"address{rank}": a.encode() for rank, a in enumerate(addresses)}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]


ROUTES = {"master": "127.0.1.1", "10.0.0.2": "10.0.0.1"}


@pytest.mark.parametrize(
    ("others", "expected"),
    [(["", "127.0.0.1"], "127.0.1.1"), (["", "10.0.0.2"], "10.0.0.1")],
    ids=["one machine", "the master's name is a loopback on its own node"],
)
def test_a_loopback_is_taken_only_where_all_ranks_are_on_it(monkeypatch, others, expected) -> None:
    monkeypatch.setenv("MASTER_ADDR", "master")
    monkeypatch.setattr(network, "source_address", ROUTES.__getitem__)
    store: Any = Store(others)
    assert job._own_address(store, 0, 2) == expected


def test_gloo_uses_the_interface_that_torch_s_gloo_was_told(monkeypatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert job._interface("127.0.0.1") == "ib0"
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "eth7")
    assert job._interface("127.0.0.1") == "eth7"


def test_a_resume_sends_weights_and_nothing_of_the_optimiser(monkeypatch) -> None:
    """`broadcast_object` pickles, which ends at 2 GiB; every rank has read the state by then."""
    hvd = pytest.importorskip("horovod.torch", reason=f"Horovod is {why_unusable()}")
    step = pytest.importorskip("pipeline.strategies.horovod.step")
    sent: list[str] = []

    def broadcast(named: list[tuple[str, torch.Tensor]], root: int) -> None:
        sent.extend(name for name, _ in named)

    monkeypatch.setattr(hvd, "broadcast_parameters", broadcast)
    for name in ("broadcast_object", "broadcast_optimizer_state"):
        refused = lambda *_, **__: pytest.fail("the optimiser is sent")  # noqa: E731
        monkeypatch.setattr(hvd, name, refused)
    monkeypatch.setattr(Stepper, "load", lambda self, state: sent.append(f"read {state}"))
    stepper = step.HorovodStepper.__new__(step.HorovodStepper)
    stepper.model = torch.nn.Linear(2, 1)
    stepper.load("a state")
    assert sent == ["read a state", "weight", "bias"]


HEAD = (
    "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,"
    "cycle_time_ms,tensor_fusion_threshold,score"
)
"""As Horovod 0.28.1 writes it."""


def test_the_last_row_of_a_finished_search_is_what_horovod_keeps() -> None:
    best = "0,0,0, 1,3.29399,41.5908,33.002"
    rows = [HEAD, best, *["0,0,0, 1,50,32,2.5"] * (TUNED_POINTS - 1), best]
    found = settled("\n".join(rows), dilation=2.0)
    assert found == {"cycle_time_ms": 1.646995, "fusion_threshold_mb": 41.5908, "points": 21}
    with pytest.raises(LaunchError, match=r"tried 21 of 21 points .*; raise workload.untimed_ste"):
        settled("\n".join(rows[:-1]), dilation=2.0)


# A point takes 6 steps, none warms up: read when the library is loaded.
FEW_STEPS = {"HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "1", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "0"}
MOST_POINTS = "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES"
"""Horovod's variable for the points that it tries after the first one."""
TUNED = """
from tests.cores import share_a_core

share_a_core(2)  # where few would spin for each other
import json, os, sys
from dataclasses import replace
from functools import partial
from pathlib import Path
import torch
from pipeline import strategies
from pipeline.corpus.batches import Batches
from pipeline.machine.processes import Child
from pipeline.strategies.horovod import plan
from pipeline.training.clock import Clock
from pipeline.training.loop import Loop
from tests.parity.cases import Case

plan.TUNED_POINTS = int(sys.argv[3])
spec = Case("horovod").spec(2)
spec = replace(spec, workload=replace(spec.workload, steps=6 * plan.TUNED_POINTS + 14))
batches = Batches(Path(sys.argv[1]), spec.model.context, spec.workload.global_batch, spec.seed)

def train(rank):
    os.environ.update(RANK=rank, LOCAL_RANK=rank)
    losses, strategy = [], strategies.load("horovod", {"autotune": True})
    loop = Loop(spec, strategy, batches, int(rank), Clock(torch.device("cpu")))
    loop.run(lambda step: losses.append(step.loss))
    of_rank = [loop.trainable.autotuned, losses[0], losses[-1], str(loop.trainable.log)]
    Path(sys.argv[2], rank).write_text(json.dumps(of_rank))

ranks = [Child(partial(train, rank)) for rank in "01"]
sys.exit(any([one.wait() for one in ranks]))
"""


def assert_a_search_ends(tokens: Path, out: Path, points: int, **variables: str) -> None:
    """After so many points, on two ranks, which train meanwhile; it says what it settled on."""
    both = environment(2) | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"} | FEW_STEPS | variables
    both |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-c", TUNED, str(tokens), str(out), str(points)]
    subprocess.run(command, env=both, check=True, timeout=600)
    of_ranks = [json.loads((out / rank).read_text()) for rank in "01"]
    (tuned, first, last, log), (none, *same) = of_ranks
    assert (none, same[:2]) == (None, [first, last])
    assert tuned["points"] == points
    assert 1 <= tuned["cycle_time_ms"] <= 100
    assert 0 <= tuned["fusion_threshold_mb"] <= TUNED_MB
    assert last < first, "it trains"
    assert not Path(log).parent.exists()


def test_a_search_ends_and_says_what_it_settled_on(small_tokens: Path, tmp_path: Path) -> None:
    """Of three points, where Horovod's default is 21."""
    assert_a_search_ends(small_tokens, tmp_path, 3, **{MOST_POINTS: "2"})
