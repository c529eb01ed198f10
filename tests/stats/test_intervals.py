"""Lengths of unions."""

from tailrace.stats.intervals import union_length


def test_what_overlaps_counts_once_and_what_is_turned_round_counts_nothing():
    assert union_length([]) == 0.0
    assert union_length([(5, 9), (0, 2), (1, 4)]) == 8.0
    assert union_length([(0, 10), (2, 3)]) == 10.0
    assert union_length([(3, 1)]) == 0.0
