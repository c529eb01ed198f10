"""Who is much slower than its peers at the same work is taken out; who has the longer prompts, or bad luck, is not."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest

from tailrace.govern.breaker import BreakerPolicy
from tailrace.govern.outlier import OutlierPolicy, OutlierWatch
from tailrace.govern.standing import Standing
from tailrace.model.thresholds import MS, S

POLICY = OutlierPolicy()


class Fleet:
    """Backends with a pace each, in virtual time."""

    def __init__(self, paces: list[float], policy: OutlierPolicy = POLICY, seed: int = 3) -> None:
        self.standings = [Standing(f"b{number}", BreakerPolicy()) for number in range(len(paces))]
        self.paces = paces
        self.watch = OutlierWatch(policy)
        self.random = Random(seed)
        self.now = 0
        self.ejected: list[tuple[int, str, str]] = []

    def request(self, standing: Standing, prompt: int, *, tpot: float = 1.0, gaps: int = 0) -> None:
        pace = self.paces[self.standings.index(standing)]
        noise = math.exp(self.random.gauss(0, 0.5))
        self.watch.sample(
            standing.name,
            prompt_tokens=prompt,
            ttft_ns=round(prompt * 0.2 * MS * pace * noise),
            tpot_ns=round(20 * MS * tpot),
            now=self.now,
            gaps=gaps,
        )

    def run(self, seconds: int, rate: int = 10, prompts: tuple[int, ...] = (50, 200, 2000), **more) -> None:
        for _ in range(seconds):
            self.now += S
            for _ in range(rate):
                able = [s for s in self.standings if s.usable(self.now)] or self.standings
                self.request(self.random.choice(able), self.random.choice(prompts), **more)
            for one in self.watch.judge(self.standings, self.now):
                self.ejected.append((self.now, one.backend, one.cause))
                assert one.until > self.now
                assert one.ratio >= self.watch.policy.factor
                assert one.n >= self.watch.policy.requests


def test_five_times_slower_is_ejected_and_admitted_again() -> None:
    fleet = Fleet([1.0, 1.0, 5.0])
    fleet.run(30)
    assert {(name, cause) for _, name, cause in fleet.ejected} == {("b2", "ttft")}
    first = fleet.ejected[0][0]
    assert first <= 15 * S
    slow = fleet.standings[2]
    fleet.paces[2] = 1.0  # it has recovered
    before = len(fleet.ejected)
    fleet.run(60)
    assert len(fleet.ejected) == before
    assert slow.usable(fleet.now)
    assert slow.ejected_until == 0


def test_it_stays_away_longer_each_time() -> None:
    fleet = Fleet([1.0, 1.0, 6.0])
    fleet.run(120)
    times = [at for at, _, _ in fleet.ejected]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert len(gaps) >= 2
    assert gaps == sorted(gaps)
    assert fleet.watch.ejections("b2") == len(times)


def test_equal_backends_are_never_ejected() -> None:
    for seed in range(10):
        fleet = Fleet([1.0] * 4, seed=seed)
        fleet.run(120)
        assert fleet.ejected == []


def test_a_backend_with_all_the_long_prompts_is_no_outlier() -> None:
    fleet = Fleet([1.0, 1.0, 1.0])
    for _ in range(30):
        fleet.now += S
        for standing in fleet.standings:
            long = standing is fleet.standings[2]
            for _ in range(5):
                fleet.request(standing, 16000 if long else 100)
            fleet.request(standing, 100)
            fleet.request(standing, 16000)
        assert fleet.watch.judge(fleet.standings, fleet.now) == []


@pytest.mark.parametrize(("count", "share", "most"), [(2, 0.34, 0), (3, 0.34, 1), (6, 0.34, 2), (2, 0.5, 1)])
def test_no_more_than_its_share_is_out_at_once(count: int, share: float, most: int) -> None:
    paces = [1.0] + [8.0] * (count - 1) if count == 2 else [1.0] * (count - count // 3) + [8.0] * (count // 3)
    fleet = Fleet(paces, OutlierPolicy(max_ejected=share))
    out = 0
    for _ in range(60):
        fleet.run(1, rate=20)
        out = max(out, sum(s.ejected_until > fleet.now for s in fleet.standings))
    assert out == most


def test_streams_that_stand_still_eject_too() -> None:
    fleet = Fleet([1.0, 1.0, 1.0])
    for _ in range(10):
        fleet.now += S
        for standing in fleet.standings:
            for _ in range(5):
                fleet.request(standing, 100)
        fleet.watch.gap("b1", fleet.now)
        fleet.watch.gap("b1", fleet.now)
        if found := fleet.watch.judge(fleet.standings, fleet.now):
            assert [(one.backend, one.cause) for one in found] == [("b1", "gaps")]
            break
    else:
        pytest.fail("never ejected")


def test_a_lone_backend_and_a_switched_off_watch_eject_nobody() -> None:
    fleet = Fleet([9.0])
    fleet.run(30)
    off = Fleet([1.0, 1.0, 9.0], OutlierPolicy(enabled=False))
    off.run(30)
    assert fleet.ejected == off.ejected == []


def test_too_few_requests_say_nothing() -> None:
    fleet = Fleet([1.0, 1.0, 9.0])
    for _ in range(POLICY.requests - 1):
        for standing in fleet.standings:
            fleet.request(standing, 100)
    assert fleet.watch.judge(fleet.standings, fleet.now) == []
