"""The Server-Timing header, written and read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.stages import ServerTiming, collect, parse_server_timing, render_server_timing, stage
from tailrace.testing import ManualClock

NAME = st.from_regex(r"[a-z][a-z0-9_]{0,8}(\.[a-z0-9_]{1,8}){0,2}", fullmatch=True)


@given(st.dictionaries(NAME, st.integers(0, 10**15), max_size=8))
def test_nanoseconds_survive_the_round_trip(durations):
    read = parse_server_timing(render_server_timing(durations))
    assert {timing.name: timing.duration_ns for timing in read} == durations


@given(st.text(max_size=200))
def test_any_text_can_be_read(text):
    for timing in parse_server_timing(text):
        assert timing.name
        assert timing.duration_ns is None or timing.duration_ns >= 0


@given(st.text(alphabet=' \t,;="\\durdesc.019', max_size=80))
def test_text_that_nearly_is_one_can_be_read(text):
    parse_server_timing(text)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", []),
        ("miss", [ServerTiming("miss")]),
        ("db;dur=53", [ServerTiming("db", 53_000_000)]),
        ('cache;desc="Cache, \\"read\\"";dur=23.2', [ServerTiming("cache", 23_200_000, 'Cache, "read"')]),
        (
            "a;dur=1,b;dur=.5 , c ; DUR = 2 ",
            [ServerTiming("a", 10**6), ServerTiming("b", 500_000), ServerTiming("c", 2 * 10**6)],
        ),
        ("a;dur=1;dur=2", [ServerTiming("a", 10**6)]),
        ("a;dur=x, b;dur=-1, c;dur=1e3", [ServerTiming("a"), ServerTiming("b"), ServerTiming("c")]),
        ("a;other=7;dur=1", [ServerTiming("a", 10**6)]),
        ('=, "x,y", ok;dur=1', [ServerTiming("ok", 10**6)]),
        ("total;dur=0.0000019", [ServerTiming("total", 1)]),
    ],
)
def test_examples(value, expected):
    assert parse_server_timing(value) == expected


def test_a_collector_writes_its_header():
    clock = ManualClock()
    with collect(clock) as stages:
        assert stages.server_timing() == ""
        with stage("preprocess.tokenize"):
            clock.advance(ms=1.25)
    assert stages.server_timing() == "preprocess;dur=1.25, preprocess.tokenize;dur=1.25"


def test_what_no_header_can_carry_is_refused():
    with pytest.raises(ValueError, match="cannot be a Server-Timing name"):
        render_server_timing({"a b": 1})
    with pytest.raises(ValueError, match="negative"):
        render_server_timing({"a": -1})
