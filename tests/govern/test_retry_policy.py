"""Retries: rare, spread, within a share of the traffic, and never sooner than the engine asked for."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.govern.balance import Balancer, BalanceSettings, Want
from tailrace.govern.breaker import BreakerPolicy
from tailrace.govern.retry_policy import (
    RetryBudget,
    RetryPolicy,
    Trouble,
    decide,
    retry_after_ns,
    trouble_of,
)
from tailrace.govern.standing import Standing
from tailrace.model.thresholds import S

ROOMY = RetryPolicy(reserve=10**6)
SAME = RetryPolicy(reserve=10**6, same_backend=True)


def ask(policy: RetryPolicy, trouble: Trouble, *, budget: RetryBudget | None = None, seed: int = 1, **more):
    facts = {"attempts": 1, "cuts": 0, "elsewhere": True, "not_before": 0, "until": 60 * S, "now": 0, **more}
    return decide(policy, budget or RetryBudget(policy), trouble, random=Random(seed), **facts)


# -- whether


@pytest.mark.parametrize("trouble", list(Trouble))
def test_a_failed_attempt_is_made_again_elsewhere_and_not_at_the_same_engine(trouble: Trouble) -> None:
    assert ask(ROOMY, trouble, cuts=int(trouble is Trouble.CUT)).elsewhere
    assert ask(ROOMY, trouble, cuts=int(trouble is Trouble.CUT), elsewhere=False) is None


def test_it_may_be_allowed_at_the_same_engine_but_never_what_may_have_killed_it() -> None:
    assert ask(SAME, Trouble.ERROR, elsewhere=False) is not None
    assert ask(SAME, Trouble.CUT, elsewhere=False, cuts=1) is None


def test_what_cut_two_engines_short_meets_no_third() -> None:
    assert ask(ROOMY, Trouble.CUT, cuts=1) is not None
    assert ask(ROOMY, Trouble.CUT, attempts=2, cuts=2) is None


def test_attempts_are_bounded() -> None:
    assert ask(ROOMY, Trouble.ERROR, attempts=2) is not None
    assert ask(ROOMY, Trouble.ERROR, attempts=3) is None


def test_nothing_is_tried_again_for_longer_than_the_request_has() -> None:
    assert ask(SAME, Trouble.REFUSED, elsewhere=False, not_before=S, until=3 * S) is not None
    assert ask(SAME, Trouble.REFUSED, elsewhere=False, not_before=S, until=S) is None


# -- when


def test_no_wait_where_nothing_was_begun() -> None:
    assert ask(ROOMY, Trouble.UNREACHABLE).wait_ns == 0


@given(st.integers(1, 2), st.integers(0, 10**6), st.sampled_from([Trouble.ERROR, Trouble.REFUSED]))
def test_full_jitter_below_an_exponential_bound(attempts: int, seed: int, trouble: Trouble) -> None:
    again = ask(ROOMY, trouble, attempts=attempts, seed=seed)
    assert 0 <= again.wait_ns <= ROOMY.backoff_ns * 2 ** (attempts - 1)


def test_the_jitter_is_full() -> None:
    waits = [ask(ROOMY, Trouble.ERROR, seed=seed).wait_ns / ROOMY.backoff_ns for seed in range(500)]
    assert sum(waits) / len(waits) == pytest.approx(0.5, abs=0.05)
    assert min(waits) < 0.05
    assert max(waits) > 0.95


def test_the_backoff_has_an_upper_bound() -> None:
    policy = RetryPolicy(reserve=100, attempts=50)
    assert max(ask(policy, Trouble.ERROR, attempts=40, seed=seed).wait_ns for seed in range(50)) <= 2 * S


@given(st.integers(0, 4 * S), st.integers(0, 10**6))
def test_retry_after_is_never_undercut(wait: int, seed: int) -> None:
    again = ask(SAME, Trouble.REFUSED, elsewhere=False, not_before=wait, seed=seed)
    if wait > SAME.wait_max_ns:
        assert again is None  # the client's to wait for
    else:
        assert again.wait_ns >= wait


# -- out of what


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3 * S)), max_size=300), st.floats(0, 0.5), st.integers(0, 5))
def test_retries_are_a_share_of_the_traffic_in_any_window(
    steps: list[tuple[bool, int]], share: float, reserve: int
) -> None:
    budget, now = RetryBudget(RetryPolicy(budget=share, reserve=reserve)), 0
    requests: list[int] = []
    retries: list[int] = []
    for retry, step in steps:
        now += step
        if not retry:
            budget.request(now)
            requests.append(now)
        elif budget.take(now):
            retries.append(now)
    for at in retries:
        # The budget counts whole seconds: its window is nine to ten of them long.
        later = [other for other in retries if at <= other <= at + 9 * S]
        recent = sum(at - 10 * S < other <= at + 9 * S for other in requests)
        assert len(later) <= max(share * recent, reserve)
    assert budget.taken == len(retries)


def test_who_could_not_be_reached_costs_no_budget() -> None:
    policy = RetryPolicy(budget=0.0, reserve=0)
    assert ask(policy, Trouble.UNREACHABLE) is not None
    assert ask(policy, Trouble.ERROR) is None
    assert ask(RetryPolicy(budget=0.0, reserve=0, same_backend=True), Trouble.UNREACHABLE, elsewhere=False) is None


def test_a_quiet_gateway_may_retry_a_little_and_saves_nothing_up() -> None:
    budget = RetryBudget(RetryPolicy(budget=0.1, reserve=3))
    assert [budget.take(0) for _ in range(4)] == [True, True, True, False]
    assert budget.denied == 1
    for second in range(100):
        for _ in range(10):
            budget.request(second * S)
    taken = 0
    while budget.take(100 * S):
        taken += 1
    assert taken == 9  # a tenth of the 90 of the last nine whole seconds


# -- what an answer says


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7), (" 0 ", 0), ("1.5", 1.5), ("Sun, 06 Nov 1994 08:49:37 GMT", 7), ("Sun, 06 Nov 1994 08:49:27 GMT", 0)],
)
def test_retry_after_in_both_of_its_forms(value: str, seconds: float) -> None:
    assert retry_after_ns(value, 784111770.0) == round(seconds * S)


@pytest.mark.parametrize("value", ["", "soon", "-1", "1,5", "\u0667", "9" * 40, "Sun, 99 Nov 1994 99:99:99 GMT"])
def test_what_is_no_retry_after_says_nothing_or_nothing_absurd(value: str) -> None:
    assert retry_after_ns(value, 0.0) is None or value.startswith("Sun")


@given(st.text(max_size=40))
def test_any_text_is_read_without_an_error(value: str) -> None:
    found = retry_after_ns(value, 1.7e9)
    assert found is None or found >= 0


@pytest.mark.parametrize(("status", "trouble"), [(429, Trouble.REFUSED), (503, Trouble.REFUSED), (500, Trouble.ERROR)])
def test_a_status_says_whether_work_was_begun(status: int, trouble: Trouble) -> None:
    assert trouble_of(status) is trouble


# -- the storm, in virtual time


@pytest.mark.parametrize("backends", [1, 3])
@pytest.mark.parametrize("rate", [1, 20, 100])
def test_an_upstream_failing_half_for_thirty_seconds_gets_few_more_attempts_than_requests(
    backends: int, rate: int
) -> None:
    """The whole chain as the gateway runs it: choose, fail, decide, choose again."""
    random = Random(backends * 1000 + rate)
    policy = RetryPolicy(same_backend=True)
    budget = RetryBudget(policy)
    standings = [Standing(f"b{number}", BreakerPolicy()) for number in range(backends)]
    chooser = Balancer(standings, BalanceSettings(), random)
    requests = attempts = served = 0
    for number in range(30 * rate):
        now = number * S // rate
        requests += 1
        budget.request(now)
        tried = 0
        but: list[Standing] = []
        while True:
            chosen = chooser.choose(standings, now, Want(tokens=100), but=but)
            chosen.breaker.sent(now)
            tried += 1
            if random.random() >= 0.5:
                chosen.succeeded(now, now)
                served += 1
                break
            if chosen not in but:
                chosen.failed(now, now)
                but.append(chosen)
            elsewhere = any(s not in but and s.usable(now) for s in standings)
            again = decide(
                policy, budget, Trouble.ERROR, attempts=tried, cuts=0, elsewhere=elsewhere, not_before=0,
                until=now + 5 * S, now=now, random=random,
            )  # fmt: skip
            if again is None:
                break
            now += again.wait_ns
        attempts += tried
    assert requests == 30 * rate
    # Of thirty requests in thirty seconds, the reserve is more than a tenth.
    assert attempts <= (1.2 if rate > 1 else 1.4) * requests, (attempts, requests)
    assert served >= requests * 0.5
