"""A cable of an emulated node that goes is heard of."""

from __future__ import annotations

import os
import subprocess
import traceback
from collections.abc import Callable

import pytest

from pipeline.emulation.cables import Cables, changes
from pipeline.emulation.nodes import Nodes, enter_private_network, program, why_not
from pipeline.study.link import LinkSpec

REASON = why_not()
SECONDS = 30
WHERE = "node 1|port0n1 of the switches"
"""Either end of a cable may be heard of first."""


def in_child(work: Callable[[], None]) -> str:
    """What went wrong in a fork, which has a network of its own to leave."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os.write(write, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        said = stream.read()
    os.waitpid(child, 0)
    return said


def ip(*words: str) -> None:
    subprocess.run([str(program("ip")), *words], check=True)


@pytest.mark.skipif(REASON is not None, reason=f"no emulated nodes here: {REASON}")
@pytest.mark.parametrize(
    ("inside", "words", "said"),
    [
        (True, ("link", "delete", "eth0"), WHERE),
        (True, ("link", "set", "eth0", "down"), WHERE),
        (False, ("link", "delete", "port0n1"), WHERE),
        (False, ("link", "set", "port0n1", "nomaster"), WHERE),
        (False, ("link", "delete", "switch0"), "of the switches"),
    ],
    ids=["removed", "set down", "removed at the switch", "unplugged", "no switch"],
)
def test_a_lost_cable(inside: bool, words: tuple[str, ...], said: str) -> None:
    def work() -> None:
        enter_private_network()
        nodes = Nodes(2, 1, LinkSpec("plain", 1000), 1.0)
        cables = nodes.listen()
        settle(cables)
        if inside:
            with nodes.inside(0, 1):
                ip(*words)
        else:
            ip(*words)
        found = next(filter(None, (cables.fault(1.0) for _ in range(SECONDS))), "")
        assert any(one in found for one in said.split("|")), found

    assert not in_child(work)


def settle(cables: Cables) -> None:
    """Nodes are measured before a run, by when their cables are up; here nothing is."""
    while cables.fault(1.0) is not None:
        pass


@pytest.mark.skipif(REASON is not None, reason=f"no emulated nodes here: {REASON}")
def test_nothing_is_said_where_nothing_happens() -> None:
    def work() -> None:
        enter_private_network()
        nodes = Nodes(2, 2, LinkSpec("plain", 1000, uplink_mbits=100), 1.0)
        cables = nodes.listen()
        settle(cables)
        assert cables.fault(2.0) is None

    assert not in_child(work)


@pytest.mark.parametrize("message", [b"", b"\0" * 64, b"\xff" * 64, bytes(range(64)), b"\x20" * 33])
def test_a_message_of_nonsense_ends(message: bytes) -> None:
    assert len(list(changes(message))) <= 2
