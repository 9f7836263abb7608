"""The commands for `ip` and `tc`; tests/system measures what they come to."""

from pipeline.emulation import links
from pipeline.study.link import LinkSpec


def test_a_link_is_slowed_by_the_factor_and_its_delay_stretched_at_both_ends() -> None:
    rate, delay = links.shaping_commands("eth0", 1000, 4.0, delay_us=500)
    assert rate.startswith("qdisc add dev eth0 root handle 1: tbf rate 250000000bit burst 22688")
    assert delay == "qdisc add dev eth0 parent 1:1 handle 10: netem delay 1000us limit 100000"


def test_both_ends_of_a_cable_take_large_packets() -> None:
    """A bridge takes the smallest of its ports, so one end forgotten would undo it."""
    (cable, *_) = links.plug_commands(1, 77)
    assert cable.count(f"mtu {links.MTU}") == 2


def test_a_ring_reaches_what_the_narrowest_part_of_each_way_lets_through() -> None:
    """Two of its streams cross an uplink, one each way: into the first node of either half."""
    reachable = links.reachable_mbits
    assert reachable(LinkSpec("plain", 1000), 3) == [1000] * 3
    assert reachable(LinkSpec("down", 1000, receive_mbits=250), 2) == [250, 250]
    assert reachable(LinkSpec("up", 250, receive_mbits=1000), 2) == [250, 250]
    shared = LinkSpec("shared", 1000, uplink_mbits=400)
    assert reachable(shared, 2) == [400, 400]
    assert reachable(shared, 3) == [400, 1000, 400]
    assert reachable(shared, 4) == [400, 1000, 400, 1000]
    assert reachable(shared, 8) == [400, 1000, 1000, 1000] * 2
    wide = LinkSpec("wide", 1000, receive_mbits=300, uplink_mbits=4000)
    assert reachable(wide, 4) == [300] * 4
