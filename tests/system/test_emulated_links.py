"""Links of emulated nodes for real: rates of each condition, and TCP's timers in dilated time."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.emulation.links import reachable_mbits
from pipeline.emulation.nodes import why_not
from pipeline.study.link import LinkSpec
from tests.programs import ran

ROOT = Path(__file__).parents[2]
REASON = why_not()

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(REASON is not None, reason=f"no emulated nodes here: {REASON}"),
]


def ask(*words: str) -> Any:
    command = [sys.executable, "-m", "tests.system.in_nodes", *words]
    done = ran(command, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def measured(link: LinkSpec, *order: int) -> list[float]:
    return list(ask("rates", json.dumps(link.to_dict()), *map(str, order)))


def about(expected: list[float]) -> Any:
    """Rates that a busy machine reaches; 200 Mbit/s to each of four nodes it may not."""
    return pytest.approx(expected, rel=0.2)


@pytest.mark.parametrize(
    "link",
    [
        LinkSpec("down", 40, receive_mbits=10),
        LinkSpec("up", 10, receive_mbits=40),
        LinkSpec("shared", 40, uplink_mbits=12),
    ],
    ids=lambda link: link.name,
)
def test_each_node_of_a_ring_gets_what_its_way_lets_through(link) -> None:
    expected = reachable_mbits(link, 4)
    # One of six: the host may take a core from a measurement, and from the next ones.
    assert any(measured(link, *range(4)) == about(expected) for _ in range(6))


def test_streams_between_the_halves_share_the_uplink() -> None:
    """0 -> 2 -> 1 -> 3 -> 0: all four cross, two each way."""
    link = LinkSpec("shared", 40, uplink_mbits=24)

    def both_ways() -> list[float]:
        rates = measured(link, 0, 2, 1, 3)
        return [rates[2] + rates[3], rates[0] + rates[1]]

    assert any(both_ways() == about([24, 24]) for _ in range(3))


@pytest.mark.parametrize("factor", [1, 4])
def test_time_outs_are_dilated_and_what_cannot_be_is_off(factor) -> None:
    found = ask("timers", str(factor))
    for connection in (found["between"], found["within"]):
        # The kernel adds the round trip and rounds up to its next tick.
        assert all(200 * factor <= ms <= 200 * factor + 20 for ms in connection["ms"])
        assert connection["control"] == ["reno", "reno"]
    assert found["held"] == {
        "rto_min_ms": 200 * factor,
        "quickack": True,
        "slow_start_after_idle": False,
        "loss_probes": False,
        "congestion_control": "reno",
        "initial_window": 500,
        "send_buffer_bytes": 4194304,
    }
    assert found["counted"]["TCPTimeouts"] == found["counted"]["RetransSegs"] == 0
    assert found["ipv6"] == ""


def test_a_node_counts_its_own_time_outs() -> None:
    sender, receiver = ask("stall")
    assert sender["TCPTimeouts"] >= 1 and sender["RetransSegs"] >= 1
    assert receiver["TCPTimeouts"] == 0
