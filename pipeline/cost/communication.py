"""Seconds of collectives over a node's links and the network between nodes, by algorithm.

A group is `size` ranks, `stride` apart: ranks of the tensor axis are neighbours, then come data and
pipeline (the order of Megatron-LM), or the reverse (`Job.inside`). Groups that cross nodes share
the cards of a node.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.cost.constants import Device
from pipeline.cost.job import Job
from pipeline.cost.traffic import ALL_REDUCE, ALL_TO_ALL, GATHER, Traffic, ring


@dataclass(frozen=True)
class RankGroup:
    """Ranks that communicate, as they lie on nodes."""

    size: int
    inside: int
    nodes: int


class Network:
    """Links between a job's ranks; rates in bytes/s, latencies in s.

    `groups`: the ranks of an axis. Besides `tensor` and `data` there are `shards`, over which ZeRO
    cuts, `replicas` of these, and `ends`, first and last stage of a pipeline. With an `expert` axis
    `data` are the replicas of its ranks, and both axes together have all that read the batch.
    """

    def __init__(self, job: Job, device: Device) -> None:
        self.job, self.device = job, device
        tensor, data, self.stage_stride = 1, job.tp, job.tp * job.dp
        if job.inside == "pipeline":
            tensor, data, self.stage_stride = job.pp * job.dp, job.pp, 1
        sizes = {
            "tensor": (job.tp, tensor),
            "data": (job.dp // job.ep, job.ep * data),
            "expert": (job.ep, data),
            "data x expert": (job.dp, data),
            "shards": (job.shard, data),
            "replicas": (job.dp // job.shard, job.shard * data),
            # Of a pipeline on several nodes they are on two of these.
            "ends": (min(job.pp, 2), job.gpus_per_node if job.crosses[1] else 1),
        }
        self.groups = dict[str, RankGroup]()
        for axis, (size, stride) in sizes.items():
            inside = max(1, min(size, job.gpus_per_node // stride))
            self.groups[axis] = RankGroup(size, inside, math.ceil(size / inside))

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

    def seconds(self, sent: Traffic, rate: float = 0.0) -> float:
        """Seconds of collectives round a ring, or of exchanges, one after the other.

        `rate`, where it is given, is the most that the network gives them.
        """
        group, of = self.groups[sent.axis], self.device.constants
        if group.size < 2 or sent.bytes <= 0:
            return 0.0
        slow = 1.0 + of["congestion"] * math.log2(group.nodes)
        if sent.kind == ALL_TO_ALL:
            # To all others at once, and all ranks of a node do; links and cards work side by side.
            away = sent.leaving or 0.0
            far = away * slow * group.inside / self.node_rate(group) if away else 0.0
            latency = of["network_us"] if group.nodes > 1 else of["link_us"]
            near = (sent.bytes - away) / self.link_rate(group)
            return max(near, far) + sent.messages * 1e-6 * latency
        # An all-reduce goes round twice.
        passes = 1 if sent.kind == GATHER else 2
        if group.nodes == 1:
            latency = 1e-6 * of["link_us"] * passes * (group.size - 1)
            return sent.bytes / self.link_rate(group) + sent.messages * latency
        # What goes round passes every rank: a ring has hops inside of each of its nodes.
        hops, links = passes * (group.nodes - 1), passes * (group.size - group.nodes)
        tree = 4 * math.ceil(math.log2(group.nodes))
        if sent.kind == ALL_REDUCE and tree < hops:
            # NCCL reduces over a tree where a ring would take longer, and over a chain in a node.
            hops, links = tree, passes * (group.inside - 1)
        latency = 1e-6 * (of["network_us"] * hops + of["link_us"] * links)
        most = min(rate or math.inf, self.node_rate(group))
        return sent.bytes * slow / most + sent.messages * latency

    def all_reduce(self, axis: str, size: float) -> float:
        """Seconds of an all-reduce of `size` bytes."""
        return self.seconds(Traffic(axis, "", 2 * ring(size, self.groups[axis].size)))

    def gather(
        self, axis: str, size: float, card_share: float = 0.0, messages: float = 1.0
    ) -> float:
        """Seconds of `messages` all-gathers or reduce-scatters of `size` bytes in all.

        `card_share`: it goes over one card of a node, one a device, and reaches this share of it.
        """
        card = 1e9 / 8 * self.job.node_net_gbps / self.job.gpus_per_node
        sent = Traffic(axis, "", ring(size, self.groups[axis].size), messages, kind=GATHER)
        return self.seconds(sent, card_share * card)

    def sends(self, size: float) -> list[float]:
        """Seconds of each pipeline rank's send to the next one, of the last one to the first."""
        job, of, stride = self.job, self.device.constants, self.stage_stride
        # Every rank of the stage that lies on the node sends to its peer over the same cards.
        groups = min(job.gpus_per_node, stride)
        cards = 1e9 / 8 * job.node_net_gbps * of["network_share"] / groups
        nodes = [rank * stride // job.gpus_per_node for rank in range(job.pp)]
        return [
            size / (0.5 * self.device.link_rate) + 1e-6 * of["link_us"]
            if here == there
            else size / cards + 1e-6 * of["network_us"]
            for here, there in zip(nodes, nodes[1:] + nodes[:1], strict=True)
        ]
