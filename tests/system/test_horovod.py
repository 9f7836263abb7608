"""The real Horovod among real ranks: each trap that was measured has a run that shows it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.strategies.horovod.plan import why_unusable
from tests.system import horovod_worker

WORKER = Path(horovod_worker.__file__)
ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
NAMESPACE = ["unshare", "--user", "--map-root-user", "--net", "--mount"]

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(why_unusable() is not None, reason=f"Horovod is {why_unusable()}"),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment() -> dict[str, str]:
    launcher = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "HOROVOD_", "GLOO_", "TORCHELASTIC_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(launcher)}
    path = f"{BIN}{os.pathsep}{kept.get('PATH', '')}"
    return kept | {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def torchrun(num_ranks: int, *extra: str) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks)),
        *(extra or ("--master-addr", "127.0.0.1", "--master-port", str(free_port()))),
    ]


def start(launcher: list[str], out: Path, *args: str) -> subprocess.Popen[str]:
    out.mkdir(exist_ok=True)
    command = [*launcher, str(WORKER), str(out), *args]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env=environment(), cwd=out, text=True, stdout=pipe, stderr=subprocess.STDOUT
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        output, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, output


def train(launcher: list[str], out: Path, *args: str) -> list[dict[str, Any]]:
    """What each rank left, by rank."""
    code, output = finish(start(launcher, out, *args))
    assert code == 0, output
    # Horovod warns where a step reduces a second time
    assert "skip_synchronize" not in output
    return read_ranks(out)


def read_ranks(out: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(out.glob("rank*.json"))]


def single(out: Path, precision: str, micro: int, steps: int) -> dict[str, Any]:
    """The same training by one process: this one."""
    out.mkdir()
    horovod_worker.train(out, ("single", precision, "1", str(micro), str(steps)))
    return read_ranks(out)[0]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Eight steps of two ranks that start apart, two micro-batches a step."""
    out = tmp_path_factory.mktemp("two")
    return train(torchrun(2), out, "horovod", "fp32", "2", "2", "8", "apart")


def assert_same_training(ranks: list[dict[str, Any]], alone: dict[str, Any], within: float) -> None:
    assert all(rank["weights"] == ranks[0]["weights"] for rank in ranks)
    assert all(rank["tied"] for rank in ranks)
    for mine, theirs in zip(ranks[0]["steps"], alone["steps"], strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=within)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=within)
        assert mine["tokens"] == theirs["tokens"]
    for name, values in alone["weights"].items():
        assert ranks[0]["weights"][name] == pytest.approx(values, abs=within)


def test_ranks_that_start_apart_train_as_one_process_does(
    two_ranks: list[dict[str, Any]], tmp_path: Path
) -> None:
    # a hidden optimiser step at the start, a sum for a mean, a clip before the reduction or a
    # dropped micro-batch each move the weights by 1e-3 and more
    assert len(two_ranks) == 2
    assert_same_training(two_ranks, single(tmp_path / "one", "fp32", 2, 8), 1e-5)


def test_resumed_training_equals_training_in_one_go(
    two_ranks: list[dict[str, Any]], tmp_path: Path
) -> None:
    args = ("horovod", "fp32", "2", "2", "8", "apart", "resumed")
    ranks = train(torchrun(2), tmp_path / "two", *args)
    assert ranks[0]["steps"] == two_ranks[0]["steps"][4:]
    assert ranks[0]["weights"] == ranks[1]["weights"] == two_ranks[0]["weights"]


def test_narrow_weights_reduce_although_horovod_knows_no_bfloat16(tmp_path: Path) -> None:
    ranks = train(torchrun(2), tmp_path / "two", "horovod", "amp_o2", "2", "1", "4")
    # bfloat16 keeps 8 bits, and half-batches round their gradients apart
    assert_same_training(ranks, single(tmp_path / "one", "amp_o2", 1, 4), 2e-2)


def test_horovodrun_starts_the_same_worker(tmp_path: Path) -> None:
    launcher = [str(BIN / "horovodrun"), "-np", "2", "-H", "localhost:2", sys.executable]
    ranks = train(launcher, tmp_path / "two", "horovod", "fp32", "2", "1", "4")
    assert len(ranks) == 2
    assert_same_training(ranks, single(tmp_path / "one", "fp32", 1, 4), 1e-5)


def test_two_launchers_on_one_machine_are_two_nodes_of_one_job(tmp_path: Path) -> None:
    port, out, args = str(free_port()), tmp_path / "two", ("horovod", "fp32", "2", "1", "4")
    nodes = [
        torchrun(
            1, "--nnodes=2", f"--node-rank={node}", "--master-addr=127.0.0.1", "--master-port", port
        )
        for node in range(2)
    ]
    running = [start(node, out, *args) for node in nodes]
    for code, output in [finish(process) for process in running]:
        assert code == 0, output
    assert_same_training(read_ranks(out), single(tmp_path / "one", "fp32", 1, 4), 1e-5)


def why_no_namespaces() -> str | None:
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "needs ip and unshare (Debian packages iproute2, util-linux)"
    probe = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True, check=False)
    return f"no user namespaces here: {probe.stderr.strip()}" if probe.returncode else None


def test_ranks_meet_over_a_real_network_not_over_the_loopback(tmp_path: Path) -> None:
    # the host's name resolves to an address of the loopback, as on a fresh Debian
    if reason := why_no_namespaces():
        pytest.skip(reason)
    launcher = [*NAMESPACE, "sh", str(WORKER.with_name("two_nodes.sh")), sys.executable]
    ranks = train(launcher, tmp_path / "two", "horovod", "fp32", "2", "1", "4")
    assert len(ranks) == 2
    assert_same_training(ranks, single(tmp_path / "one", "fp32", 1, 4), 1e-5)


def test_a_launcher_with_another_world_size_is_an_error(tmp_path: Path) -> None:
    code, output = finish(start(torchrun(2), tmp_path / "two", "horovod", "fp32", "4", "1", "1"))
    assert code != 0
    assert "LaunchError: the launcher started 2 ranks, the spec says 4" in output


def test_without_a_launcher_horovod_never_becomes_jobs_of_size_one(tmp_path: Path) -> None:
    code, output = finish(start([sys.executable], tmp_path, "horovod", "fp32", "2", "1", "1"))
    assert code == 2
    assert "LaunchError: no WORLD_SIZE or HOROVOD_SIZE in the environment, expected 2" in output


def test_one_rank_without_a_launcher_is_a_job_of_size_one(tmp_path: Path) -> None:
    ranks = train([sys.executable], tmp_path / "h", "horovod", "fp32", "1", "2", "4")
    assert_same_training(ranks, single(tmp_path / "one", "fp32", 2, 4), 1e-6)
