"""The commands that start ranks."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import strategies
from pipeline.spec import RunSpec, expand
from pipeline.study import load_study
from pipeline.training.launcher import RunPaths, plan, threads_per_rank

PATHS = RunPaths(Path("spec.json"), Path("tokens"), Path("out"))


@pytest.fixture
def run() -> RunSpec:
    runs = expand(load_study(Path("workflow/config/smoke.yaml")))
    return next(r for r in runs if r.strategy == "ddp" and r.world.nodes == 4)


def test_one_torchrun_for_each_node(run) -> None:
    layout = strategies.load(run.strategy, run.options).layout(run.world)
    launch = plan(run, layout, PATHS, num_cores=2, port=1234)
    assert len(launch.commands) == 4
    for node, command in enumerate(launch.commands):
        assert command[1:3] == ("-m", "torch.distributed.run")
        assert {f"--node-rank={node}", "--nnodes=4", "--nproc-per-node=1"} <= set(command)
        assert "--master-port=1234" in command and "--max-restarts=0" in command
    assert launch.environment["GLOO_SOCKET_IFNAME"] == "lo"
    assert launch.environment["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("cores", "network", "expected"),
    [(2, "loopback", 1), (8, "loopback", 2), (8, "real", 8), (1, "real", 1)],
)
def test_threads_share_the_cores_of_one_machine(run, cores, network, expected) -> None:
    run = replace(run, world=replace(run.world, network=network))
    layout = strategies.load(run.strategy, run.options).layout(run.world)
    assert threads_per_rank(run, layout, cores) == expected


def test_a_real_network_is_not_pinned_to_the_loopback(run, monkeypatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    run = replace(run, world=replace(run.world, network="real", nodes=1))
    layout = strategies.load(run.strategy, run.options).layout(run.world)
    assert "GLOO_SOCKET_IFNAME" not in plan(run, layout, PATHS, 2, 1).environment


def test_several_machines_are_never_replaced_by_this_one(run) -> None:
    run = replace(run, world=replace(run.world, network="real"))
    layout = strategies.load(run.strategy, run.options).layout(run.world)
    launch = plan(run, layout, PATHS, 2, 1)
    assert launch.commands == ()
    assert launch.unsupported is not None and "needs 4 machines" in launch.unsupported
