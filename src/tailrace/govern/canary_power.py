"""What a canary can find, and how long that takes: said before it starts, from the traffic that is declared or seen.

From the same boundary as the tests. A uniform slow-down of ln(1 + effect) is found with the wanted power once
ln(1 + effect) - ln(1 + tolerance) >= (bound + z_power) * spread * sqrt(deff / n), with n = rate * time * share *
(1 - share). Of a slow-down that hits only the slowest s of the requests, all of them lie beyond the stable route's
p99.8 (where it is large enough for that): their number must exceed what the binomial test allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from tailrace.govern.canary_comparison import STEP_ALPHA, WEIGHTS
from tailrace.govern.canary_evidence import BATCHES, FEWEST_BATCHES, pieces_of
from tailrace.govern.canary_policy import CanaryPolicy
from tailrace.model.thresholds import S
from tailrace.stats.sequential import binomial_z, boundary, epoch_alpha, student_t

ASSUMED_SPREAD: Final = 0.6
"""Standard deviation of ln(latency) among like requests, before any was seen."""
ASSUMED_DEFF: Final = 1.25
SLOWEST: Final = 0.02
"""The share of requests that the stated tail effect hits."""
_TAIL: Final = 0.002
_LONGEST_S: Final = 30 * 86_400
_GROWTH: Final = 1.05
_TEN_TIMES: Final = math.log(10.0)


def smallest_shift(
    policy: CanaryPolicy, rate: float, share: float, seconds: float, *, alpha: float, spread: float, deff: float
) -> float | None:
    """The uniform slow-down (relative) that `seconds` of traffic find; None where nothing below 10 x is found."""
    n = rate * seconds * share * (1.0 - share)
    batches = min(float(BATCHES // 2), seconds * S / policy.look_ns)
    if n <= 1.0 or batches < FEWEST_BATCHES:
        return None
    need = student_t(boundary(n, alpha * WEIGHTS["mean"]), pieces_of(batches)) + _deviate(policy.power)
    shift = math.log1p(policy.tolerance) + need * spread * math.sqrt(deff / n)
    return math.expm1(shift) if shift < _TEN_TIMES else None


def time_for_shift(
    policy: CanaryPolicy, rate: float, share: float, effect: float, *, alpha: float, spread: float, deff: float
) -> float | None:
    """Seconds until a uniform slow-down of `effect` (0.3 = 30 %) is found; None beyond a month."""
    for seconds in _times():
        found = smallest_shift(policy, rate, share, seconds, alpha=alpha, spread=spread, deff=deff)
        if found is not None and found <= effect:
            return seconds
    return None


def time_for_tail(
    policy: CanaryPolicy, rate: float, share: float, slowest: float = SLOWEST, *, alpha: float, deff: float
) -> float | None:
    """Seconds until a slow-down of the canary's `slowest` requests alone is found; None beyond a month.

    Assumes that it carries them beyond the stable route's p99.8 (see `tail_factor`).
    """
    odds = (1.0 + policy.tail_tolerance) * share / (1.0 - share)
    due = odds / (1.0 + odds)
    unlucky = _deviate(policy.power)
    for seconds in _times():
        requests = rate * seconds
        n = requests * share * (1.0 - share)
        expected = requests * share * slowest
        events = (expected - unlucky * math.sqrt(expected * deff)) / deff
        total = events + requests * (1.0 - share) * _TAIL / deff
        if events >= 1.0 and binomial_z(math.floor(events), total, due) > boundary(n, alpha * WEIGHTS["p998"]):
            return seconds
    return None


def smallest_traffic(policy: CanaryPolicy, share: float, effect: float) -> float:
    """Requests a second (both routes) with which the first step finds a uniform slow-down of `effect` in its hold.

    With the assumed spread, and enough of them for `min_requests`.
    """
    hold_s = policy.hold_ns / S
    alpha = epoch_alpha(policy.alpha * STEP_ALPHA, 1)
    rate = policy.min_requests / (hold_s * share)
    while rate < 1e7:
        found = smallest_shift(policy, rate, share, hold_s, alpha=alpha, spread=ASSUMED_SPREAD, deff=ASSUMED_DEFF)
        if found is not None and found <= effect:
            return rate
        rate *= _GROWTH
    return rate


def tail_factor(spread: float) -> float:
    """By which factor the slowest 2 % must slow down to lie beyond p99.8, for a lognormal latency."""
    return math.exp(spread * (2.8782 - 2.0537))


def foresee(
    policy: CanaryPolicy, rate: float, share: float, *, epoch: int = 1, spread: float | None, deff: float | None
) -> dict[str, Any]:
    """What the step can find at `rate` requests a second (both routes): plain data, and `text` that says it."""
    alpha = epoch_alpha(policy.alpha * STEP_ALPHA, epoch)
    assumed = spread is None
    spread = ASSUMED_SPREAD if spread is None else spread
    deff = ASSUMED_DEFF if deff is None else deff
    hold_s = policy.hold_ns / S
    out: dict[str, Any] = {
        "requests_per_s": rate,
        "share": share,
        "spread": spread,
        "spread_source": "assumed" if assumed else "measured",
        "design_effect": deff,
    }
    if not 0.0 < share < 1.0 or rate <= 0.0:
        out["text"] = "nothing to compare: one of the routes has no traffic"
        return out
    hold = smallest_shift(policy, rate, share, hold_s, alpha=alpha, spread=spread, deff=deff)
    thirty = time_for_shift(policy, rate, share, 0.30, alpha=alpha, spread=spread, deff=deff)
    tail = time_for_tail(policy, rate, share, alpha=alpha, deff=deff)
    factor = tail_factor(spread)
    out |= {
        "smallest_slowdown_in_hold": hold,
        "uniform_30_pct_s": thirty,
        "slowest_2_pct_s": tail,
        "slowest_2_pct_factor": factor,
        "requests_in_hold": rate * share * hold_s,
        "min_requests_s": policy.min_requests / (rate * share),
    }
    out["text"] = (
        f"at {rate:.3g} requests/s and {share:.0%} of them for the canary: a uniform slow-down of 30 % is found within "
        f"{_lasting(thirty)}, one of only the slowest 2 % (by {factor:.1f} x or more) within {_lasting(tail)}; "
        f"a hold of {_lasting(hold_s)} finds uniform slow-downs from "
        f"{'none below 10 x' if hold is None else f'{hold:.0%}'} (power {policy.power:.0%}, false alarms at most "
        f"{policy.alpha:.2g} in all; spread {spread:.2f} {out['spread_source']})"
    )
    return out


def _deviate(power: float) -> float:
    from scipy.special import ndtri  # noqa: PLC0415

    return float(ndtri(power))


def _times() -> Iterator[float]:
    seconds = 2.0
    while seconds < _LONGEST_S:
        yield seconds
        seconds *= _GROWTH


def _lasting(seconds: float | None) -> str:
    if seconds is None:
        return "no time below 30 days"
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
