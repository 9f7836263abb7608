"""How far time is stretched, and which cores a node gets: arithmetic."""

import pytest

from pipeline.emulation.dilation import dilate, places


@pytest.mark.parametrize(
    ("nodes", "cores_per_node", "cores", "factor", "share", "copies"),
    [
        (1, 1, 2, 1.0, 1.0, 2),  # the machine holds the node twice
        (2, 1, 2, 1.0, 1.0, 1),
        (8, 1, 2, 4.0, 0.25, 1),
        (2, 1, 1, 2.0, 0.5, 1),
        (3, 1, 2, 1.5, 2 / 3, 1),
        (8, 1, 16, 1.0, 1.0, 2),
        (2, 4, 2, 4.0, 1.0, 1),
    ],
)
def test_every_node_counts_as_having_its_own_cores(
    nodes, cores_per_node, cores, factor, share, copies
) -> None:
    found = dilate(nodes, cores_per_node, cores)
    assert (found.factor, found.share, found.copies) == (factor, share, copies)
    assert found.share * found.factor == pytest.approx(cores_per_node)
    # All nodes together never ask for more than the machine has.
    assert found.share * nodes * found.copies <= cores + 1e-9


def test_nodes_are_dealt_out_over_the_cores_evenly() -> None:
    assert places(4, 1, [0, 1]) == [[0], [1], [0], [1]]
    assert places(2, 2, [4, 5, 6, 7]) == [[4, 5], [6, 7]]
    assert places(2, 4, [0, 1]) == [[0, 1], [0, 1]]
    on_each = [sum(core in place for place in places(8, 1, [0, 1])) for core in (0, 1)]
    assert on_each == [4, 4]
