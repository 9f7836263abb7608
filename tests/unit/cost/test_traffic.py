"""Traffic of a rank: what goes along one axis is one entry."""

from pipeline.cost.traffic import ALL_TO_ALL, HALVES, Traffic, one_of_each_axis


def test_what_goes_along_one_axis_is_added_up_in_one_entry() -> None:
    keys, rows = Traffic("context", "4L A", 8.0, 2, HALVES), Traffic("context", "E", 1.0, 3)
    tokens = Traffic("expert", "k A", 5.0, 1, ALL_TO_ALL)
    both = Traffic("context", "4L A + E", 9.0, 5, HALVES)
    assert one_of_each_axis(keys, tokens, rows) == [both, tokens]
