"""The commands of `ip` and `tc` that make a switch, its nodes and their shaped links: text."""

from __future__ import annotations

from pipeline.spec import LinkSpec

MTU = 9_000
"""Bytes of a packet without its frame: jumbo frames, as are usual between the nodes of a GPU
cluster."""

HEADER_BYTES, FRAME_BYTES = 52, 14
"""IPv4 and TCP with time stamps in every packet, Ethernet around it; the link counts them all."""

SEGMENT_BYTES = 18_000
"""Largest packet that the kernel hands to a link at once; it must fit into the burst."""

LATE_SECONDS = 1.5e-4
"""How late the timer may let the next segment go: the burst covers what passes meanwhile, or the
link never reaches its rate. Found by trial, from the rates that were reached."""

MIN_BURST_BYTES = 20_000
"""The burst is what an idle link sends at once, beyond its rate: little beside a gradient, so that
small messages are slowed too."""

QUEUE_BYTES = 64_000_000
"""Room of a link's queue: more than TCP keeps under way, so that the link loses nothing."""

INTERFACE = "eth0"


def address(copy: int, node: int) -> str:
    """IPv4 address of a node; the copies of a world do not see one another."""
    return f"10.77.{copy}.{node + 1}"


def bridge(copy: int) -> str:
    """Name of the switch of one copy."""
    return f"switch{copy}"


def port(copy: int, node: int) -> str:
    """Name of a node's port at the switch."""
    return f"port{copy}n{node}"


def switch_commands(copy: int) -> list[str]:
    """For `ip -batch`: the switch of one copy."""
    name = bridge(copy)
    return [f"link add {name} type bridge", f"link set {name} up"]


def plug_commands(copy: int, node: int, keeper: int) -> list[str]:
    """For `ip -batch` within the node: its interface, whose other end goes to process `keeper`."""
    size = f"gso_max_size {SEGMENT_BYTES}"
    return [
        f"link add {INTERFACE} mtu {MTU} type veth "
        f"peer name {port(copy, node)} mtu {MTU} netns {keeper}",
        f"addr add {address(copy, node)}/24 dev {INTERFACE}",
        f"link set {INTERFACE} {size} up",
        "link set lo up",
    ]


def port_commands(copy: int, node: int) -> list[str]:
    """For `ip -batch` at the switch: the node's port."""
    size = f"gso_max_size {SEGMENT_BYTES}"
    return [f"link set {port(copy, node)} master {bridge(copy)} {size} up"]


def shaping_commands(interface: str, link: LinkSpec, factor: float) -> list[str]:
    """For `tc -batch`: what leaves `interface` is slowed to the link's rate over `factor`.

    Both ends of a cable are shaped, so that a node receives no faster than it sends. A delay is
    stretched by the factor, and half of it lies at each end.
    """
    bits = link.rate_mbits * 1e6 / factor
    burst = max(MIN_BURST_BYTES, SEGMENT_BYTES + round(bits / 8 * LATE_SECONDS))
    rate = f"rate {round(bits)}bit burst {burst} limit {QUEUE_BYTES}"
    commands = [f"qdisc add dev {interface} root handle 1: tbf {rate}"]
    if link.delay_us:
        delay = f"delay {round(link.delay_us * factor / 2)}us limit 100000"
        commands.append(f"qdisc add dev {interface} parent 1:1 handle 10: netem {delay}")
    return commands
