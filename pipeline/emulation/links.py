"""The commands of `ip` and `tc` that make a switch, its nodes and their shaped links: text."""

from __future__ import annotations

from pipeline.study.link import LinkSpec

MTU = 9_000
"""Bytes of a packet without its frame: jumbo frames, as are usual between the nodes of a GPU
cluster."""

SEGMENT_BYTES = 18_000
"""Largest packet that the kernel hands to a link at once; it must fit into the burst."""

SIZE = f"gso_max_size {SEGMENT_BYTES}"

LATE_SECONDS = 1.5e-4
"""Seconds by which the timer may release a segment late, by trial: the burst covers what passes
meanwhile, or the link never reaches its rate."""

MIN_BURST_BYTES = 20_000
"""Sent at once by an idle link, beyond its rate: little, so that small messages are slowed."""

QUEUE_BYTES = 64_000_000
"""Room of a link's queue: more than TCP keeps under way, so that the link loses nothing."""

INTERFACE = "eth0"

BRIDGES, UPLINK_ENDS = ("switch", "switchb"), ("uplinka", "uplinkb")
"""The switch and the one on the other side of an uplink, and the ends of the cable between them."""


def address(node: int) -> str:
    """IPv4 address of a node."""
    return f"10.77.0.{node + 1}"


def side_of(node: int, count: int, link: LinkSpec) -> int:
    """Which of two switches a node of `count` is at, the first having one more of an odd number."""
    return int(link.uplink_mbits is not None and node >= (count + 1) // 2)


def port(node: int) -> str:
    """Name of a node's port at the switch."""
    return f"port{node}"


def switch_commands(link: LinkSpec) -> list[str]:
    """For `ip -batch`: the switch, or the two with the uplink between them."""
    commands = []
    for name in BRIDGES[:1] if link.uplink_mbits is None else BRIDGES:
        commands += [f"link add {name} type bridge", f"link set {name} up"]
    if link.uplink_mbits is not None:
        one, other = UPLINK_ENDS
        commands.append(f"link add {one} mtu {MTU} type veth peer name {other} mtu {MTU}")
        ends = zip(UPLINK_ENDS, BRIDGES, strict=True)
        commands += [f"link set {end} master {bridge} {SIZE} up" for end, bridge in ends]
    return commands


def plug_commands(node: int, keeper: int) -> list[str]:
    """For `ip -batch` within the node: its interface, whose other end goes to process `keeper`."""
    return [
        f"link add {INTERFACE} mtu {MTU} type veth peer name {port(node)} mtu {MTU} netns {keeper}",
        f"addr add {address(node)}/24 dev {INTERFACE}",
        f"link set {INTERFACE} {SIZE} up",
        "link set lo up",
    ]


def shaping_commands(interface: str, mbits: float, factor: float, delay_us: int = 0) -> list[str]:
    """For `tc -batch`: what goes into a cable at an interface is slowed to this rate over `factor`.

    A delay is stretched by the factor, and half of it lies at each end of the cable.
    """
    bits = mbits * 1e6 / factor
    burst = max(MIN_BURST_BYTES, SEGMENT_BYTES + round(bits / 8 * LATE_SECONDS))
    shape = f"rate {round(bits)}bit burst {burst} limit {QUEUE_BYTES}"
    commands = [f"qdisc add dev {interface} root handle 1: tbf {shape}"]
    if delay_us:
        delay = f"delay {round(delay_us * factor / 2)}us limit 100000"
        commands.append(f"qdisc add dev {interface} parent 1:1 handle 10: netem {delay}")
    return commands


def towards_node(link: LinkSpec) -> float:
    """Mbit/s from the switch to a node."""
    return link.rate_mbits if link.receive_mbits is None else link.receive_mbits


def reachable_mbits(link: LinkSpec, count: int) -> list[float]:
    """Rate that each of `count` nodes can receive while every node sends to the next in a ring.

    An uplink carries one of these streams in each direction, into the first node of each half.
    """
    usual = min(link.rate_mbits, towards_node(link))
    uplink = min(usual, link.uplink_mbits or usual)
    sides = [side_of(node, count, link) for node in range(count)]
    return [usual if side == sides[node - 1] else uplink for node, side in enumerate(sides)]
