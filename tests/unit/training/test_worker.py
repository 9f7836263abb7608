"""What a rank says of an exception, and by which clocks it is timed."""

import errno
import json
import os
from argparse import Namespace
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import strategies
from pipeline.emulation.pacing import Pacer
from pipeline.errors import LaunchError, PeerError, StoppedError, UnsupportedError
from pipeline.resolved import resolve
from pipeline.training import fence
from pipeline.training.worker import OF_A_DISK, kind_of, train
from tests.parity.cases import STEPS, Case

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UnsupportedError("no Apex"), "unsupported"),
        (LaunchError("two ranks came up"), "error"),
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
        launch=fence.claim(tmp_path), owner="", may_stop=False,
    )  # fmt: skip
    train(resolve(spec), args, Pacer(), nullcontext)
    rank = json.loads((tmp_path / "rank0.json").read_text())["rank"]
    assert rank.get("free_running", {}).get("steps") == steps
