"""Outlier ejection: a backend that is much slower than its peers at the same work gets nothing for a while.

Compared are logarithms of latencies, within strata of the prompt's length, so that a backend which gets the long
prompts is not taken for a slow one; and a difference must be larger than chance leaves open, so that some slow requests
by luck eject nobody. Gap events (a stream that stood still) count beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from tailrace.govern.standing import Standing
from tailrace.model.thresholds import S

STRATA: Final = 24
"""Prompts of 2^k to 2^(k + 1) tokens are one stratum."""
SURE: Final = 3.0
"""Standard errors by which the difference must exceed the bound's: by luck, one look in 740 on one side."""
LEAST_SPREAD: Final = 0.05
"""Of a logarithm: no latency is known better than to 5 %, however few samples agree."""
LONGEST_NS: Final = 300 * S
GAP_SHARE: Final = 0.05
"""Gap events a request below which nobody is called an outlier: streams of a sound engine stand still now and then."""


class OutlierPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a backend is taken out, for how long, and how many at once."""

    enabled: bool = True
    factor: float = 3.0
    """So many times slower than the others at the same work (geometric mean), or so many times their gap events."""
    requests: int = 20
    """Of it in the window, at least, before it is judged."""
    window_ns: int = 30 * S
    max_ejected: float = 0.34
    """The largest share of the backends that may be out at once, rounded down: one of three, none of two."""
    eject_ns: int = 10 * S
    """The first time; twice as long each time it happens again, up to five minutes."""


class _Sums:
    """Samples of one window half: by stratum n, sum and sum of squares of the logarithm."""

    __slots__ = ("gaps", "requests", "strata")

    def __init__(self) -> None:
        self.strata: dict[int, list[float]] = {}
        self.requests = 0
        self.gaps = 0


class _Watched:
    __slots__ = ("before", "ejections", "half", "now", "streak")

    def __init__(self) -> None:
        self.half = 0
        self.now = _Sums()
        self.before = _Sums()
        self.streak = 0
        """Ejections without a sound spell between them."""
        self.ejections = 0

    def at(self, half: int) -> _Sums:
        if half != self.half:
            self.before = self.now if half == self.half + 1 else _Sums()
            self.now = _Sums()
            self.half = half
        return self.now

    def requests(self) -> int:
        return self.now.requests + self.before.requests

    def gaps(self) -> int:
        return self.now.gaps + self.before.gaps


class Ejection(msgspec.Struct, frozen=True, kw_only=True):
    """One backend was taken out."""

    backend: str
    until: int
    cause: str
    """`ttft`, `tpot` or `gaps`."""
    ratio: float
    """How many times slower than the others it was."""
    n: int
    """Its requests that say so."""


class OutlierWatch:
    """Takes samples as requests end, judges when asked to (once a second is plenty)."""

    def __init__(self, policy: OutlierPolicy) -> None:
        self.policy = policy
        self._watched: dict[str, _Watched] = {}

    def sample(
        self, backend: str, *, prompt_tokens: int, ttft_ns: int | None, tpot_ns: int | None, now: int, gaps: int = 0
    ) -> None:
        """A request of `backend` has ended. `ttft_ns`: send to first token; `None` where there was none."""
        sums = self._of(backend).at(self._half(now))
        sums.requests += 1
        sums.gaps += gaps
        stratum = min(STRATA - 1, max(1, prompt_tokens).bit_length() - 1)
        for offset, value in ((0, ttft_ns), (STRATA, tpot_ns)):
            if value is not None and value > 0:
                _add(sums.strata, stratum + offset, math.log(value))

    def gap(self, backend: str, now: int) -> None:
        """A stream of `backend` stands still: an event of its own, while the request still lives."""
        self._of(backend).at(self._half(now)).gaps += 1

    def ejections(self, backend: str) -> int:
        """How often it was taken out."""
        watched = self._watched.get(backend)
        return 0 if watched is None else watched.ejections

    def judge(self, standings: Sequence[Standing], now: int) -> list[Ejection]:
        """Eject who is to be ejected (`Standing.ejected_until`), take back who has served its time."""
        self._readmit(standings, now)
        if not self.policy.enabled or len(standings) < 2:
            return []
        half = self._half(now)
        for standing in standings:
            self._of(standing.name).at(half)
        room = int(self.policy.max_ejected * len(standings)) - sum(s.ejected_until > now for s in standings)
        judged = [] if room <= 0 else [one for one in self._slowest(standings, now) if one.ratio > 0]
        out: list[Ejection] = []
        for ejection in sorted(judged, key=lambda one: -one.ratio)[:room]:
            watched = self._of(ejection.backend)
            watched.ejections += 1
            length = min(LONGEST_NS, self.policy.eject_ns << min(watched.streak, 10))
            watched.streak += 1
            watched.now, watched.before = _Sums(), _Sums()
            until = now + length
            next(s for s in standings if s.name == ejection.backend).ejected_until = until
            out.append(msgspec.structs.replace(ejection, until=until))
        return out

    def forget(self, backend: str) -> None:
        """It is configured no longer."""
        self._watched.pop(backend, None)

    def _readmit(self, standings: Iterable[Standing], now: int) -> None:
        for standing in standings:
            watched = self._of(standing.name)
            if standing.ejected_until and standing.ejected_until <= now:
                standing.ejected_until = 0
                standing.came_back(now)
            elif watched.streak and not standing.ejected_until and watched.requests() >= self.policy.requests:
                # As many requests as condemn a backend, and they did not: the next time is a first time again.
                watched.streak -= 1

    def _slowest(self, standings: Sequence[Standing], now: int) -> Iterable[Ejection]:
        policy = self.policy
        for standing in standings:
            if standing.ejected_until > now:
                continue
            mine = self._of(standing.name)
            if mine.requests() < policy.requests:
                continue
            others = [self._of(s.name) for s in standings if s is not standing and s.ejected_until <= now]
            for cause, offset in (("ttft", 0), ("tpot", STRATA)):
                found = _slower(mine, others, offset, policy.requests)
                if found is not None and found[0] - SURE * found[1] > 0 and found[0] > math.log(policy.factor):
                    yield Ejection(
                        backend=standing.name, until=0, cause=cause, ratio=math.exp(found[0]), n=mine.requests()
                    )
                    break
            else:
                ratio = _gap_ratio(mine, others)
                if ratio >= policy.factor:
                    yield Ejection(backend=standing.name, until=0, cause="gaps", ratio=ratio, n=mine.requests())

    def _of(self, backend: str) -> _Watched:
        watched = self._watched.get(backend)
        if watched is None:
            watched = self._watched[backend] = _Watched()
        return watched

    def _half(self, now: int) -> int:
        return 2 * now // self.policy.window_ns


def _add(strata: dict[int, list[float]], at: int, value: float) -> None:
    sums = strata.get(at)
    if sums is None:
        strata[at] = [1, value, value * value]
    else:
        sums[0] += 1
        sums[1] += value
        sums[2] += value * value


def _pooled(watched: Iterable[_Watched], at: int) -> tuple[float, float, float]:
    n = total = squares = 0.0
    for one in watched:
        for sums in (one.now.strata.get(at), one.before.strata.get(at)):
            if sums is not None:
                n, total, squares = n + sums[0], total + sums[1], squares + sums[2]
    return n, total, squares


def _slower(mine: _Watched, others: Sequence[_Watched], offset: int, least: int) -> tuple[float, float] | None:
    """(difference of the mean logarithms, its standard error), over the strata that both sides have.

    Strata are weighted by n1 n2 / (n1 + n2), which is what each knows of the difference when their variances are alike.
    """
    total = weights = variance = samples = 0.0
    for stratum in range(offset, offset + STRATA):
        n, own, own_squares = _pooled((mine,), stratum)
        m, other, other_squares = _pooled(others, stratum)
        if n < 1 or m < 1:
            continue
        samples += n
        weight = n * m / (n + m)
        spread = (own_squares - own * own / n) + (other_squares - other * other / m)
        spread = max(spread / max(1.0, n + m - 2), LEAST_SPREAD**2)
        total += weight * (own / n - other / m)
        weights += weight
        variance += weight * weight * spread * (1 / n + 1 / m)
    if samples < least or not weights:
        return None
    return total / weights, math.sqrt(variance) / weights


def _gap_ratio(mine: _Watched, others: Sequence[_Watched]) -> float:
    """Gap events a request, against the others'; 0 where there are too few to say."""
    share = mine.gaps() / mine.requests()
    requests = sum(one.requests() for one in others)
    if share < GAP_SHARE or not requests:
        return 0.0
    rival = max(sum(one.gaps() for one in others) / requests, GAP_SHARE / 10)
    # Two rates of counts differ by luck by about the root of the count.
    excess = mine.gaps() - rival * mine.requests()
    return share / rival if excess > SURE * math.sqrt(max(1.0, mine.gaps())) else 0.0
