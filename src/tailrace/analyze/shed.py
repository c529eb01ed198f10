"""Requests that did not complete, in both arms: did they become more, and what ended them?"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.arms import ArmData
from tailrace.analyze.bench_summary import completed
from tailrace.analyze.timebase import starts_ns
from tailrace.model.measurement import FailureDelta
from tailrace.model.outcome import REASON_KIND, OutcomeKind, Reason
from tailrace.stats.clustered import batch_variance, design_effect
from tailrace.stats.tests import two_proportion_p_value
from tailrace.store.table import RecordTable

__all__ = ["Failures", "failures_of", "limit_words"]

_CELLS: Final = 48
"""Stretches of time in which failures are counted, to see whether they come in bursts."""
_FEWEST_OF_A_BURST: Final = 5
_SAME_AGE: Final = 0.05
"""Ages within this share of their median are one timer's."""
_FEWEST_OF_A_TIMER: Final = 3
_CAPS: Final = {
    Reason.QUEUE_FULL: "the limit of the queue",
    Reason.PREDICTED_WAIT: "the limit of the predicted wait",
    Reason.TOKEN_BACKLOG: "the limit of the token backlog",
    Reason.DEGRADED: "the degradation ladder",
    Reason.EVICTED_BY_PRIORITY: "the queue's limit, for others of higher priority",
    Reason.EVICTED: "the limit of the queue",
    Reason.RATE_LIMITED: "a rate limit (429)",
    Reason.INPUT_TOO_LONG: "the limit of the prompt's length",
    Reason.ENGINE_LOADING: "an engine that was loading",
    Reason.NO_BACKEND: "the lack of a backend",
}
_BUDGETS: Final = {
    Reason.QUEUE_TIMEOUT: "queue",
    Reason.ENGINE_QUEUE_TIMEOUT: "engine's queue",
    Reason.ENGINE_RUN_TIMEOUT: "engine's run",
    Reason.FIRST_TOKEN_TIMEOUT: "first_token",
    Reason.IDLE_TIMEOUT: "idle",
    Reason.TOTAL_TIMEOUT: "total",
    Reason.GAP_LIMIT: "gap",
    Reason.SLOW_STREAM: "tokens a second",
    Reason.STAGE_TIMEOUT: "stage",
    Reason.DEADLINE: "deadline",
    Reason.CLIENT_DISCONNECT: "client's patience",
}
_SHEDS: Final = frozenset({OutcomeKind.REJECTED, OutcomeKind.TIMED_OUT, OutcomeKind.CANCELLED})


class Failures(NamedTuple):
    """How the arms' failures compare."""

    share_a: float
    share_b: float
    p_value: float
    """One-sided, of "B fails more often"; failures of one burst count as fewer."""
    rows: list[FailureDelta]
    """By outcome, reason and budget, the one that grew most first."""

    @property
    def shed(self) -> list[FailureDelta]:
        """Those that grew and with which load is shed: refusals, timeouts, clients that left."""
        return [row for row in self.rows if row.b > row.a and OutcomeKind(row.outcome) in _SHEDS]


def failures_of(a: ArmData, b: ArmData) -> Failures:
    """Compare the failures of two arms."""
    n = (len(a.every), len(b.every))
    # Failures come in bursts (a full queue refuses everybody): where both arms show it, as many independent ones as
    # the variance says. An arm that had none has no bursts to excuse the other's.
    effect = 1.0
    if min(a.failed, b.failed) >= _FEWEST_OF_A_BURST:
        effect = max(_burstiness(arm) for arm in (a, b))
    counts = [round(arm.failed / effect) for arm in (a, b)]
    p_value = two_proportion_p_value(counts[0], max(1, round(n[0] / effect)), counts[1], max(1, round(n[1] / effect)))
    tables = [_ended(arm.every) for arm in (a, b)]
    rows = []
    for key in dict.fromkeys((*tables[0], *tables[1])):
        ages = [table.get(key, np.empty(0)) for table in tables]
        told = ages[1] if ages[1].size else ages[0]
        outcome, reason, budget = key
        rows.append(
            FailureDelta(
                outcome=outcome,
                reason=reason,
                budget=budget,
                a=int(ages[0].size),
                b=int(ages[1].size),
                limit_ms=_timer_ms(told)
                if OutcomeKind(outcome) in (OutcomeKind.TIMED_OUT, OutcomeKind.CANCELLED)
                else None,
            )
        )
    rows.sort(key=lambda row: (row.a / max(n[0], 1) - row.b / max(n[1], 1), row.reason))
    return Failures(a.failed / max(n[0], 1), b.failed / max(n[1], 1), p_value, rows)


def _burstiness(arm: ArmData) -> float:
    bad = ~completed(arm.every)
    failed = int(bad.sum())
    if failed < 2 or failed == len(bad):
        return 1.0
    starts = _one_after_the_other(arm)
    span = float(starts.max())
    if span <= 0:
        return 1.0
    cell = np.minimum((starts / span * _CELLS).astype(np.int64), _CELLS - 1)
    share = failed / len(bad)
    influence = np.bincount(cell, weights=bad - share, minlength=_CELLS).astype(np.float64)
    return design_effect(batch_variance(influence), len(bad) * share * (1 - share))


def _one_after_the_other(arm: ArmData) -> NDArray[np.float64]:
    """Starts (ns) of the requests of every run, each run in a stretch of its own: they may have been days apart."""
    out, begin = [], 0.0
    for part in arm.parts or (arm,):
        starts = starts_ns(part.every).astype(np.float64)
        out.append(starts + begin)
        begin += float(starts.max()) if starts.size else 0.0
    return np.concatenate(out)


def _ended(table: RecordTable) -> dict[tuple[str, str, str], NDArray[np.float64]]:
    """(outcome, reason, budget) -> ages (ms) of what did not complete."""
    out: dict[tuple[str, str, str], list[float]] = {}
    ages = table.ms("e2e")
    for i in np.flatnonzero(~completed(table)).tolist():
        key = (str(table.column("outcome")[i]), str(table.column("reason")[i]), str(table.column("budget")[i]))
        out.setdefault(key, []).append(float(ages[i]))
    return {key: np.array(values) for key, values in out.items()}


def _timer_ms(ages: NDArray[np.float64]) -> float | None:
    """The age at which they all ended, where it is one: then a timer ended them."""
    if ages.size < _FEWEST_OF_A_TIMER:
        return None
    middle = float(np.median(ages))
    alike = float((np.abs(ages - middle) <= _SAME_AGE * middle).mean())
    return round(middle, 1) if alike >= 0.9 else None


def limit_words(row: FailureDelta) -> str:
    """What ended them: `124 timed out by the first_token budget of 2 s`, `61 rejected by the limit of the queue`."""
    outcome = row.outcome.replace("_", " ")
    reason = Reason(row.reason) if row.reason in REASON_KIND else None
    if reason is not None and reason in _CAPS:
        by = f"by {_CAPS[reason]}"
    elif row.budget or reason in _BUDGETS:
        budget = row.budget or (_BUDGETS[reason] if reason is not None else "")
        by = f"by the {budget} budget"
        if row.limit_ms is not None:
            by += f" of {_duration(row.limit_ms)}"
    else:
        by = "after " + _duration(row.limit_ms) if row.limit_ms is not None else ""
    told = f" ({row.reason})" if row.reason else ""
    return f"{row.b} {outcome} {by}".rstrip() + told + f", {row.a} before"


def _duration(ms: float) -> str:
    return f"{ms / 1e3:.3g} s" if ms >= 1000 else f"{ms:.3g} ms"
