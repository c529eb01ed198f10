"""Gaps and trickles against a plain account of the same stream: whatever is due is told, once, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tailrace.govern.stream_guard import Breach, GapAction, StreamGuard, StreamWatch
from tailrace.model.thresholds import MS, S

SWEEP = 50 * MS
LIMIT = 500 * MS


@dataclass
class Stream:
    """A meter's face, of a stream whose tokens come at given instants."""

    tokens_at: list[int]
    now: int = 0
    told: list[tuple[int, int]] = field(default_factory=list)

    @property
    def event_stamps(self) -> list[int]:
        return [at for at in self.tokens_at if at <= self.now]

    @property
    def last_progress_ns(self) -> int | None:
        return max(self.event_stamps, default=None)

    @property
    def tokens(self) -> int:
        return len(self.event_stamps)

    def sweep(self, guard: StreamGuard, until: int, *, unblocked_at: int = 0, blocked: bool = False) -> Breach | None:
        """As the gateway does: looked at by a sweeper, no sooner than it is due."""
        watch = StreamWatch(guard, lambda gap, at: self.told.append((gap, at)))
        due = 0
        for self.now in range(0, until, SWEEP):
            if self.now >= due and self.tokens:
                breach = watch.look(self, self.now, unblocked_at, blocked=blocked)
                if breach is not None:
                    return breach
                due = max(watch.due(self, unblocked_at), self.now + 1)
        return None


WARN = StreamGuard(gap_ns=LIMIT)


def test_a_steady_stream_says_nothing() -> None:
    stream = Stream([n * 20 * MS for n in range(500)])
    assert stream.sweep(WARN, 10 * S) is None
    assert stream.told == []


def test_a_gap_is_told_once_while_it_lasts() -> None:
    stream = Stream([0, 100 * MS, 4 * S])
    assert stream.sweep(WARN, 4 * S) is None
    ((gap, at),) = stream.told
    assert LIMIT <= gap < LIMIT + 2 * SWEEP
    assert at == 100 * MS + gap


def test_a_gap_that_ends_before_the_sweep_is_told_whole() -> None:
    """520 ms: over before anybody looked, and over the limit."""
    stream = Stream([0, 10 * MS, 530 * MS, *(530 * MS + n * 20 * MS for n in range(1, 100))])
    assert stream.sweep(StreamGuard(gap_ns=LIMIT, gap_action=GapAction.ABORT), 2 * S) is None
    assert stream.told == [(520 * MS, 530 * MS)]


def test_abort_ends_a_stream_that_stands_still() -> None:
    stream = Stream([0, 100 * MS])
    assert stream.sweep(StreamGuard(gap_ns=LIMIT, gap_action=GapAction.ABORT), 9 * S) is Breach.GAP
    assert stream.now < 100 * MS + LIMIT + 2 * SWEEP
    assert len(stream.told) == 1


def test_a_client_that_blocks_is_not_the_engines_gap() -> None:
    for unblocked_at, blocked in ((3 * S, False), (0, True)):
        stream = Stream([0, 100 * MS])
        guard = StreamGuard(gap_ns=LIMIT, gap_action=GapAction.ABORT, tokens_per_s=5, window_ns=S)
        assert stream.sweep(guard, 3 * S, unblocked_at=unblocked_at, blocked=blocked) is None
        assert stream.told == []


def test_a_trickle_is_ended_though_it_is_never_idle() -> None:
    """Two tokens a second: each comes well within an idle budget."""
    guard = StreamGuard(tokens_per_s=5, window_ns=5 * S)
    stream = Stream([n * 500 * MS for n in range(1000)])
    assert stream.sweep(guard, 60 * S) is Breach.PACE
    assert stream.now < 5 * S + 2 * SWEEP
    quick = Stream([n * 150 * MS for n in range(1000)])
    assert quick.sweep(guard, 60 * S) is None


def test_a_stream_that_turns_to_a_trickle_is_ended_within_two_windows() -> None:
    stream = Stream([n * 20 * MS for n in range(600)] + [12 * S + n * S for n in range(60)])
    assert stream.sweep(StreamGuard(tokens_per_s=5, window_ns=5 * S), 60 * S) is Breach.PACE
    assert 12 * S < stream.now <= 12 * S + 10 * S + 2 * SWEEP


@given(st.lists(st.integers(1, 1500), min_size=1, max_size=60))
def test_every_gap_beyond_the_limit_is_told_once_and_no_other(gaps_ms: list[int]) -> None:
    at, stamps = 0, [0]
    for gap in gaps_ms:
        at += gap * MS
        stamps.append(at)
    stream = Stream(stamps)
    stream.sweep(WARN, at + SWEEP)
    truth = [b - a for a, b in pairwise(stamps)]
    told = sorted(gap for gap, _ in stream.told)
    # A gap of exactly the limit may be told or not, by when it is looked at.
    assert sum(gap > LIMIT for gap in truth) <= len(told) <= sum(gap >= LIMIT for gap in truth)
    assert all(gap >= LIMIT for gap in told)
    for gap, when in stream.told:
        start = when - gap
        assert start in stamps
        assert any(a == start and b >= when for a, b in pairwise(stamps))
