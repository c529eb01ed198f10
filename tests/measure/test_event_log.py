from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.measure.event_log import MIN_LIMIT, EventLog, entry
from tailrace.measure.gaps import token_gaps
from tailrace.model.timeline import EventKind, Timeline

C = EventKind.CONTENT


def fill(log: EventLog, events: list[tuple[int, EventKind, int]]) -> None:
    """As the meter does: append, fold when there is no room."""
    room = log.room
    for at, kind, tokens in events:
        log.others += kind > EventKind.REFUSAL
        log.at.append(at)
        log.what.append(entry(int(kind), tokens))
        if len(log.at) >= room:
            room = log.fold()
        assert len(log) <= log.limit


def stream(gaps: list[int], *, tokens: int = -1, pings: int = 0, seed: int = 1) -> list[tuple[int, EventKind, int]]:
    rng = random.Random(seed)
    out: list[tuple[int, EventKind, int]] = []
    now = 0
    for gap in [0, *gaps]:
        now += gap
        out.append((now, C, tokens))
        if pings and rng.randrange(pings) == 0:
            out.append((now, rng.choice([EventKind.COMMENT, EventKind.EMPTY]), -1))
    return out


def test_nothing_is_lost_up_to_the_limit() -> None:
    log = EventLog(512)
    events = stream([20] * 510)
    fill(log, events)
    line = log.timeline(0)
    assert line.thinned == 0
    assert line.merged == []
    assert [*zip(line.at_ns, line.kind, line.tokens, strict=True)] == events


@pytest.mark.parametrize("pings", [0, 3])
@pytest.mark.parametrize("tokens", [-1, 1, 3])
def test_100_000_tokens_stay_bounded_and_true(tokens: int, pings: int) -> None:
    rng = random.Random(5)
    gaps = [rng.randrange(15_000_000, 25_000_000) for _ in range(100_000)]
    for place in (3, 700, 2047, 2048, 31_000, 77_777, 99_999):
        gaps[place] = 5_000_000_000 + place
    events = stream(gaps, tokens=tokens, pings=pings)
    log = EventLog(2048)
    fill(log, events)
    log.settle()
    assert (log.gaps.count, log.gaps.max) == (len(gaps), max(gaps))
    line = log.timeline(0)
    assert len(line.at_ns) <= 2048
    stamps = line.token_stamps()
    truth = [at for at, kind, _ in events if kind is C]
    assert stamps[:16] == truth[:16]
    assert stamps[-16:] == truth[-16:]
    assert set(stamps) <= set(truth)
    survivors = token_gaps(line)
    assert {gap for gap in gaps if gap > 4_000_000_000} <= set(survivors)
    assert set(survivors) <= set(gaps)
    assert len(stamps) + line.thinned == len(truth)
    assert sum(line.merged) == line.thinned
    if tokens > 0:
        assert sum(count for count, kind in zip(line.tokens, line.kind, strict=True) if kind == C) == tokens * len(
            truth
        )
    else:
        assert set(line.tokens) == {-1}


kinds = st.sampled_from([C, C, C, EventKind.REASONING, EventKind.COMMENT, EventKind.EMPTY, EventKind.PROGRESS])


@given(
    batch=st.lists(st.tuples(st.integers(0, 1000), kinds, st.integers(-1, 4)), min_size=1, max_size=40),
    times=st.integers(1, 60),
    spike=st.integers(0, 2000),
)
def test_folding_keeps_its_promises_for_any_stream(
    batch: list[tuple[int, EventKind, int]], times: int, spike: int
) -> None:
    now, events = 0, []
    for index, (gap, kind, tokens) in enumerate(batch * times):
        now += 1_000_000 if index == spike else gap
        events.append((now, kind, tokens))
    log = EventLog(MIN_LIMIT)
    fill(log, events)
    log.settle()
    truth = [at for at, kind, _ in events if kind <= EventKind.REFUSAL]
    true_gaps = [b - a for a, b in itertools.pairwise(truth)]
    line = log.timeline(0)
    assert log.gaps.count == len(true_gaps)
    assert log.gaps.max == max(true_gaps, default=None)
    stamps = line.token_stamps()
    assert len(stamps) + line.thinned == len(truth)
    assert sum(line.merged) == line.thinned
    assert stamps[:1] == truth[:1]
    assert stamps[-1:] == truth[-1:]
    assert line.at_ns == sorted(line.at_ns)
    if true_gaps:
        assert max(true_gaps) in token_gaps(line)
    assert log.recent_gaps(10) == true_gaps[-10:] or len(events) > MIN_LIMIT // 8


def test_telling_events_survive() -> None:
    events = [(0, EventKind.ROLE, -1), *stream([10] * 5000)]
    end = events[-1][0]
    events += [(end, EventKind.FINISH, -1), (end + 1, EventKind.USAGE, -1), (end + 2, EventKind.DONE, -1)]
    log = EventLog(MIN_LIMIT)
    fill(log, events)
    line: Timeline = log.timeline(0)
    assert line.kind[0] == EventKind.ROLE
    assert line.kind[-3:] == [EventKind.FINISH, EventKind.USAGE, EventKind.DONE]


def test_a_limit_too_small_to_keep_anything_is_refused() -> None:
    with pytest.raises(ValueError, match="timeline_limit is 10"):
        EventLog(10)
