"""A rank: its errors, its clocks, its device, and that only the latest launch leaves results."""

import errno
import json
import os
import sys
from argparse import Namespace
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import strategies
from pipeline.emulation.pacing import Pacer
from pipeline.errors import (
    CorpusError,
    LaunchError,
    PeerError,
    StoppedError,
    StrategyError,
    UnsupportedError,
)
from pipeline.machine import image
from pipeline.resolved import ResolvedRun, resolve
from pipeline.study.expansion import expand
from pipeline.study.load import load_study
from pipeline.study.spec import RunSpec, WorldSpec
from pipeline.training import checkpoint, devices, fence
from pipeline.training.worker import OF_A_DISK, check_ours, kind_of, parse, run, train
from tests.parity.cases import STEPS, Case

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UnsupportedError("no Apex"), "unsupported"),
        (LaunchError("two ranks came up"), "error"),
        (StrategyError("all_reduce outside of 2 steps"), "failed"),
        (StoppedError("the job was asked to end"), "stopped"),
        (PeerError("another rank could not write its part"), "lost"),
        *((OSError(number, os.strerror(number)), "error") for number in OF_A_DISK),
        (MemoryError(), "oom"),
        (RuntimeError("CUDA out of memory. Tried to allocate 20 MiB"), "oom"),
        (RuntimeError(GLOO), "lost"),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "lost"),
        (RuntimeError("a bug"), "failed"),
        (FileNotFoundError(errno.ENOENT, "No such file"), "failed"),
    ],
    ids=str,
)
def test_the_kind_of_an_exception(error: Exception, kind: str) -> None:
    assert kind_of(error) == kind


def test_a_strategy_adds_its_backend_s_words_of_a_lost_peer() -> None:
    error = RuntimeError("HorovodInternalError: shut down")
    assert kind_of(error) == "failed"
    assert kind_of(error, strategies.load("horovod", {}).lost_peer) == "lost"


@pytest.mark.parametrize(("network", "steps"), [("loopback", STEPS - 2), ("emulated", None)])
def test_a_cpu_has_both_clocks_but_for_emulated_nodes(
    network: str, steps: int | None, small_tokens: Path, tmp_path: Path
) -> None:
    """As many freely running steps as timed ones."""
    spec = Case("single").spec(1)
    spec = replace(spec, world=replace(spec.world, network=network))
    args = Namespace(
        tokens=small_tokens, out=tmp_path, checkpoints=tmp_path / "checkpoints", resume_from=0,
        launch=fence.claim(tmp_path), owner="", stop_file=None,
    )  # fmt: skip
    loaded = "torch" in sys.modules
    train(resolve(spec), args, Pacer(), nullcontext)
    rank = json.loads((tmp_path / "rank0.json").read_text())["rank"]
    assert rank.get("free_running", {}).get("steps") == steps
    assert rank["forked"] == loaded


def test_a_job_that_is_asked_to_end_does_so_at_a_checkpoint(small_tokens, tmp_path) -> None:
    args = Namespace(
        tokens=small_tokens, out=tmp_path, checkpoints=tmp_path / "checkpoints", resume_from=0,
        launch=fence.claim(tmp_path), owner="mine", stop_file=tmp_path / "stop",
    )  # fmt: skip
    args.stop_file.touch()
    with pytest.raises(StoppedError, match="a checkpoint keeps its 1 steps"):
        train(resolve(Case("single").spec(1)), args, Pacer(), nullcontext)
    assert checkpoint.fault(args.checkpoints, 1, "mine") is None


def test_a_later_launch_takes_the_folder_over(tmp_path) -> None:
    first = fence.claim(tmp_path)
    assert fence.lost(tmp_path, first) is None
    second = fence.claim(tmp_path)
    assert fence.lost(tmp_path, second) is None
    check_ours(Namespace(out=tmp_path, launch=second))
    with pytest.raises(LaunchError, match="a later start of this run took over"):
        check_ours(Namespace(out=tmp_path, launch=first))
    assert fence.lost(tmp_path / "gone", "token") is not None


def test_a_folder_that_cannot_be_read_belongs_to_no_later_launch(tmp_path, monkeypatch) -> None:
    token = fence.claim(tmp_path)

    def fail(*_: object, **__: object) -> str:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Path, "read_text", fail)
    with pytest.raises(OSError, match="Stale"):
        fence.lost(tmp_path, token)


def test_a_rank_of_an_older_launch_does_not_even_say_why_it_failed(tmp_path, capsys) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(Case("single").spec(1).to_json())
    latest = fence.claim(tmp_path)
    options = ("--spec", spec, "--tokens", tmp_path / "no", "--out", tmp_path, "--checkpoints", "x")
    reason = tmp_path / "rank0.error.json"
    with pytest.raises(CorpusError):
        run(parse([*map(str, options), "--launch", "an older one"]))
    assert not reason.exists()
    assert run(parse([*map(str, options), "--launch", latest])) == 2
    assert json.loads(reason.read_text())["type"] == "CorpusError"
    assert capsys.readouterr().err.count("error: ") == 1


TORCHRUN = [
    {"RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0"},
    {"RANK": "1", "LOCAL_RANK": "0", "GROUP_RANK": "1"},
]
"""What torchrun tells the ranks of two nodes with one rank each."""


def on_gpus(strategy: str, *world: Any, **options: Any) -> ResolvedRun:
    nodes, ranks, network = world
    spec = Case("single").spec(1)
    given = WorldSpec(nodes, ranks, "cuda", "nccl", network)
    return resolve(replace(spec, strategy=strategy, options=options, world=given))


@pytest.mark.parametrize(
    ("nodes", "ranks", "network", "environment", "index"),
    [
        (2, 1, "loopback", TORCHRUN[1], 1),  # nodes that share a machine share no GPU
        (2, 1, "real", TORCHRUN[1], 0),
        (2, 2, "loopback", {"RANK": "3", "LOCAL_RANK": "1"}, 3),
        (2, 2, "real", {"RANK": "3", "LOCAL_RANK": "1"}, 1),
        (1, 1, "loopback", {}, 0),
    ],
)
def test_the_index_of_a_rank(nodes, ranks, network, environment, index) -> None:
    assert devices.gpu_index(on_gpus("ddp", nodes, ranks, network), environment, 4) == index


def test_one_process_with_all_devices_begins_at_the_first() -> None:
    run = on_gpus("parameter_server", 1, 4, "loopback", engine="data_parallel")
    assert devices.gpu_index(run, TORCHRUN[0], 4) == 0
    with pytest.raises(UnsupportedError, match="1 x 4 ranks need 4 GPUs"):
        devices.gpu_index(run, TORCHRUN[0], 3)


def test_too_few_gpus_are_a_reason_that_every_rank_gives() -> None:
    run = on_gpus("ddp", 2, 1, "loopback")
    for place in TORCHRUN:
        with pytest.raises(UnsupportedError, match=r"2 x 1 ranks need 2 GPUs .* 1;"):
            devices.gpu_index(run, place, 1)
    hidden = TORCHRUN[0] | {"CUDA_VISIBLE_DEVICES": "3"}
    with pytest.raises(UnsupportedError, match="1 with CUDA_VISIBLE_DEVICES=3;"):
        devices.gpu_index(run, hidden, 1)


@pytest.fixture
def gpu_run(monkeypatch, tmp_path) -> RunSpec:
    """A run that wants a GPU, where torch sees none; devices are files below `tmp_path`."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(devices, "FILES", tmp_path)
    return expand(load_study(Path("workflow/config/bai2022/study.yaml")))[0]


def choose(run: RunSpec):
    return devices.choose(resolve(run))


@pytest.mark.parametrize(
    ("place", "built_for", "taken"),
    [(1, ["sm_70"], [1]), (0, ["sm_75", "sm_80", "compute_90"], [0])],
)
def test_a_rank_takes_the_gpu_of_its_place_where_torch_has_kernels_for_it(
    gpu_run, monkeypatch, place, built_for, taken
) -> None:
    """Without this every step of a V100 ends with `no kernel image is available`."""
    import torch

    seen: list[int] = []
    for name, fake in {
        "is_available": lambda: True, "device_count": lambda: 2, "set_device": seen.append,
        "get_device_capability": lambda _: (7, 0), "get_arch_list": lambda: built_for,
        "get_device_name": lambda _: "Tesla V100-SXM2-16GB",
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, fake)
    for name, value in TORCHRUN[place].items():
        monkeypatch.setenv(name, value)
    two = WorldSpec(2, 1, "cuda", "nccl", "loopback")
    run = replace(gpu_run, strategy="ddp", world=two)
    if place:
        assert choose(run) == torch.device("cuda", 1)
    else:
        with pytest.raises(UnsupportedError, match="V100-SXM2-16GB: this torch has no kernels for"):
            choose(run)
    assert seen == taken


def test_a_container_without_the_driver_of_a_gpu_that_is_there_is_an_error(
    gpu_run, monkeypatch, tmp_path
) -> None:
    """No record `unsupported` of a machine that could do it."""
    monkeypatch.setattr(image, "digest_from_within", lambda: "sha256:1")
    (tmp_path / "nvidia0").touch()
    with pytest.raises(LaunchError, match="started without its driver; add `--nv`"):
        choose(gpu_run)


@pytest.mark.parametrize("files", [["nvidia0"], []], ids=["device file", "none"])
def test_a_driver_that_is_too_old_is_told_in_torchs_words_and_lasts_in_no_record(
    gpu_run, monkeypatch, tmp_path, files
) -> None:
    def init() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).")

    monkeypatch.setattr("torch.cuda.init", init)
    monkeypatch.setattr(image, "digest_from_within", lambda: None)
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(LaunchError, match=r"too old \(found version 11040\)") as raised:
        choose(gpu_run)
    assert "GPU node" not in str(raised.value)


@pytest.mark.parametrize(
    ("capability", "built_for", "runs"),
    [
        ((7, 0), ["sm_75", "sm_80", "sm_90", "compute_90"], False),
        ((8, 6), ["sm_80"], True),
        ((8, 0), ["sm_86"], False),
        ((9, 0), ["sm_80", "sm_90a"], True),
        ((10, 0), ["sm_90", "compute_90"], True),
        ((12, 0), ["sm_100", "sm_120"], True),
        ((9, 0), ["gfx90a"], True),
    ],
)
def test_a_gpu_needs_kernels_for_its_architecture(capability, built_for, runs) -> None:
    reason = devices.without_kernels(capability, built_for)
    assert (reason is None) == runs
    if reason is not None:
        assert f"{capability[0]}.{capability[1]}" in reason and "BASE_IMAGE" in reason
