"""Who gets the next request: least work, affinity with a bound, long prompts kept away, nobody shut out for good."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.govern.balance import PROBE_EVERY, BalancePolicy, Balancer, BalanceSettings, Skew, Want
from tailrace.govern.breaker import BreakerPolicy
from tailrace.govern.ring import Ring, key_of
from tailrace.govern.standing import COLD, MOST_ALONE_NS, Standing
from tailrace.model.thresholds import MS, S

EVEN = BalanceSettings()
PREFIX = BalanceSettings(policy=BalancePolicy.PREFIX)


def fleet(count: int, **more) -> list[Standing]:
    return [Standing(f"b{number}", BreakerPolicy(), **more) for number in range(count)]


def balancer(standings: list[Standing], settings: BalanceSettings = EVEN, seed: int = 1) -> Balancer:
    return Balancer(standings, settings, Random(seed))


def trip(standing: Standing, now: int = 0) -> None:
    for _ in range(standing.breaker.policy.failures):
        standing.failed(now, now)


# -- least work


def test_work_is_counted_in_tokens_not_in_requests() -> None:
    a, b = fleet(2)
    a.took(8000)
    for _ in range(20):
        b.took(100)
    assert balancer([a, b]).choose([a, b], 0, Want(tokens=100)) is b


def test_a_backend_of_weight_four_gets_four_fifths_of_the_work() -> None:
    a, b = fleet(2)
    b.weight = 4.0
    chooser = balancer([a, b])
    for _ in range(1000):
        chosen = chooser.choose([a, b], 0, Want(tokens=100))
        assert chosen is not None
        chosen.took(100)
    assert b.tokens / (a.tokens + b.tokens) == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("policy", list(BalancePolicy))
def test_ties_go_to_everybody(policy: BalancePolicy) -> None:
    """At low concurrency every backend is idle: the first of the file must not get all of it."""
    standings = fleet(3)
    chooser = balancer(standings, BalanceSettings(policy=policy))
    counts = Counter(chooser.choose(standings, 0, Want(tokens=10)).name for _ in range(3000))
    assert set(counts) == {"b0", "b1", "b2"}
    assert min(counts.values()) > 850


def test_skew_stays_small_under_work_of_very_different_sizes() -> None:
    """Open arrivals in virtual time; a backend works off tokens at a fixed pace."""
    worst = {}
    for policy in (BalancePolicy.LEAST_WORK, BalancePolicy.TWO_CHOICES):
        random, standings = Random(7), fleet(4)
        chooser, skew = balancer(standings, BalanceSettings(policy=policy)), Skew()
        running: list[tuple[int, Standing, int]] = []
        now = 0
        for number in range(4000):
            now += round(random.expovariate(1.0) * 30 * MS)
            for end, standing, tokens in [one for one in running if one[0] <= now]:
                running.remove((end, standing, tokens))
                standing.gave_back(tokens)
            tokens = random.choice([50, 200, 400, 8000])
            chosen = chooser.choose(standings, now, Want(tokens=tokens))
            chosen.took(tokens)
            running.append((now + tokens * MS // 10, chosen, tokens))
            if number % 20 == 0:
                skew.sample(standings, now)
        worst[policy] = skew.cv
        assert skew.samples > 100
        assert skew.peak < 2.0
    assert worst[BalancePolicy.LEAST_WORK] < 0.5


# -- affinity


def test_the_same_key_goes_to_the_same_backend_and_keys_are_spread() -> None:
    standings = fleet(4)
    chooser = balancer(standings, PREFIX)
    first = {key: chooser.choose(standings, 0, Want(key=key_of(b"%d" % key))).name for key in range(400)}
    again = {key: chooser.choose(standings, 0, Want(key=key_of(b"%d" % key))).name for key in range(400)}
    assert first == again
    assert min(Counter(first.values()).values()) > 50
    assert (chooser.affinity_asked, chooser.affinity_met) == (800, 800)


def test_a_backend_that_leaves_moves_only_its_own_keys() -> None:
    standings = fleet(5)
    chooser = balancer(standings, PREFIX)
    keys = [key_of(b"k%d" % number) for number in range(500)]
    before = {key: chooser.choose(standings, 0, Want(key=key)).name for key in keys}
    chooser.replace(standings[:4], PREFIX)
    after = {key: chooser.choose(standings[:4], 0, Want(key=key)).name for key in keys}
    assert {key for key in keys if before[key] != after[key]} == {key for key in keys if before[key] == "b4"}


def test_affinity_gives_way_to_load() -> None:
    standings = fleet(3)
    chooser = balancer(standings, PREFIX)
    counts: Counter[str] = Counter()
    for _ in range(300):
        chosen = chooser.choose(standings, 0, Want(tokens=1000, key=42))
        chosen.took(1000)
        counts[chosen.name] += 1
    # One hot key: bounded to 1.25 of the mean (and one request), spilt over in the order of the ring.
    mean = sum(s.tokens for s in standings) / 3
    assert max(s.tokens for s in standings) <= 1.25 * mean + 1000
    assert min(counts.values()) > 0


def test_a_small_overload_does_not_move_a_key() -> None:
    standings = fleet(3)
    chooser = balancer(standings, PREFIX)
    home = chooser.choose(standings, 0, Want(key=42))
    home.took(5000)
    assert chooser.choose(standings, 0, Want(tokens=100, key=42)) is home


def test_a_session_moves_while_its_backend_is_not_usable_and_comes_home() -> None:
    standings = fleet(3)
    chooser = balancer(standings)
    want = Want(tokens=10, key=key_of(b"session-1"))
    home = chooser.choose(standings, 0, want)
    home.ejected_until = 5 * S
    away = chooser.choose(standings, S, want)
    assert away is not home
    assert chooser.choose(standings, S, want) is away
    assert chooser.choose(standings, 5 * S, want) is home


@given(st.lists(st.floats(0.1, 8.0), min_size=1, max_size=6), st.integers(0, 2**64 - 1))
def test_a_walk_visits_everybody_once(weights: list[float], key: int) -> None:
    names = [(f"n{number}", weight) for number, weight in enumerate(weights)]
    assert sorted(Ring(names).walk(key)) == sorted(name for name, _ in names)


# -- long prompts


def test_long_prompts_are_kept_away() -> None:
    short, wide = Standing("short", BreakerPolicy(), max_prompt_tokens=2000), Standing("wide", BreakerPolicy())
    chooser = balancer([short, wide])
    wide.took(10**6)
    assert chooser.choose([short, wide], 0, Want(prompt_tokens=2001)) is wide
    assert chooser.choose([short, wide], 0, Want(prompt_tokens=2000)) is short
    assert chooser.choose([short], 0, Want(prompt_tokens=9999)) is short


def test_where_none_takes_so_long_a_prompt_the_widest_gets_it() -> None:
    a = Standing("a", BreakerPolicy(), max_prompt_tokens=1000)
    b = Standing("b", BreakerPolicy(), max_prompt_tokens=4000)
    assert balancer([a, b]).choose([a, b], 0, Want(prompt_tokens=9000)) is b


# -- usable or not


def test_an_open_breaker_keeps_requests_away_but_for_a_tenth() -> None:
    standings = fleet(3)
    chooser = balancer(standings)
    trip(standings[0])
    counts: Counter[str] = Counter()
    for number in range(3000):
        now = number * 20 * MS  # a minute
        chosen = chooser.choose(standings, now, Want(tokens=10))
        chosen.breaker.sent(now)
        counts[chosen.name] += 1
    # A probe each half second at most; here traffic is brisk enough for all of them.
    assert 60 <= counts["b0"] <= 121


def test_probes_of_sparse_traffic_are_a_tenth_of_it() -> None:
    standings = fleet(3)
    chooser = balancer(standings)
    trip(standings[0])
    counts: Counter[str] = Counter()
    for number in range(200):
        now = (number + 1) * 5 * S
        chosen = chooser.choose(standings, now, Want(tokens=10))
        chosen.breaker.sent(now)
        counts[chosen.name] += 1
    assert counts["b0"] == pytest.approx(200 / PROBE_EVERY, abs=1)


@given(st.lists(st.sampled_from(["breaker", "ejected", "later", "fine"]), min_size=1, max_size=5), st.booleans())
def test_somebody_always_serves(states: list[str], excluded: bool) -> None:
    standings = fleet(len(states))
    for standing, state in zip(standings, states, strict=True):
        if state == "breaker":
            trip(standing)
        elif state == "ejected":
            standing.ejected_until = S
        elif state == "later":
            standing.not_before = S
    chooser = balancer(standings)
    but = standings[:1] if excluded else []
    chosen = chooser.choose(standings, 1, Want(tokens=5), but=but)
    assert chosen in standings
    if len(standings) > 1:
        assert chosen not in but
        others = [s for s in standings if s not in but]
        if any(s.usable(1) for s in others):
            assert chosen.usable(1)
    assert balancer([]).choose([], 0) is None


def test_a_retry_after_of_the_engine_is_obeyed_while_another_can_serve() -> None:
    a, b = fleet(2)
    chooser = balancer([a, b])
    a.leave_alone(7 * S, 0)
    assert {chooser.choose([a, b], now * S // 10, Want(tokens=1)).name for now in range(70)} == {"b1"}
    assert {chooser.choose([a, b], 7 * S, Want(tokens=1)).name for _ in range(50)} == {"b0", "b1"}


def test_an_absurd_retry_after_does_not_cost_the_engine() -> None:
    a, b = fleet(2)
    a.leave_alone(10**21, 5 * S)
    assert not a.usable(5 * S + MOST_ALONE_NS - 1)
    assert a.usable(5 * S + MOST_ALONE_NS)
    assert b.usable(5 * S)


# -- slow start


def test_a_backend_that_comes_back_gets_its_share_slowly() -> None:
    a, b = fleet(2)
    assert a.share(5 * S) == 1.0
    a.came_back(0)
    assert a.share(0) == pytest.approx(COLD)
    assert a.share(5 * S) == pytest.approx((1 + COLD) / 2)
    chooser = balancer([a, b])
    a.came_back(0)
    for _ in range(1000):
        chooser.choose([a, b], S, Want(tokens=10)).took(10)
    assert a.tokens / b.tokens == pytest.approx(a.share(S), rel=0.05)
    assert a.share(10 * S) == 1.0
    assert a.since is None


# -- price


@settings(max_examples=200)
@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=8), st.integers(0, 10**5), st.integers(0, 1000))
def test_the_least_loaded_one_is_chosen(loads: list[int], tokens: int, seed: int) -> None:
    standings = fleet(len(loads))
    for standing, load in zip(standings, loads, strict=True):
        standing.tokens = load
    chosen = balancer(standings, seed=seed).choose(standings, 0, Want(tokens=tokens))
    assert chosen.tokens == min(loads)


def test_even_work_has_no_skew_and_all_on_one_the_most() -> None:
    skew, standings = Skew(), fleet(4)
    skew.sample(standings, 0)
    assert (skew.cv, skew.samples) == (None, 0)  # nothing to share out
    for standing in standings:
        standing.tokens = 50
    skew.sample(standings, 0)
    assert (skew.cv, skew.peak) == (0.0, 1.0)
    lone = Skew()
    for standing in standings[1:]:
        standing.tokens = 0
    lone.sample(standings, 0)
    assert lone.cv == pytest.approx(3**0.5)
    assert lone.peak == pytest.approx(4)
