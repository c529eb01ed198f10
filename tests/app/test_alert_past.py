"""Alarms after a restart: what was missed before it is in their windows."""

from __future__ import annotations

from time import monotonic_ns, time_ns

import msgspec

from tailrace.app.alert_past import AlertPast
from tailrace.govern.burn_rate import AlarmPolicy, Alarms
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.store.writer import RecordWriter, WriterOptions
from tests.diagnose.simulated import as_gateway, served

S = 1_000_000_000
BOUNDS = {"default": {"ttft_p99": 500_000_000, "e2e_p99": 60 * S}}
WINDOWS = AlarmPolicy().windows()


def stored(folder, ages_s, **changes):
    """Records of requests that began so many seconds ago."""
    now = time_ns()
    some = as_gateway(served(rate=6.0, long_share=0.0))[: len(ages_s)]
    writer = RecordWriter(str(folder), WriterOptions())
    for record, age in zip(some, ages_s, strict=True):
        slow = {"lane": "default", "start_unix_ns": now - int(age * S), "ttft_ns": 900_000_000, **changes}
        writer.put(msgspec.structs.replace(record, **slow))
    writer.close(5.0)
    return some


def past_of(folder, bounds=BOUNDS):
    past = AlertPast()
    found = past.read(str(folder), bounds, max(WINDOWS.values()))
    return past, found


def test_an_alarm_fires_at_once_after_a_restart(tmp_path):
    stored(tmp_path, [100.0 + i for i in range(40)])
    past, found = past_of(tmp_path)
    assert found == 40
    missed = past.joined({}, BOUNDS, WINDOWS, monotonic_ns())
    assert missed["default"]["ttft_p99"]["5m"] == {"requests": 40, "missed": 40}
    assert missed["default"]["e2e_p99"]["5m"] == {"requests": 40, "missed": 0}
    alarms = Alarms(AlarmPolicy()).judge(missed, BOUNDS, monotonic_ns())
    assert {one.objective for one in alarms} == {"ttft_p99"}
    assert Alarms(AlarmPolicy()).judge({}, BOUNDS, monotonic_ns()) == [], "without its past it knows nothing"


def test_what_ended_right_before_the_start_is_counted(tmp_path):
    stored(tmp_path, [12.0 + i / 100 for i in range(40)], e2e_ns=11 * S)
    past, found = past_of(tmp_path)
    assert found == 40
    assert past.joined({}, BOUNDS, WINDOWS, monotonic_ns())["default"]["ttft_p99"]["5m"]["missed"] == 40


def test_what_is_counted_live_is_added_and_the_past_leaves_the_windows(tmp_path):
    stored(tmp_path, [200.0 + i for i in range(20)])
    past, _ = past_of(tmp_path)
    live = {"default": {"ttft_p99": {"5m": {"requests": 7, "missed": 3}, "1h": {"requests": 7, "missed": 3}}}}
    now = monotonic_ns()
    assert past.joined(live, BOUNDS, WINDOWS, now)["default"]["ttft_p99"]["5m"] == {"requests": 27, "missed": 23}
    later = past.joined(live, BOUNDS, WINDOWS, now + 400 * S)["default"]["ttft_p99"]
    assert later["5m"] == {"requests": 7, "missed": 3}
    assert later["1h"] == {"requests": 27, "missed": 23}


def test_another_bound_or_lane_makes_the_past_worthless(tmp_path):
    stored(tmp_path, [100.0 + i for i in range(20)])
    past, _ = past_of(tmp_path)
    assert past.joined({}, {"default": {"ttft_p99": 2 * S}}, WINDOWS, monotonic_ns()) == {}
    assert past.joined({}, {"chat": BOUNDS["default"]}, WINDOWS, monotonic_ns()) == {}


def test_failures_missed_and_shadow_copies_are_nobody_s(tmp_path):
    failed = {"outcome": OutcomeKind.FAILED, "reason": Reason.ENGINE_ERROR, "ttft_ns": 1_000_000}
    stored(tmp_path / "failed", [100.0 + i for i in range(10)], **failed)
    past, _ = past_of(tmp_path / "failed")
    seen = past.joined({}, BOUNDS, WINDOWS, monotonic_ns())["default"]["ttft_p99"]["5m"]
    assert seen == {"requests": 10, "missed": 10}
    stored(tmp_path / "shadow", [100.0 + i for i in range(10)], route="shadow")
    assert past_of(tmp_path / "shadow")[1] == 0


def test_a_directory_that_cannot_be_read_begins_anew(tmp_path, caplog):
    past, found = past_of(tmp_path / "none")
    assert found == 0
    assert past.joined({}, BOUNDS, WINDOWS, monotonic_ns()) == {}
    assert "alarms begin without" in caplog.text
