"""Repeated runs of two arms in turn: what the rounds agree on.

One run of each arm confounds the change with the hour, the neighbours, and how the server happened to come up
(Zhang et al., "Treadmill", ISCA 2016: restarts of the same program settle on different tails). Each round here is one
run of either arm, next to each other in time; the effect of a round is log(b / a), and the rounds are the sample: mean
and t interval over them. What the order did is the effect of going second; what the day did is the drift.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from tailrace.model.measurement import BenchSummary
from tailrace.stats.quantiles import Floats

__all__ = ["MIN_ROUNDS", "Round", "RoundEffect", "Rounds", "agree_on"]

MIN_ROUNDS: Final = 3
"""With two rounds the t interval is 12.7 standard errors wide: it decides nothing."""
METRICS: Final = ("ttft_ms", "longest_wait_ms", "chunk_gap_ms", "tpot_ms", "e2e_ms")
STATISTICS: Final = ("p50", "p95", "p99")
RATES: Final = ("requests_per_s", "tokens_per_s", "goodput_per_s")
_FLOOR_MS: Final = 1e-3
_INTENDED: Final = "_from_schedule"


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One run of either arm."""

    a: BenchSummary
    b: BenchSummary
    a_first: bool


class RoundEffect(msgspec.Struct, frozen=True, kw_only=True):
    """How a statistic changed from A to B, one value a round, in percent."""

    rounds: list[float]
    mean_pct: float
    ci_pct: list[float | None]
    """95 % t interval over the rounds; `None` with one round."""
    better: int
    """Rounds in which B was lower (of rates: higher)."""
    second_pct: float | None = None
    """What going second in a round did, whichever arm it was: half the difference between the two orders."""
    drift_pct: float | None = None
    """What the time did to both arms, over the whole series."""
    between_runs_pct: float | None = None
    """Standard deviation between runs of the same arm: what one run alone would have been off by."""

    @property
    def excludes_zero(self) -> bool:
        """Whether all of the interval lies on one side."""
        low, high = self.ci_pct
        return low is not None and high is not None and (low > 0.0 or high < 0.0)


class Rounds(msgspec.Struct, frozen=True, kw_only=True):
    """What the rounds of an A/B agree on."""

    n: int
    effects: dict[str, RoundEffect]
    """`ttft_ms.p99`, ..., `tokens_per_s`."""
    warnings: list[str] = []


def agree_on(rounds: Sequence[Round], also: Sequence[str] = ()) -> Rounds:
    """The effect of each statistic that every run can tell (percentiles below their least n are in no run).

    `also` are further ones as a comparison names them: `chat/ttft_from_schedule_ms.p95`.
    """
    effects: dict[str, RoundEffect] = {}
    names = [f"{metric}.{statistic}" for metric in METRICS for statistic in STATISTICS] + list(RATES)
    names += [name for name in also if name not in names]
    for name in names:
        pairs = [(_value(one.a, name), _value(one.b, name)) for one in rounds]
        if not pairs or any(a is None or b is None for a, b in pairs):
            continue
        logs = np.log(np.array([[max(a or 0.0, _FLOOR_MS), max(b or 0.0, _FLOOR_MS)] for a, b in pairs]))
        effects[name] = _effect(logs, np.array([one.a_first for one in rounds]), more_is_better=name in RATES)
    return Rounds(n=len(rounds), effects=effects, warnings=_warnings(effects, len(rounds)))


def _value(summary: BenchSummary, name: str) -> float | None:
    scope, _, plain = name.rpartition("/")
    metric, _, statistic = plain.partition(".")
    if not statistic:
        return float(getattr(summary, metric))
    sent, intended = summary.metrics, summary.from_schedule
    if scope:
        sent, intended = summary.classes.get(scope, {}), summary.classes_from_schedule.get(scope, {})
    # In an open loop the user's clock starts at the intended time. What is named so has no other.
    if _INTENDED in metric:
        metric, sent = metric.replace(_INTENDED, ""), {}
    found = intended.get(metric) or sent.get(metric)
    value: float | None = None if found is None else getattr(found, statistic, None)
    return value


def _effect(logs: Floats, a_first: np.ndarray, *, more_is_better: bool) -> RoundEffect:
    each = logs[:, 1] - logs[:, 0]
    n = each.size
    mean = float(each.mean())
    ci: list[float | None] = [None, None]
    if n > 1:
        from scipy.special import stdtrit  # noqa: PLC0415  (scipy is loaded only where it is used)

        half = float(stdtrit(n - 1, 0.975)) * float(each.std(ddof=1)) / math.sqrt(n)
        ci = [_percent(mean - half), _percent(mean + half)]
    second = drift = spread = None
    if 0 < int(a_first.sum()) < n:
        second = _percent(float(each[a_first].mean() - each[~a_first].mean()) / 2.0)
    if n >= MIN_ROUNDS:
        centred = logs - logs.mean(axis=0)
        place = np.arange(n) - (n - 1) / 2.0
        slope = float((place @ centred.mean(axis=1)) / (place @ place))
        drift = _percent(slope * (n - 1))
        left = centred - slope * place[:, None]
        spread = _percent(float(math.sqrt((left**2).sum() / (2 * (n - 1)))))
    return RoundEffect(
        rounds=[_percent(one) for one in each],
        mean_pct=_percent(mean),
        ci_pct=ci,
        better=int(((each > 0) if more_is_better else (each < 0)).sum()),
        second_pct=second,
        drift_pct=drift,
        between_runs_pct=spread,
    )


def _percent(log: float) -> float:
    return round(math.expm1(log) * 100, 2)


def _warnings(effects: dict[str, RoundEffect], n: int) -> list[str]:
    out = []
    if n < MIN_ROUNDS:
        out.append(f"{n} rounds say nothing about how much runs of the same arm differ; {MIN_ROUNDS} are the least.")
    for name, effect in effects.items():
        if "/" in name or (not name.endswith(".p99") and name not in RATES):
            continue
        if effect.second_pct is not None and abs(effect.second_pct) > max(10.0, abs(effect.mean_pct)):
            out.append(
                f"{name}: whichever arm went second was {effect.second_pct:+.0f} % off, more than the arms differ "
                f"({effect.mean_pct:+.0f} %). A run leaves something behind for the next (a warm cache, a queue): give "
                "--warmup, or a longer --settle."
            )
        if effect.drift_pct is not None and abs(effect.drift_pct) > max(25.0, 2 * abs(effect.mean_pct)):
            out.append(
                f"{name}: both arms drifted by {effect.drift_pct:+.0f} % over the rounds; each round compares "
                "neighbours, so the effect stands, but the levels do not."
            )
    return out
