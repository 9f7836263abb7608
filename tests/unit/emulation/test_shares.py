"""Cores of its own or shared ones, and pinning to them."""

import os

from pipeline.emulation.shares import OWN, PACED, Shares


def test_a_core_that_two_nodes_share_is_nobody_s_own() -> None:
    assert Shares([[0, 1], [2, 3]]).kind == OWN
    assert Shares([[0], [1], [0]]).kind == PACED


def test_pinning_holds_for_a_while() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    with Shares([[core]]).of(0):
        assert os.sched_getaffinity(0) == {core}
    assert os.sched_getaffinity(0) == before
