"""Network namespaces that cannot be had; those that can are in tests/system."""

import ctypes
import errno
import os
import signal
from types import SimpleNamespace

import pytest

from pipeline.emulation import nodes, tcp
from pipeline.emulation.links import UPLINK_ENDS
from pipeline.emulation.nodes import Nodes
from pipeline.errors import LaunchError
from pipeline.study.link import LinkSpec


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


def test_an_uplink_is_slowed_at_both_ends_and_adds_no_delay(monkeypatch) -> None:
    commands: list[str] = []
    monkeypatch.setattr(nodes, "_batch", lambda _, given: commands.extend(given))
    monkeypatch.setattr(nodes, "_libc", SimpleNamespace(unshare=lambda _: 0))
    monkeypatch.setattr(nodes, "_set", lambda _: None)
    monkeypatch.setattr(tcp, "configure", lambda: None)
    made = Nodes.__new__(Nodes)
    made.count, made.dilation, made._home, made._networks = 2, 4.0, 0, []
    made._build(1, LinkSpec("shared", 1000, delay_us=500, uplink_mbits=400))
    for network in made._networks:
        os.close(network)
    at_uplink = [one for one in commands for end in UPLINK_ENDS if f" dev {end} " in one]
    assert len(at_uplink) == 2
    assert all("tbf rate 100000000bit" in one for one in at_uplink)
