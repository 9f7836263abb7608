"""Network namespaces that cannot be had; those that can are in tests/system."""

import ctypes
import errno
from types import SimpleNamespace

import pytest

from pipeline.emulation import nodes
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
