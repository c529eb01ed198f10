"""The search for the highest load that meets objectives, as a state machine: it asks for trials and is told of them.

First the load is doubled until a trial misses; then loads on both sides of the best guess are tried until each side is
proven, and the wider side is halved. A load is *met* or *missed* only when its requests prove it: with m misses of n
requests, d of which count as one (their design effect: misses come in bursts), the share of misses is bounded by the
Clopper-Pearson limits

    low  = I^-1(a; m/d, n/d - m/d + 1)          high = I^-1(1 - a; m/d + 1, n/d - m/d)

at a = (1 - confidence) / LOOKS, and an objective "a share p within the bound" is met where high <= 1 - p, missed where
low > 1 - p. Neither: *undecided*; the requests of a repeated trial are pooled. Each of at most LOOKS looks may be wrong
with chance a, so all of them together are right with the confidence asked for, and the boundary lies between the
highest load that was proven to meet and the lowest that was proven to miss (what misses, misses at any higher load).
What no trial could decide stays inside the interval.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tailrace.stats.clustered import batch_variance, design_effect

Floats = NDArray[np.float64]

__all__ = ["LOOKS", "Found", "Outcome", "RateSearch", "Standing", "Trial", "miss_limits", "outcome_of"]

LOOKS: Final = 16
"""Looks that share the chance of being wrong. A search takes no more."""
_FEWEST: Final = 60
"""Requests of a trial, however low the quantile."""
_DOUBLING_S: Final = 10.0
"""The length of a trial while the load is still doubled; it is repeated when it decides nothing."""
_REPEATS: Final = 3
_BLOCKS: Final = 48
_EXCEEDING: Final = 30
_MOST_EFFECT: Final = 12.0
_OUTWARD: Final = 4
"""Steps from the guess to a load that can be decided: 10, 22, 48 and 118 % for a precision of 5 %."""
_SETTLED_S: Final = 20.0
"""The shortest trial that may prove something, where answers are quick. It is at least ten answers long."""


class Standing(StrEnum):
    """What is proven of a load."""

    MET = "met"
    MISSED = "missed"
    UNDECIDED = "undecided"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one trial said of one objective."""

    n: int
    misses: int
    effect: float = 1.0
    """How many requests count as one where they are to prove that enough of them kept the bound."""
    burst: float = 1.0
    """How many misses count as one where they are to prove that too many missed it."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Measure this load for so long."""

    value: float
    seconds: float


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: the boundary is between `low` and `high` with this confidence; `None`: there is no such bound."""

    value: float | None
    """The best guess: where the share of misses crosses what is allowed. Inside the interval."""
    low: float | None
    """The highest load that was proven to meet every objective."""
    high: float | None
    """The lowest load that was proven to miss one."""
    confidence: float
    trials: int
    requests: int
    why: str
    """Why the search ended."""


def miss_limits(n: float, misses: float, alpha: float) -> tuple[float, float]:
    """One-sided Clopper-Pearson limits of a share, each wrong with chance `alpha` at most; counts may be fractions."""
    from scipy.special import betaincinv  # noqa: PLC0415  (scipy is loaded only where it is used)

    if n <= 0:
        return 0.0, 1.0
    low = 0.0 if misses <= 0 else float(betaincinv(misses, n - misses + 1, alpha))
    high = 1.0 if misses >= n else float(betaincinv(misses + 1, n - misses, 1 - alpha))
    return low, high


def outcome_of(waits: Floats, bound: float, p: float) -> Outcome:
    """What a run says of "a share `p` within `bound`", from each request's wait in the order in which they were sent.

    A request that failed waits for ever (infinite), and so misses. Misses come in bursts, and a run without one says
    nothing about them: so the design effect is taken from the run's own exceedances of a threshold that enough of its
    requests exceed. Bursts above a lower threshold are longer, so that errs on the careful side.
    """
    n = int(waits.size)
    missed = waits > bound
    burst = _effect(missed) if n >= 2 * _BLOCKS else 1.0
    effect = 1.0
    if n >= 2 * _BLOCKS:
        level = min(p, 1 - _EXCEEDING / n) if n > 2 * _EXCEEDING else 0.5
        own = waits > np.partition(waits, min(n - 1, int(level * n)))[min(n - 1, int(level * n))]
        effect = max(_effect(own), burst if missed.sum() >= _EXCEEDING else 1.0)
    return Outcome(n=n, misses=int(missed.sum()), effect=effect, burst=burst)


def _effect(marks: NDArray[np.bool_]) -> float:
    """How much wider the error of the share of marks is, squared, than independent ones would make it."""
    n, count = int(marks.size), int(marks.sum())
    if count in (0, n):
        return 1.0
    share = count / n
    influence = np.array([float(block.sum()) - share * block.size for block in np.array_split(marks, _BLOCKS)])
    return design_effect(batch_variance(influence), n * share * (1 - share))


class _Load:
    """What is known of one load."""

    def __init__(self) -> None:
        self.parts: list[list[Outcome]] = []
        self.standing = Standing.UNDECIDED
        self.seconds = 0.0

    def pooled(self) -> list[Outcome]:
        """One outcome an objective, its effect the worst that any trial showed."""
        return [
            Outcome(
                n=sum(one.n for one in ones),
                misses=sum(one.misses for one in ones),
                effect=max(one.effect for one in ones),
                burst=max(one.burst for one in ones),
            )
            for ones in zip(*self.parts, strict=True)
        ]


class RateSearch:
    """Asks for trials by `next`, is told by `take`, and says by `found` what it knows."""

    def __init__(
        self,
        shares: Sequence[float],
        *,
        start: float = 1.0,
        most: float = math.inf,
        budget_s: float = 300.0,
        precision: float = 0.05,
        whole: bool = False,
        confidence: float = 0.95,
    ) -> None:
        """`shares` are those of the requests that must keep each bound (0.99); `whole`: loads are whole numbers."""
        if not shares or not all(0 < p < 1 for p in shares):
            raise ValueError("a search needs shares between 0 and 1")
        self.shares = list(shares)
        self.alpha = (1 - confidence) / LOOKS
        self.confidence = confidence
        self.precision = precision
        self.whole = whole
        self.most = most
        self.left_s = budget_s
        self.trials = self.looks = self.requests = 0
        self.why = ""
        self._loads: dict[float, _Load] = {}
        self._start = start
        self._failed = [0, 0]
        self._per_s: dict[float, float] = {}
        self.settled_s = _SETTLED_S
        """The shortest trial between a load that looks met and one that does not."""
        # Without a miss, n requests prove p where (p)^n <= a.
        self.needed = max(_FEWEST, *(math.ceil(math.log(self.alpha) / math.log(p)) for p in self.shares))

    # -- what is known

    @property
    def low(self) -> float | None:
        """The highest load proven to meet, below every one proven to miss."""
        high = self.high
        return max(
            (v for v, one in self._loads.items() if one.standing is Standing.MET and (high is None or v < high)),
            default=None,
        )

    @property
    def high(self) -> float | None:
        """The lowest load proven to miss."""
        return min((v for v, one in self._loads.items() if one.standing is Standing.MISSED), default=None)

    def standing(self, value: float) -> Standing | None:
        """What is proven of a load; `None` where it was not tried."""
        known = self._loads.get(value)
        return None if known is None else known.standing

    def looks_met(self, value: float) -> bool:
        """Whether no objective has more misses than it allows, proven or not."""
        return all(
            one.misses <= one.n * (1 - p) + 1e-9
            for one, p in zip(self._loads[value].pooled(), self.shares, strict=True)
        )

    # -- the machine

    def take(self, trial: Trial, outcomes: Sequence[Outcome], seconds: float) -> Standing:
        """Take what a trial gave and how long it took in all (s). Says what is now proven of its load."""
        known = self._loads.setdefault(trial.value, _Load())
        known.parts.append(list(outcomes))
        known.seconds += trial.seconds
        self.trials += 1
        self.looks += 1
        self.requests += max((one.n for one in outcomes), default=0)
        self.left_s -= seconds
        self._per_s[trial.value] = max(one.n for one in outcomes) / max(trial.seconds, 1e-9)
        standings = [self._judge(one, p) for one, p in zip(known.pooled(), self.shares, strict=True)]
        if Standing.MISSED in standings:
            known.standing = Standing.MISSED
        elif all(one is Standing.MET for one in standings):
            known.standing = Standing.MET
        else:
            known.standing = Standing.UNDECIDED
        return known.standing

    def _judge(self, one: Outcome, p: float) -> Standing:
        if miss_limits(one.n / one.effect, one.misses / one.effect, self.alpha)[1] <= 1 - p:
            return Standing.MET
        low = miss_limits(one.n / one.burst, one.misses / one.burst, self.alpha)[0]
        return Standing.MISSED if low > 1 - p else Standing.UNDECIDED

    def next(self) -> Trial | None:
        """The next trial, or `None` at the end; `why` then says why it is the end."""
        if self.looks >= LOOKS:
            self.why = f"{LOOKS} trials were made, among which the chance of being wrong is shared"
            return None
        value = self._choose()
        if value is None:
            return None
        seconds = self._seconds(value)
        if seconds > self.left_s:
            self.why = "the time was up"
            return None
        return Trial(value=value, seconds=seconds)

    def _choose(self) -> float | None:
        if not self._loads:
            return self._round(self._start)
        top = max(self._loads)
        if all(self.looks_met(value) for value in self._loads):
            if top < self.most:
                return self._round(min(self.most, top * 2))
            return self._prove_alone(top, "the highest load that may be tried meets the objectives")
        guess = self._crossing(None, None)
        if guess is None:
            bottom = min(self._loads)
            lower = self._round(bottom / 2)
            if lower < bottom and bottom > self._start / 100:
                return lower
            return self._prove_alone(bottom, "even the lowest load that was tried misses")
        return self._prove(guess)

    def _prove_alone(self, value: float, why: str) -> float | None:
        known = self._loads[value]
        if known.standing is Standing.UNDECIDED and len(known.parts) < _REPEATS:
            return value
        self.why = why
        return None

    def _prove(self, guess: float) -> float | None:
        """A load on that side of the guess whose bound is further away, or not there yet."""
        low, high = self.low, self.high
        below = math.inf if low is None else guess / low
        above = math.inf if high is None else high / guess
        if low is not None and high is not None:
            if high - low <= 1 if self.whole else high / low <= 1 + self.precision:
                self.why = "the interval is as narrow as was asked"
                return None
            if below >= above:
                return self._between(low, guess, high)
            return self._between(guess, high, high)
        # One side after the other, further away after each failure; then the middle of what is left is asked.
        if min(self._failed) >= _OUTWARD or max(self._failed) >= 2 * _OUTWARD:
            self.why = "nothing could be decided on one side of the guess"
            return None
        if low is None and (high is not None or self._failed[0] <= self._failed[1]):
            self._failed[0] += 1
            return self._round(guess / (1 + self.precision) ** (2 ** self._failed[0]))
        self._failed[1] += 1
        return min(self.most, self._round(guess * (1 + self.precision) ** (2 ** self._failed[1])))

    def _between(self, near: float, far: float, high: float) -> float:
        value = self._round(math.sqrt(near * far))
        if self.whole and value in (self.low, self.high):
            value = min(value + 1, high - 1)
        return value

    def _seconds(self, value: float) -> float:
        """How long the trial is: short while the load is doubled, then long enough for a proof of this load."""
        per_s = self._expected_per_s(value)
        if all(self.looks_met(one) for one in self._loads) and value not in self._loads:
            wanted = _DOUBLING_S if self.whole else max(_DOUBLING_S, _FEWEST / 2 / per_s)
            return min(wanted, max(_DOUBLING_S / 2, self.left_s / 6))
        # Misses come in bursts, and a burst proves little more than one of them: what is known of bursts nearby says
        # how many requests a proof takes.
        nearest = min(self._loads, key=lambda other: abs(math.log(other / value)))
        worth = min(_MOST_EFFECT, max(one.effect for one in self._loads[nearest].pooled()))
        wanted = max(self.settled_s, self.needed * worth / per_s)
        known = self._loads.get(value)
        if known is not None:
            wanted = max(wanted, known.seconds)
        # What time there is beyond that makes each of the remaining looks a longer one.
        wanted = max(wanted, 0.5 * self.left_s / max(1, LOOKS - self.looks))
        # With less time than that it is tried for half as long: far from the boundary that is enough.
        return max(self.settled_s, wanted if wanted <= self.left_s / 2 else wanted / 2)

    def _expected_per_s(self, value: float) -> float:
        if not self.whole:
            return value
        if not self._per_s:
            return max(1.0, value)
        nearest = min(self._per_s, key=lambda other: abs(math.log(other / value)))
        return max(0.1, self._per_s[nearest])

    def _round(self, value: float) -> float:
        return float(max(1, round(value))) if self.whole else float(f"{value:.4g}")

    # -- the answer

    def found(self) -> Found:
        """What is known now."""
        low, high = self.low, self.high
        return Found(
            value=self._crossing(low, high),
            low=low,
            high=high,
            confidence=self.confidence,
            trials=self.trials,
            requests=self.requests,
            why=self.why,
        )

    def _crossing(self, low: float | None, high: float | None) -> float | None:
        """Where the misses, made monotone (pooled adjacent violators), cross what is allowed; within the interval."""
        guesses = [self._crossing_of(i, p) for i, p in enumerate(self.shares)]
        known = [one for one in guesses if one is not None]
        if not known:
            return low
        value = min(known)
        if low is not None:
            value = max(value, low)
        return value if high is None else min(value, high)

    def _crossing_of(self, i: int, p: float) -> float | None:
        values = sorted(self._loads)
        pools: list[list[Any]] = []
        for value in values:
            one = self._loads[value].pooled()[i]
            pools.append([one.misses, one.n, [value]])
            while len(pools) > 1 and pools[-2][0] * pools[-1][1] > pools[-1][0] * pools[-2][1]:
                misses, n, merged = pools.pop()
                pools[-1] = [pools[-1][0] + misses, pools[-1][1] + n, pools[-1][2] + merged]
        shares = [(at, misses / n) for misses, n, merged in pools if n for at in merged]
        for (a, x), (b, y) in itertools.pairwise(shares):
            if x <= 1 - p < y:
                along = ((1 - p) - x) / (y - x)
                return float(a * (b / a) ** along)
        return None if not shares or shares[0][1] > 1 - p else shares[-1][0]

    def describe(self) -> list[dict[str, Any]]:
        """Every load that was tried, for a table or a file."""
        return [
            {
                "value": value,
                "standing": one.standing.value,
                "trials": len(one.parts),
                "objectives": [
                    {"n": each.n, "misses": each.misses, "effect": round(each.effect, 2)} for each in one.pooled()
                ],
            }
            for value, one in sorted(self._loads.items())
        ]
