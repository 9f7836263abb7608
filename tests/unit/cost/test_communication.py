"""Collectives by algorithm over nodes and the cards that their groups share."""

from dataclasses import replace

import pytest

from pipeline.cost.communication import Network, RankGroup
from pipeline.cost.constants import Constants, device_of
from pipeline.cost.job import jobs_of
from pipeline.cost.points import read
from pipeline.cost.predict import predict
from pipeline.cost.score import FOLDER
from pipeline.cost.traffic import ALL_TO_ALL, Traffic, ring


def network(**changes):
    row = read(FOLDER / "seqsel2022_a100.csv")[2] | changes
    (job,) = jobs_of(row)
    return Network(job, device_of(job, Constants()))


def test_a_ring_inside_a_node_moves_twice_its_share() -> None:
    net = network()
    size, group = 1e9, net.groups["tensor"]
    assert group == RankGroup(8, 8, 1)
    expected = 2 * 7 / 8 * size / net.link_rate(group)
    assert net.all_reduce("tensor", size) == pytest.approx(expected, rel=0.02)
    assert net.gather("tensor", size) == pytest.approx(expected / 2, rel=0.02)
    assert net.all_reduce("data", size) == 0, "one rank alone"


def test_bytes_of_a_strategy_are_priced_as_collectives_of_so_many() -> None:
    net = network(gpus="64", dp="64", tp="1", pp="1", vpp="1")
    few, many = (
        Traffic("data", "2(n-1)/n G", 2 * ring(1e9, 64), messages=count) for count in (1, 100)
    )
    assert net.seconds(few) == net.all_reduce("data", 1e9)
    one_hop = 1e-6 * net.device.constants["network_us"]
    assert net.seconds(many) > net.seconds(few) + 99 * one_hop


def test_an_exchange_goes_over_links_and_cards_at_once() -> None:
    """Of two nodes of eight ranks: a half leaves, over an eighth of the cards for each rank."""
    net = network(gpus="16", dp="16", tp="1", pp="1", vpp="1")
    cut = Network(replace(net.job, experts=16, ep=16), net.device)
    assert (cut.groups["expert"].nodes, cut.groups["data"].size) == (2, 1)
    sent = Traffic("expert", "", 1e9, kind=ALL_TO_ALL, leaving=5e8)
    group = cut.groups["expert"]
    slow = 1 + net.device.constants["congestion"]
    expected = 5e8 * slow * 8 / cut.node_rate(group)
    assert cut.seconds(sent) == pytest.approx(expected, rel=0.01)
    inside = replace(sent, leaving=0.0)
    assert cut.seconds(inside) == pytest.approx(1e9 / cut.link_rate(group), rel=0.02)


def test_stages_inside_a_node_leave_the_tensor_axis_between_nodes() -> None:
    """The reverse order of the axes: eight stages on a node, tensor ranks on eight nodes."""
    net = network()
    assert (net.job.tp, net.job.pp, net.job.gpus_per_node) == (8, 8, 8)
    reverse = Network(replace(net.job, inside="pipeline"), net.device)
    assert reverse.groups["tensor"] == RankGroup(8, 1, 8)
    assert reverse.groups["ends"] == RankGroup(2, 2, 1)
    assert reverse.groups["data"] == net.groups["data"]
    assert max(reverse.sends(1e9)) < 0.2 * max(net.sends(1e9))
    assert reverse.all_reduce("tensor", 1e9) > 10 * net.all_reduce("tensor", 1e9)
    assert (net.job.crosses, reverse.job.crosses) == ((False, True), (True, False))
    one, other = (predict(each.job, Constants()).seconds for each in (net, reverse))
    assert other > 1.5 * one


def test_a_ring_has_hops_inside_of_each_of_its_nodes() -> None:
    """What goes round passes all 64 ranks; an all-reduce takes a tree over many nodes instead."""
    net = network(gpus="64", dp="64", tp="1", pp="1", vpp="1")
    network_us, link_us = (net.device.constants[name] for name in ("network_us", "link_us"))
    ring_us, tree_us = 7 * network_us + 56 * link_us, 12 * network_us + 14 * link_us
    assert 1e6 * net.gather("data", 1e-9) == pytest.approx(ring_us)
    assert 1e6 * net.gather("data", 1e-9, messages=4) == pytest.approx(4 * ring_us)
    assert 1e6 * net.all_reduce("data", 1e-9) == pytest.approx(tree_us)
