"""What marks a run whose nodes waited for TCP, or whose step stands out for no known reason."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.launch.stalls import stalled
from pipeline.records import Step

QUIET = {"RetransSegs": 2, "TCPTimeouts": 0, "TCPLossProbes": 2, "TCPSpuriousRtxHostQueues": 0}
LATE = QUIET | {"TCPTimeouts": 7, "TCPSpuriousRtxHostQueues": 7}


def step(number: int, seconds: float, rank: int = 0, *, timed: bool = True) -> Step:
    return Step(number, rank, seconds, 64, 1.0, 1.0, 1e-3, timed)


def ranks(*counted: dict[str, int] | None, per_node: int = 1) -> list[dict[str, Any]]:
    return [
        {"rank": rank, "node": rank // per_node, **({} if found is None else {"tcp": found})}
        for rank, found in enumerate(counted)
    ]


EVEN = [step(number, 0.05, rank) for number in range(10) for rank in (0, 1)]


def test_a_run_without_time_outs_and_with_even_steps_is_not_marked() -> None:
    assert stalled(EVEN, ranks(QUIET, QUIET)) is None


def test_a_time_out_marks_a_run_and_names_the_node_and_its_counters() -> None:
    assert stalled(EVEN, ranks(QUIET, LATE)) == (
        "node 1 had RetransSegs 2, TCPTimeouts 7, TCPLossProbes 2, TCPSpuriousRtxHostQueues 7"
    )


def test_ranks_of_a_node_count_it_once() -> None:
    said = stalled(EVEN, ranks(LATE, LATE, QUIET, QUIET, per_node=2))
    assert said is not None and said.count("node") == 1


def test_time_outs_of_connections_that_are_being_closed_mark_nothing() -> None:
    """Seen on eight nodes: the last packets of Horovod's rendezvous server, 21 of them."""
    closing = LATE | {"OpenTimeouts": 0}
    assert stalled(EVEN, ranks(closing, QUIET | {"OpenTimeouts": 0})) is None
    said = stalled(EVEN, ranks(closing, QUIET | {"OpenTimeouts": 1}))
    assert said == "node 1 had RetransSegs 2, TCPLossProbes 2, OpenTimeouts 1"


def test_a_node_stalled_where_any_of_its_ranks_did() -> None:
    late, quiet = LATE | {"OpenTimeouts": 7}, QUIET | {"OpenTimeouts": 0}
    for both in ((late, quiet), (quiet, late)):
        said = stalled(EVEN, ranks(*both, per_node=2))
        assert said is not None and said.startswith("node 0 had") and "OpenTimeouts 7" in said


def test_a_step_that_stands_out_is_named_with_what_tcp_counted() -> None:
    steps = [*EVEN, step(10, 25.4, 0), step(10, 3.0, 1)]
    assert stalled(steps, ranks(QUIET, LATE)) == (
        "step 10 took 25.4 s where the median is 0.05 s; "
        "node 1 had RetransSegs 2, TCPTimeouts 7, TCPLossProbes 2, TCPSpuriousRtxHostQueues 7"
    )
    assert stalled(steps, ranks(QUIET, QUIET)) == (
        "step 10 took 25.4 s where the median is 0.05 s; no node had a TCP time-out"
    )


def test_of_several_such_steps_the_longest_is_named() -> None:
    steps = [*EVEN, step(10, 2.0), step(11, 3.0), step(12, 1.5)]
    said = stalled(steps, ranks(QUIET, QUIET))
    assert said is not None
    assert said.startswith("step 11 (and 2 others) took 3 s where the median is 0.05 s")


@pytest.mark.parametrize(
    "steps",
    [
        [*EVEN, step(10, 0.99)],  # short
        [*[step(n, 0.5) for n in range(9)], step(9, 9.9)],  # long among long ones
        [*EVEN, step(10, 25.4, timed=False)],  # warming up
        [],
    ],
    ids=["short", "alike", "untimed", "none"],
)
def test_a_step_has_to_be_long_in_itself_and_beside_the_others(steps) -> None:
    assert stalled(steps, ranks(QUIET, QUIET)) is None


def test_nothing_is_said_of_nodes_that_counted_nothing() -> None:
    assert stalled([*EVEN, step(10, 25.4)], ranks(None, None)) is None
