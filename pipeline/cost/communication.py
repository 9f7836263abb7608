"""Seconds of collectives over a node's links and the network between nodes, by algorithm.

A group is `size` ranks, `stride` apart: ranks of the tensor axis are neighbours, then come data and
pipeline (the order of Megatron-LM). Groups that cross nodes share the cards of a node.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.cost.devices import Device
from pipeline.cost.job import Job


@dataclass(frozen=True)
class RankGroup:
    """Ranks that communicate, as they lie on nodes."""

    size: int
    inside: int
    nodes: int

    @classmethod
    def of(cls, size: int, stride: int, gpus_per_node: int) -> RankGroup:
        """`size` ranks that are `stride` apart, on nodes of `gpus_per_node`."""
        inside = max(1, min(size, gpus_per_node // min(stride, gpus_per_node)))
        return cls(size, inside, math.ceil(size / inside))


@dataclass(frozen=True)
class Network:
    """Links between a job's ranks; rates in bytes/s, latencies in s."""

    job: Job
    device: Device

    def link_rate(self, group: RankGroup) -> float:
        """Rate of a ring inside a node."""
        rate = self.device.link_rate
        if self.device.constants["mesh"] and self.job.gpus_per_node <= 8:
            # A cube mesh gives few ranks only some of their links: 2 have a third, 4 six tenths.
            rate *= {2: 0.33, 3: 0.5, 4: 0.61}.get(group.inside, 1.0)
        return rate

    def node_rate(self, group: RankGroup) -> float:
        """Rate of one group over the network: the groups of a node share its cards."""
        groups = max(1, min(self.job.gpus, self.job.gpus_per_node) // group.inside)
        cards = 1e9 / 8 * self.job.node_net_gbps * self.device.constants["network_share"]
        return min(cards / groups, self.link_rate(group))

    def ring(self, group: RankGroup, size: float, passes: int, rate: float = 0.0) -> float:
        """Seconds of a ring that moves `size` bytes `passes` times round (2: an all-reduce).

        `rate`, where it is given, is the most that the network gives this collective.
        """
        if group.size < 2 or size <= 0:
            return 0.0
        share = passes * (group.size - 1) / group.size
        of = self.device.constants
        if group.nodes == 1:
            steps = passes * (group.size - 1)
            return share * size / self.link_rate(group) + 1e-6 * of["link_us"] * steps
        hops = passes * (group.nodes - 1)
        if passes == 2:
            # NCCL reduces over a tree where a ring would take longer to go round.
            hops = min(hops, 4 * math.ceil(math.log2(group.nodes)))
        slow = 1.0 + of["congestion"] * math.log2(group.nodes)
        latency = 1e-6 * (of["network_us"] * hops + of["link_us"] * passes * (group.inside - 1))
        most = min(rate or math.inf, self.node_rate(group))
        return share * size * slow / most + latency

    def all_reduce(self, group: RankGroup, size: float) -> float:
        """Seconds of an all-reduce of `size` bytes."""
        return self.ring(group, size, 2)

    def gather(self, group: RankGroup, size: float, card_share: float = 0.0) -> float:
        """Seconds of an all-gather or a reduce-scatter of `size` bytes in all.

        `card_share`: it goes over one card of a node, one a device, and reaches this share of it.
        """
        card = 1e9 / 8 * self.job.node_net_gbps / self.job.gpus_per_node
        return self.ring(group, size, 1, card_share * card)

    def send(self, size: float, stride: int) -> float:
        """Seconds of a stage's send to the next one, `stride` ranks away."""
        of = self.device.constants
        if stride >= self.job.gpus_per_node or self.job.gpus > self.job.gpus_per_node:
            # Every rank of the stage that lies on the node sends to its peer over the same cards.
            groups = min(self.job.gpus_per_node, stride)
            rate = 1e9 / 8 * self.job.node_net_gbps * of["network_share"] / groups
            return size / rate + 1e-6 * of["network_us"]
        return size / (0.5 * self.device.link_rate) + 1e-6 * of["link_us"]
