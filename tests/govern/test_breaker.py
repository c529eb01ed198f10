"""A breaker opens on failures alone, tries again early, and listens to nobody from before it turned."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.govern.breaker import Breaker, BreakerPolicy, BreakerState
from tailrace.govern.standing import Standing
from tailrace.model.thresholds import MS, S

POLICY = BreakerPolicy()


def opened(at: int = 0) -> Breaker:
    breaker = Breaker(POLICY)
    for _ in range(POLICY.failures):
        breaker.failed(at, at)
    assert breaker.opened
    return breaker


def test_so_many_failures_in_a_row_open_it() -> None:
    breaker = Breaker(POLICY)
    assert [breaker.failed(0, 0) for _ in range(POLICY.failures)] == [False] * (POLICY.failures - 1) + [True]
    assert breaker.state(0) is BreakerState.OPEN


def test_a_success_between_them_does_not_let_them_add_up() -> None:
    breaker = Breaker(BreakerPolicy(share=1.0))
    for _ in range(50):
        for _ in range(POLICY.failures - 1):
            assert not breaker.failed(0, 0)
        breaker.succeeded(0, 0)
    assert not breaker.opened


def test_half_of_all_requests_open_it() -> None:
    breaker, sent = Breaker(POLICY), 0
    while not breaker.opened:
        sent += 1
        (breaker.failed if sent % 2 else breaker.succeeded)(sent * MS, sent * MS)
    assert sent >= POLICY.requests
    assert sent <= POLICY.requests + 1


def test_failures_of_long_ago_count_no_more() -> None:
    breaker = Breaker(POLICY)
    for number in range(200):
        now = number * 6 * S  # one failure and one success in each half of the window: never twenty together
        breaker.failed(now, now)
        breaker.succeeded(now, now)
    assert not breaker.opened


def test_it_is_tried_again_within_half_a_second_and_closes_with_the_first_success() -> None:
    breaker = opened()
    assert not breaker.allows(POLICY.probe_ns - 1)
    assert breaker.allows(POLICY.probe_ns)
    assert breaker.state(POLICY.probe_ns) is BreakerState.HALF_OPEN
    breaker.sent(POLICY.probe_ns)
    assert not breaker.allows(POLICY.probe_ns)
    assert breaker.succeeded(POLICY.probe_ns, POLICY.probe_ns + MS)
    assert breaker.state(POLICY.probe_ns + MS) is BreakerState.CLOSED


def test_a_probe_that_hangs_does_not_hold_the_next_back() -> None:
    breaker = opened()
    breaker.sent(POLICY.probe_ns)
    assert breaker.allows(2 * POLICY.probe_ns)


def test_who_was_sent_before_it_turned_has_no_say() -> None:
    breaker = opened(S)
    assert not breaker.succeeded(0, 2 * S)  # a long stream that began while all was well
    assert breaker.opened
    assert breaker.succeeded(2 * S, 3 * S)
    for _ in range(50):  # streams of the process that was killed
        assert not breaker.failed(S, 3 * S + MS)
    assert not breaker.opened


@given(st.lists(st.tuples(st.sampled_from(["sent", "failed", "succeeded"]), st.integers(0, 2 * S)), max_size=200))
def test_a_healed_engine_is_in_service_again_within_a_second(events: list[tuple[str, int]]) -> None:
    """Whatever happened before: a probe is due within half a second, and its success closes the breaker."""
    breaker, now = Breaker(POLICY), 0
    for what, step in events:
        now += step
        if what == "sent":
            if breaker.allows(now):
                breaker.sent(now)
        else:
            getattr(breaker, what)(now, now)
        if breaker.opened:
            assert breaker.allows(now + POLICY.probe_ns)
    if breaker.opened:
        now += POLICY.probe_ns
        assert breaker.allows(now)
        breaker.sent(now)
        assert breaker.succeeded(now, now + MS)
    assert breaker.allows(now)


def test_a_healed_backend_begins_slowly() -> None:
    standing = Standing("b", POLICY)
    for _ in range(POLICY.failures):
        standing.failed(0, 0)
    assert standing.why_not(0) == "breaker"
    standing.succeeded(S, S)
    assert standing.why_not(S) == ""
    assert standing.share(S) < 0.2
