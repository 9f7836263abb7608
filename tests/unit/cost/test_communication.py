"""Collectives by algorithm over nodes and the cards that their groups share."""

import pytest

from pipeline.cost.communication import Network, RankGroup
from pipeline.cost.constants import Constants
from pipeline.cost.devices import device_of
from pipeline.cost.job import jobs_of
from pipeline.cost.points import read
from pipeline.cost.score import FOLDER


def network(**changes):
    row = read(FOLDER / "seqsel2022_a100.csv")[2] | changes
    (job,) = jobs_of(row)
    return Network(job, device_of(job, Constants()))


def test_groups_lie_on_nodes_as_their_stride_says() -> None:
    assert RankGroup.of(8, 1, 8) == RankGroup(8, 8, 1)
    assert RankGroup.of(16, 1, 8) == RankGroup(16, 8, 2)
    assert RankGroup.of(16, 2, 8) == RankGroup(16, 4, 4)
    assert RankGroup.of(4, 8, 8) == RankGroup(4, 1, 4)


def test_a_ring_inside_a_node_moves_twice_its_share() -> None:
    net = network()
    size, group = 1e9, RankGroup(8, 8, 1)
    expected = 2 * 7 / 8 * size / net.link_rate(group)
    assert net.all_reduce(group, size) == pytest.approx(expected, rel=0.02)
    assert net.gather(group, size) == pytest.approx(expected / 2, rel=0.02)
    assert net.all_reduce(RankGroup(1, 1, 1), size) == 0


def test_groups_of_a_node_share_its_cards() -> None:
    net = network()
    alone, shared = RankGroup(16, 8, 2), RankGroup(2, 1, 2)
    assert net.node_rate(alone) == pytest.approx(8 * net.node_rate(shared))
    assert net.node_rate(shared) <= 1e9 / 8 * 1600 / 8


def test_more_nodes_take_longer_and_a_card_is_slower_than_all() -> None:
    net = network()
    few, many = RankGroup(16, 8, 2), RankGroup(512, 8, 64)
    assert net.all_reduce(few, 1e9) < net.all_reduce(many, 1e9)
    assert net.gather(few, 1e9) < net.gather(few, 1e9, card_share=1.0)


def test_two_ranks_of_a_mesh_have_some_of_its_links() -> None:
    mesh = network(hardware="V100-SXM2-16GB", device_gib="16")
    assert mesh.link_rate(RankGroup(2, 2, 1)) < 0.4 * mesh.link_rate(RankGroup(8, 8, 1))
