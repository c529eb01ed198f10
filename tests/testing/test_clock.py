import pytest

from tailrace.testing import ManualClock


def test_it_moves_only_when_told_to():
    clock = ManualClock(5)
    assert (clock(), clock.now_ns) == (5, 5)
    assert clock.advance(ns=1, ms=0.5, s=2) == 5 + 1 + 500_000 + 2_000_000_000
    assert clock.move_to(3_000_000_000) == clock()


def test_it_never_goes_back():
    clock = ManualClock()
    with pytest.raises(ValueError, match="cannot go back by 1 ns"):
        clock.advance(ns=-1)
    with pytest.raises(ValueError, match="cannot go back"):
        clock.move_to(clock() - 7)
