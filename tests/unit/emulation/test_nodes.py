"""Network namespaces that cannot be had; those that can are in tests/system."""

import ctypes
import errno
import os
import signal
from functools import partial
from types import SimpleNamespace

import pytest

from pipeline.emulation import nodes
from pipeline.emulation.dilation import pinned, places
from pipeline.emulation.pacing import Pacer
from pipeline.errors import LaunchError


def test_each_setting_that_may_forbid_namespaces_is_named(monkeypatch) -> None:
    def unshare(flags: int) -> int:
        ctypes.set_errno(errno.ENOSPC)  # what the kernel says where a limit of them is reached
        return -1

    monkeypatch.setattr(nodes, "_libc", SimpleNamespace(unshare=unshare))
    with pytest.raises(LaunchError, match=r"\(No space left on device\)") as refused:
        nodes.enter_private_network()
    settings = ("unprivileged_userns_clone", "restrict_unprivileged_userns", "max_user_namespaces")
    assert all(setting in str(refused.value) for setting in settings)


def _killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _bug() -> None:
    raise ValueError("of our own")


@pytest.mark.parametrize(
    ("trial", "said"), [(_killed, "code -9"), (_bug, "ValueError: of our own")]
)
def test_a_trial_that_ends_without_a_word_is_none_that_went_well(monkeypatch, trial, said) -> None:
    """As where a sandbox kills whoever asks for a namespace."""
    monkeypatch.setattr(nodes, "enter_private_network", trial)
    monkeypatch.setattr(nodes, "program", lambda name: name)
    monkeypatch.setattr(nodes, "cpu_quota", lambda: None)
    assert said in str(nodes.why_not())


def test_a_node_of_a_profiled_run_is_on_every_core_in_turn() -> None:
    cores = sorted(os.sched_getaffinity(0))
    made = object.__new__(nodes.Nodes)  # without a network
    made.places = places(2 * len(cores) + 1, 1, cores)
    with pinned(cores):
        for node in range(len(made.places)):
            on = list[int]()
            pacer = Pacer(4.0, move=partial(made.move, node))
            for step in range(len(cores)):
                pacer.begin_step(step)
                on += os.sched_getaffinity(0)
            assert sorted(on) == cores
