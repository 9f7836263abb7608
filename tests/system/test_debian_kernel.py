"""Emulated nodes on Debian's kernel: netem, and a user without rights."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.system import debian_vm, in_debian_vm

pytestmark = pytest.mark.system

USER = "65534"
"""Debian's `nobody`: in no group, owner of nothing."""


def test_a_user_without_rights_gets_nodes_and_a_link_with_a_delay(tmp_path: Path) -> None:
    """A training as such a user, on this machine's kernel, is in `test_as_nobody.py`."""
    reason = debian_vm.why_missing()
    if reason is not None:
        pytest.skip(reason)
    root = shlex.quote(str(debian_vm.ROOT))
    ask = f"{shlex.quote(sys.executable)} -m tests.system.in_debian_vm namespaces"
    user = f"setpriv --reuid {USER} --regid {USER} --clear-groups env HOME=/run/user"
    # An interpreter may lie in /root, the checkout anywhere.
    open_the_way = 'chmod a+rx /root; path=$PWD; while [ "$path" != / ]; do chmod a+rx "$path"; '
    open_the_way += 'path=$(dirname "$path"); done'
    script = f"cd {root}\nmkdir -m 777 /run/user\n{open_the_way}\n{user} {ask}\n"
    console = debian_vm.run(script, tmp_path)
    (line,) = [line for line in console.splitlines() if line.startswith("{")]
    seen = json.loads(line)["namespaces"]
    assert seen["reason"] is None
    assert seen["answer"] == "there and back"
    assert seen["seconds"] >= 2 * in_debian_vm.DELAY_US / 1e6
