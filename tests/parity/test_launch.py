"""Launches of the suite: which rank is at fault, and where ranks share a core."""

from __future__ import annotations

import json

import pytest

from tests.cores import core_for
from tests.parity.launch import culprit


def test_a_rank_that_lost_a_peer_is_not_at_fault(tmp_path) -> None:
    def leave(rank: int, kind: str, seconds: float) -> None:
        about = {"rank": rank, "kind": kind, "seconds": seconds, "traceback": f"from {rank}"}
        (tmp_path / f"rank{rank}.error.json").write_text(json.dumps(about))

    leave(0, "lost", 1.0)
    assert culprit(tmp_path) is None
    leave(1, "failed", 3.0)
    leave(2, "oom", 2.0)
    assert culprit(tmp_path) == "Rank 2 was the first:\nfrom 2"


@pytest.mark.parametrize(
    ("world", "cores", "worker", "expected"),
    [
        (1, [0], "", None),
        (2, [4, 6], "", 4),
        (2, [4, 6], "gw1", 6),
        (4, [4, 6], "gw4", 4),
        (2, [0, 1, 2, 3], "gw0", None),
    ],
)
def test_ranks_share_a_core_where_there_are_few(world, cores, worker, expected) -> None:
    assert core_for(world, cores, worker) == expected
