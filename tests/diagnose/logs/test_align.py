"""Which clocks are one, and which nobody can join."""

from __future__ import annotations

import numpy as np
import pytest

from tailrace.diagnose.observed import Clock, Event, Observed, Place, Rows, Setting
from tailrace.diagnose.observed.align import Axis, align, wall_seconds

HOUR, DAY = 3600.0, 86400.0
MAY = 130 * DAY
"""11 May as if in 1970."""
MAY_2026 = 1778457600.0
"""The same in 2026 (UTC)."""


def events(source, clock, *times):
    return [
        Event(kind="x", at=at, clock=clock, place=Place(source, number)) for number, at in enumerate(times, start=1)
    ]


def table(source, sends, walls=None):
    columns = {"t_send_ms": np.array(sends, dtype=np.float64)}
    if walls is not None:
        columns["wall"] = np.array(walls, dtype=object)
    return Rows(kind="requests", columns=columns, clock=Clock.RELATIVE, place=Place(source))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("05-11 17:50:24", MAY + 17 * HOUR + 50 * 60 + 24),
        ("2026-05-11T17:50:24.250Z", MAY_2026 + 17 * HOUR + 50 * 60 + 24.25),
        ("2026-05-11 19:50:24+02:00", MAY_2026 + 17 * HOUR + 50 * 60 + 24),
        ("yesterday", None),
        ("13-45 99:00:00", None),
    ],
)
def test_wall_clocks_are_read(text, seconds):
    assert wall_seconds(text) == seconds


def test_a_line_with_two_stamps_joins_a_zone_to_utc():
    offset = MAY_2026 - MAY + 7 * HOUR + 0.4
    found = align(
        Observed(
            events=[
                *events("vllm.log", Clock.LOCAL, MAY + 100, MAY + 200),
                *events("nginx.log", Clock.UTC, MAY_2026 + 7 * HOUR + 150),
            ],
            settings=[Setting(name="clock_offset_s", value=offset, scope="vllm.log")],
        )
    )
    engine, proxy = Axis("vllm.log", Clock.LOCAL), Axis("nginx.log", Clock.UTC)
    shift = found.between(engine, proxy)
    assert shift is not None
    assert MAY + 150 + shift == pytest.approx(MAY_2026 + 7 * HOUR + 150, abs=0.5)
    assert found.sure(engine, proxy)


def test_zones_that_differ_by_whole_hours_are_told_in_words():
    found = align(
        Observed(
            events=events("vllm.log", Clock.LOCAL, MAY_2026 + 100),
            settings=[Setting(name="clock_offset_s", value=7 * HOUR + 0.3, scope="vllm.log")],
        )
    )
    assert found.said == ["vllm.log: the engine's stamps are 7 h behind the collector's (UTC)"]
    assert found.at(Axis("vllm.log", Clock.LOCAL), MAY_2026) == MAY_2026 + 7 * HOUR


def test_requests_with_a_wall_clock_join_a_log_without_year():
    sends = [8000, 15300, 26900]
    walls = ["03-09 10:00:08", "03-09 10:00:15", "03-09 10:00:26"]
    log = 67 * DAY + 10 * HOUR
    found = align(
        Observed(
            events=events("vllm.log", Clock.LOCAL, log + 16, log + 30), rows=[table("requests.jsonl", sends, walls)]
        )
    )
    mine, theirs = Axis("requests.jsonl", Clock.RELATIVE), Axis("vllm.log", Clock.LOCAL)
    shift = found.between(theirs, mine)
    assert shift is not None
    # 10:00:16 on the wall is 16 s on the clock of the requests, to the second that walls are cut to.
    assert log + 16 + shift == pytest.approx(16.0, abs=0.5)
    assert not found.sure(mine, theirs)
    assert any("taken for one clock" in text for text in found.said)


def test_two_stamps_without_zone_at_other_times_are_not_joined():
    found = align(Observed(events=[*events("a.log", Clock.LOCAL, MAY), *events("b.log", Clock.LOCAL, MAY + 40 * DAY)]))
    assert found.between(Axis("a.log", Clock.LOCAL), Axis("b.log", Clock.LOCAL)) is None
    assert any("b.log" in text and "do not overlap" in text for text in found.said)


def test_a_stamp_without_year_beside_utc_takes_its_year():
    found = align(
        Observed(
            events=[
                *events("vllm.log", Clock.LOCAL, MAY + 10, MAY + 50),
                *events("nginx.log", Clock.UTC, MAY_2026 + 30),
            ]
        )
    )
    shift = found.between(Axis("vllm.log", Clock.LOCAL), Axis("nginx.log", Clock.UTC))
    assert shift == MAY_2026 - MAY
    assert not found.sure(Axis("vllm.log", Clock.LOCAL))


def test_hours_between_two_short_sources_are_a_zone_and_are_said():
    found = align(
        Observed(
            events=[
                *events("vllm.log", Clock.LOCAL, MAY + 10, MAY + 50),
                *events("nginx.log", Clock.UTC, MAY_2026 + 7 * HOUR + 30),
            ]
        )
    )
    shift = found.between(Axis("vllm.log", Clock.LOCAL), Axis("nginx.log", Clock.UTC))
    assert shift == MAY_2026 - MAY + 7 * HOUR
    assert found.assumed


def test_clocks_of_their_own_cannot_be_joined_and_that_is_said():
    found = align(Observed(events=events("vllm.log", Clock.LOCAL, MAY), rows=[table("requests.jsonl", [1, 2])]))
    assert found.at(Axis("requests.jsonl", Clock.RELATIVE), 1.0) is None
    assert any("requests.jsonl (counted from its own start) cannot be aligned" in text for text in found.said)


def test_one_source_alone_needs_nothing_said():
    assert align(Observed(events=events("vllm.log", Clock.LOCAL, MAY, MAY + 10))).said == []
    assert align(Observed()).shifts == {}


def test_a_zone_that_nobody_wrote_is_said_beside_the_year():
    engine = events("vllm.log", Clock.LOCAL, MAY + 17 * HOUR, MAY + 17 * HOUR + 500)
    proxy = events("nginx.log", Clock.UTC, MAY_2026 + 15 * HOUR, MAY_2026 + 15 * HOUR + 500)
    (said,) = align(Observed(events=[*engine, *proxy])).said
    assert "for clocks 2 h apart" in said
    (said,) = align(Observed(events=[*events("vllm.log", Clock.LOCAL, MAY + 15 * HOUR + 100), *proxy])).said
    assert "one year and one clock" in said
