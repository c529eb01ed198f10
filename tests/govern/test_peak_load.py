"""When a change of policy is too near to the peak."""

from __future__ import annotations

from tailrace.govern.peak_load import PeakLoad, too_near
from tailrace.model.thresholds import S


def _hold(load: PeakLoad, in_flight: int, since: int, until: int) -> None:
    for at in range(since * 20, until * 20):
        load.saw(in_flight, at * S // 20)


def test_a_change_at_the_peak_is_warned_of_and_one_below_it_is_not() -> None:
    load = PeakLoad()
    _hold(load, 100, 0, 60)
    assert 95 < load.now <= 100
    assert "of the peak" in too_near(load.now, load.peak)
    _hold(load, 50, 60, 90)
    assert too_near(load.now, load.peak) == ""


def test_a_peak_is_forgotten_after_a_quarter_of_an_hour() -> None:
    load = PeakLoad()
    _hold(load, 100, 0, 30)
    _hold(load, 50, 30, 60)
    load.saw(50, 1000 * S)
    assert load.peak < 60


def test_a_handful_of_requests_is_no_peak() -> None:
    load = PeakLoad()
    _hold(load, 5, 0, 30)
    assert too_near(load.now, load.peak) == ""


def test_one_spike_is_smoothed() -> None:
    load = PeakLoad()
    _hold(load, 10, 0, 30)
    load.saw(1000, 30 * S + S // 20)
    assert load.now < 30
