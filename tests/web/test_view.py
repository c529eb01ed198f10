"""What a view says about rates and defaults, on tables of known content."""

from __future__ import annotations

import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import RequestRecord
from tailrace.model.thresholds import S
from tailrace.store.table import RecordTable
from tailrace.web.selection import Selection
from tailrace.web.view import View, build_view

NOW = 10**18


def record(number: int, ended_s_ago: float, **more) -> RequestRecord:
    e2e = 2 * S
    fields = {
        "request_id": str(number),
        "start_unix_ns": NOW - int(ended_s_ago * S) - e2e,
        "e2e_ns": e2e,
        "decode_ns": e2e,
        "output_tokens": 10,
        "outcome": OutcomeKind.COMPLETED,
    }
    return RequestRecord(**fields | more)


def view(records: list[RequestRecord], window: str = "1m", uptime_s: float | None = None, limit: int = 1000) -> View:
    table = RecordTable.from_records(records)
    return build_view(table, Selection(window=window), now_unix_ns=NOW, limit=limit, uptime_s=uptime_s)


def test_a_request_that_started_before_the_window_and_ended_in_it_counts():
    found = view([record(1, 59), record(2, 61)])
    assert found.summary.n == 1


@pytest.mark.parametrize(
    ("window", "uptime_s", "seconds"),
    [
        ("1m", 1000.0, 60),
        ("1m", None, 32),  # nothing known but the oldest record, which began 32 s ago
        ("1m", 40.0, 40),  # a young gateway: the rate is over its life
        ("all", 1000.0, 32),
    ],
)
def test_the_rate_is_over_the_time_that_was_watched(window, uptime_s, seconds):
    found = view([record(number, number) for number in range(31)], window, uptime_s)
    assert found.summary.requests_per_s == pytest.approx(31 / seconds)
    assert found.summary.tokens_per_s == pytest.approx(310 / seconds)


def test_without_records_the_rate_is_zero_only_when_somebody_watched():
    assert view([], "1m", 1000.0).summary.requests_per_s == 0
    assert view([], "1m", None).summary.requests_per_s == 0
    assert view([], "all", None).summary.requests_per_s is None


def test_cancelled_requests_are_no_errors():
    rows = [
        record(1, 1),
        record(2, 1, outcome=OutcomeKind.CANCELLED, reason=Reason.CLIENT_DISCONNECT),
        record(3, 1, outcome=OutcomeKind.REJECTED, reason=Reason.QUEUE_FULL),
        record(4, 1, outcome=OutcomeKind.TIMED_OUT, reason=Reason.IDLE_TIMEOUT),
        record(5, 1, outcome=OutcomeKind.FAILED, reason=Reason.STREAM_CUT),
    ]
    found = view(rows)
    assert (found.summary.n, found.summary.failed, found.summary.cancelled) == (5, 3, 1)
    assert found.summary.metrics["e2e_ms"].n == 1  # only completed requests make percentiles


def test_the_metric_fits_the_traffic():
    assert view([record(1, 1)]).metric == "e2e"
    assert view([record(1, 1, ttft_ns=S), record(2, 1)]).metric == "ttft"


def test_foreign_text_is_shortened():
    found = view([record(1, 1, model="m" * 5000, error="e" * 300)])
    assert len(found.slowest[0]["model"]) == 120
    assert len(found.slowest[0]["error"]) == 120
    assert all(len(model) <= 120 for model in found.models)


def test_percentiles_that_n_cannot_support_are_absent():
    few = view([record(number, 1, ttft_ns=S) for number in range(50)]).summary.metrics["ttft_ms"]
    assert few.p50 == 1000
    assert few.p99 is None
    assert few.p99_needs == 500
    many = view([record(number, 1, ttft_ns=S) for number in range(500)]).summary.metrics["ttft_ms"]
    assert many.p99 == 1000
    assert many.p99_needs == 0
