"""The commands for `ip` and `tc`."""

from pipeline.emulation import links
from pipeline.spec import LinkSpec


def test_a_link_is_slowed_by_the_factor() -> None:
    (command,) = links.shaping_commands("eth0", LinkSpec("1gbit", 1000), 4.0)
    assert command.startswith("qdisc add dev eth0 root handle 1: tbf rate 250000000bit burst 22688")


def test_what_an_idle_link_sends_at_once_grows_with_the_rate_and_holds_a_segment() -> None:
    (slow,) = links.shaping_commands("eth0", LinkSpec("slow", 10), 1.0)
    (fast,) = links.shaping_commands("eth0", LinkSpec("fast", 10_000), 1.0)
    assert "burst 20000 " in slow
    assert "burst 205500 " in fast
    assert links.MIN_BURST_BYTES > links.SEGMENT_BYTES > links.MTU + links.FRAME_BYTES


def test_both_ends_of_a_cable_take_large_packets() -> None:
    """A bridge takes the smallest of its ports, so one end forgotten would undo it."""
    (cable, *_) = links.plug_commands(0, 1, 77)
    assert cable.count(f"mtu {links.MTU}") == 2


def test_a_delay_is_stretched_and_lies_at_both_ends() -> None:
    _, delay = links.shaping_commands("eth0", LinkSpec("far", 1000, 500), 4.0)
    assert delay == "qdisc add dev eth0 parent 1:1 handle 10: netem delay 1000us limit 100000"


def test_copies_of_a_world_have_networks_apart() -> None:
    assert links.address(0, 0) == "10.77.0.1"
    assert links.address(1, 7) == "10.77.1.8"
    names = {links.port(copy, node) for copy in range(12) for node in range(12)}
    assert len(names) == 144
    assert max(map(len, names)) <= 15  # the kernel's limit
