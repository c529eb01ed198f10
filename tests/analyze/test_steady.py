"""The steady part of a run: what is cut off at either end, by hand and by itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.analyze.bench_summary import summarise
from tailrace.analyze.run_series import run_series, thinned
from tailrace.analyze.steady import Trim, in_flight_mean, window_of
from tailrace.model.errors import InputError
from tailrace.model.outcome import Reason
from tests.analyze.tables import MS, request, table

S = 1000 * MS


def run(n=100, step_ms=100, late_ms=0.0, **more):
    """A request every 100 ms from 0 on, 100 ms long."""
    return [
        request(
            i,
            at_ms=i * step_ms,
            prefill_ms=50,
            gaps_ms=[10] * 5,
            run_offset_ns=i * step_ms * MS,
            intended_to_sent_ns=round(late_ms * MS),
            vantage="client",
            **more,
        )
        for i in range(n)
    ]


def test_both_ends_are_cut_by_the_intended_time():
    # Sent a whole second late: by the send, one second's more requests would be lost at the end.
    window = window_of(table(run(late_ms=1000)), Trim(up_ns=2 * S, down_ns=3 * S))
    assert window.rows.sum() == 50
    assert window.duration_s == pytest.approx(4.9)
    assert "without the first 2 s and the last 3 s" in window.words


def test_a_run_begins_at_its_start_and_not_with_its_first_request():
    records = [one for one in run() if one.run_offset_ns >= 3 * S]  # the first gap of the schedule was three seconds
    window = window_of(table(records), Trim(up_ns=5 * S))
    assert window.rows.sum() == 50
    assert window.duration_s == pytest.approx(4.9)


def test_a_summary_says_which_part_it_is_of():
    whole, part = summarise(table(run())), summarise(table(run()), trim=Trim(up_ns=2 * S, down_ns=3 * S))
    assert (whole.window, whole.n) == ("", 100)
    assert part.n == 50
    assert part.window.endswith("50 of 100")
    assert part.requests_per_s == pytest.approx(50 / 4.9)


def test_the_steady_part_is_found_by_what_is_in_flight():
    # 10 at once for 20 s, with one alone before it and behind it.
    slow = [request(i, at_ms=i * 1000, prefill_ms=900) for i in range(10)]
    full = [request(100 + i, at_ms=10_000 + (i // 10) * 1000, prefill_ms=1000) for i in range(200)]
    after = [request(400 + i, at_ms=30_000 + i * 1000, prefill_ms=900) for i in range(10)]
    window = window_of(table([*slow, *full, *after]), Trim(steady=True))
    assert window.duration_s == pytest.approx(20, abs=1.0)
    assert 190 <= window.rows.sum() <= 201


def test_what_leaves_nothing_is_refused_with_a_remedy():
    with pytest.raises(InputError, match="nothing is left"):
        window_of(table(run()), Trim(up_ns=8 * S, down_ns=8 * S))
    rising = [request(i, at_ms=2000 * (1 - 0.995**i), prefill_ms=10_000 / (i + 1)) for i in range(300)]
    with pytest.raises(InputError, match="never settled"):
        window_of(table(rising), Trim(steady=True))
    assert window_of(table([]), Trim(up_ns=S)).duration_s == 0.0


@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0, 20)), min_size=1, max_size=60),
    st.integers(1, 30),
)
def test_in_flight_is_request_seconds_by_time(spans, cells):
    starts = np.array([start for start, _ in spans])
    ends = starts + np.array([length for _, length in spans])
    edges = np.linspace(0, 75, cells + 1)
    level = in_flight_mean(starts, ends, edges)
    assert (level >= -1e-9).all()
    assert level.max() <= len(spans) + 1e-9
    # Little's account: what was spent in all cells is what the requests took.
    assert (level * np.diff(edges)).sum() == pytest.approx((ends - starts).sum(), abs=1e-6)


def test_series_count_every_request_once():
    refused = {"run_offset_ns": 100 * MS, "intended_to_sent_ns": 0, "vantage": "client", "reason": Reason.QUEUE_FULL}
    records = [*run(40, late_ms=30), request(90, at_ms=100, **refused)]
    series = run_series(table(records))
    assert series is not None
    assert (series.done * series.width_s).sum() == pytest.approx(40)
    assert (series.due * series.width_s).sum() == pytest.approx(41)
    assert (series.tokens * series.width_s).sum() == pytest.approx(240)
    assert series.failed["queue_full"].sum() == 1
    assert np.nanmax(series.late_ms) == pytest.approx(30)
    # Each waited 30 ms for its send.
    assert (series.waiting * series.width_s).sum() == pytest.approx(40 * 0.03)
    assert len(series.edges) - 1 <= 121
    assert run_series(table([])) is None


@given(st.lists(st.floats(0.1, 1e4) | st.just(float("nan")), max_size=500), st.integers(20, 100))
def test_thinning_keeps_the_largest_and_never_more_than_asked(values, most):
    array = np.array(values, dtype=float)
    kept = thinned(array, most)
    known = array[~np.isnan(array)]
    assert kept.size <= max(most, 0)
    assert kept.size == min(most, known.size) or kept.size >= most // 2
    assert not np.isnan(array[kept]).any()
    assert (np.diff(kept) > 0).all()
    if known.size:
        assert known.max() in array[kept]
