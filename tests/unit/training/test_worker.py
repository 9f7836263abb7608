"""What a rank says of an exception."""

import errno
import os

import pytest

from pipeline import strategies
from pipeline.errors import LaunchError, PeerError, StoppedError, UnsupportedError
from pipeline.training.worker import OF_A_DISK, kind_of

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
