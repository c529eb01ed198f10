"""Is anything wrong at all? Objectives missed, streams that stutter, requests that fail, a window worse than before."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.analyze.compare import compare
from tailrace.analyze.labels import among
from tailrace.analyze.objective_waits import objective_ms
from tailrace.diagnose.blocks_of_time import grown, in_order
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.window import Window
from tailrace.model.measurement import Comparison, Verdict
from tailrace.stats.quantiles import median, quantile, quantile_interval, supported
from tailrace.stats.tests import binomial_tail

__all__ = [
    "Missed",
    "Symptom",
    "application_symptoms",
    "metric_name",
    "missed_objectives",
    "more_often_than",
    "rows_of",
    "stutter_is_told",
    "stutters",
    "symptoms",
]

_WORDS: Final = {"ttft": "TTFT", "tpot": "TPOT", "chunk_gap": "longest chunk gap", "e2e": "E2E"}
Floats = NDArray[np.float64]
STUTTER_MS: Final = 500.0
STUTTER_FACTOR: Final = 10.0
STUTTER_SHARE: Final = 0.01
PAUSE_MS: Final = 250.0
PAUSE_SHARE: Final = 0.10
FAILED_SHARE: Final = 0.01
MOVED: Final = 1.10
DOUBTLESS: Final = 3.3
"""Standard errors beyond which a rise of the deciding metric is no chance: one of two thousand windows has it, and a
comparison decides by the worst of a few metrics."""
IN_BLOCKS: Final = 0.0003
"""Chance of blocks of time to show a rise of one quantile that its intervals show as well; eight are asked."""
_DEVIATE: Final = 1.96
"""The normal deviate of a 95 % interval."""


class Missed(NamedTuple):
    """An objective that is missed by more requests than it allows."""

    metric: str
    """`ttft`, `tpot`, ..., without the lane."""
    lane: str
    """Whose it is; empty for all interactive requests."""
    p: float
    bound_ms: float
    over: int
    n: int
    seen_ms: float
    """The metric at `p` as it was seen; below the support of `p`, the largest value."""

    @property
    def times(self) -> float:
        """How many times as many requests are over it as it allows."""
        return self.over / max(self.n * (1.0 - self.p), 1e-9)


class Symptom(NamedTuple):
    """Something that a user would complain about."""

    kind: str
    """`objective`, `stutter`, `failures`, `budget`; beside a window from before `worse` or `fails_more`; or `moved`:
    noticed only beside that window, and nothing by itself."""
    text: str
    objective: Missed | None = None
    """Of the kind `objective`: which one."""
    doubtless: bool = False
    """Of the kinds `worse` and `moved`: the change is so large that two windows of one system hardly ever differ so."""
    rise_ms: float = 0.0
    """Of a doubtless one: by how much the deciding metric rose (ms); 0 where it has no value."""


def more_often_than(count: int, n: int, share: float) -> bool:
    """Whether `count` of `n` is significantly more than `share`: P(X >= count | n, share) < 5 %, exact binomial.

    It works for any n, so an objective at p99 can be judged where no p99 can be shown.
    """
    return count > 0 and n > 0 and count > share * n and (share <= 0.0 or binomial_tail(count, n, share) < 0.05)


def symptoms(evidence: EvidenceSet) -> list[Symptom]:
    """Everything that is wrong with the window, worst kind first. Objectives bind interactive requests, and every
    lane that has one of its own.
    """
    window = evidence.now
    out = [*_objectives(evidence, window), *_stutter(window)]
    failed = len(window.every) - window.n
    if more_often_than(failed, len(window.every), FAILED_SHARE):
        out.append(Symptom("failures", f"{failed} of {len(window.every)} requests did not complete"))
    if not out and evidence.before is not None and (moved := _moved(evidence.before, window)) is not None:
        out.append(moved)
    if evidence.before_table is not None:
        change = compare(evidence.before_table, evidence.table, objectives=evidence.objectives)
        # A window that got worse under a heavier load is worse all the same; why is what the causes are asked.
        worse = Verdict.REGRESSED in (change.verdict, change.observed)
        if worse or _mix_made_it_worse(evidence):
            # What only fails more often is no slower: the causes that end requests are asked for.
            kind = "fails_more" if worse and change.decided_by == "failures" else "worse"
            doubtless = change.verdict is Verdict.REGRESSED and _deviates(change) >= DOUBTLESS
            rise = _rise_ms(change) if doubtless else 0.0
            out.append(Symptom(kind, f"worse than before: {change.summary}", doubtless=doubtless, rise_ms=rise))
    return out


def _deviates(change: Comparison) -> float:
    """By how many standard errors the deciding metric rose, from its 95 % interval on a scale of ratios; 0 where it has
    none.
    """
    decided = change.metrics.get(change.decided_by)
    if decided is None or decided.delta_pct is None or not decided.ci_pct or decided.ci_pct[0] is None:
        return 0.0
    rise, least = (math.log1p(max(percent, -99.0) / 100.0) for percent in (decided.delta_pct, decided.ci_pct[0]))
    return _DEVIATE * rise / max(rise - least, 1e-9)


def _rise_ms(change: Comparison) -> float:
    """By how much the metric that decides rose (ms); 0 where it has no value."""
    decided = change.metrics.get(change.decided_by)
    if decided is None or decided.a is None or decided.b is None:
        return 0.0
    return max(decided.b - decided.a, 0.0)


def _moved(before: Window, window: Window) -> Symptom | None:
    """A p50, p95 or p99 that rose by a tenth and whose 95 % interval lies above that of before.

    Several windows of one system differ so in one of twenty cases: by itself it is no complaint. It is beyond doubt
    where blocks of time show it too: more of their requests are above the old p95 or p99.
    """
    first: Symptom | None = None
    for metric, word in (("ttft", "TTFT"), ("tpot", "TPOT"), ("chunk_gap_max", "longest gap"), ("e2e", "E2E")):
        old, new = (in_order(side, side.done.ms(metric)) for side in (before, window))
        old, new = old[~np.isnan(old)], new[~np.isnan(new)]
        for p in (0.5, 0.95, 0.99):
            if not supported(p, min(old.size, new.size)):
                continue
            high, low = quantile_interval(old, p)[1], quantile_interval(new, p)[0]
            a, b = quantile(old, p), quantile(new, p)
            if metric == "chunk_gap_max" and b < window.stall_ms:
                continue  # nobody sees a gap that short
            if high is None or low is None or low <= high or b <= MOVED * a:
                continue
            text = f"{word} p{p * 100:g} went from {a:.0f} to {b:.0f} ms"
            if p > 0.5 and grown((old > a).astype(np.float64), (new > a).astype(np.float64), IN_BLOCKS):
                return Symptom("moved", text, doubtless=True, rise_ms=b - a)
            first = first or Symptom("moved", text)
    return first


def application_symptoms(evidence: EvidenceSet, *, at_least: int) -> list[Symptom]:
    """What is wrong with the requests of the services before the gateway, where so many of them were reported."""
    window = evidence.application
    out = []
    if window.n >= at_least:
        if more_often_than(window.failed, window.n, FAILED_SHARE):
            where, count = window.most_died_in
            out.append(
                Symptom(
                    "failures",
                    f"{window.failed} of {window.n} requests of the service did not complete, {count} of them ended in "
                    f"{where}",
                )
            )
        over = sum(map(bool, window.overrun))
        if more_often_than(over, window.n, FAILED_SHARE):
            out.append(Symptom("budget", f"{over} of {window.n} requests of the service overran a stage's budget"))
    return out


def _mix_made_it_worse(evidence: EvidenceSet) -> bool:
    """A comparison weighs the change of traffic away; the users feel it all the same."""
    before, now = evidence.before, evidence.now
    assert before is not None
    for metric in ("ttft", "e2e"):
        a, b = (side.done.ms(metric) for side in (before, now))
        a, b = a[~np.isnan(a)], b[~np.isnan(b)]
        if min(a.size, b.size) >= 100:
            p = 0.99 if supported(0.99, min(a.size, b.size)) else 0.95
            bound = quantile(a, p)
            if quantile(b, p) > 1.2 * bound and more_often_than(int((b > bound).sum()), b.size, 1.5 * (1 - p)):
                return True
    return False


def metric_name(metric: str) -> str:
    """A metric as people write it: `TTFT`."""
    return _WORDS.get(metric, metric)


def missed_objectives(evidence: EvidenceSet) -> list[Missed]:
    """The objectives that the window breaks, the one that most requests miss (for what it allows) first."""
    missed = [one.objective for one in _objectives(evidence, evidence.now) if one.objective is not None]
    return sorted(missed, key=lambda one: -one.times)


def rows_of(evidence: EvidenceSet, window: Window, metric: str) -> tuple[str, str, NDArray[np.bool_]]:
    """(metric, whose it is in words, rows of `done` that an objective on it binds)."""
    lane, _, name = metric.rpartition("/")
    if lane:
        return name, f" of lane {lane}", (window.done.column("lane") == lane).astype(bool)
    own = {key.rpartition("/")[0] for key in evidence.objectives.bounds if key.endswith(f"/{name}")}
    return name, "", window.interactive & ~among(window.done.column("lane"), own) if own else window.interactive


def _objectives(evidence: EvidenceSet, window: Window) -> list[Symptom]:
    out = []
    for metric, bounds in evidence.objectives.bounds.items():
        name, whose, rows = rows_of(evidence, window, metric)
        values = objective_ms(window.done, name)
        values = values[rows & ~np.isnan(values)]
        for p, bound_ns in sorted(bounds.items()):
            bound = bound_ns / 1e6
            over = int((values > bound).sum())
            if more_often_than(over, values.size, 1.0 - p):
                out.append(
                    Symptom(
                        "objective",
                        f"{metric_name(name)}{whose} is over {bound:.0f} ms for {over} of {values.size} requests "
                        f"({over / values.size:.1%}; the objective at p{p * 100:g} allows {1 - p:.1%})",
                        Missed(
                            name,
                            metric.rpartition("/")[0],
                            p,
                            bound,
                            over,
                            int(values.size),
                            float(quantile(values, p) if supported(p, int(values.size)) else values.max()),
                        ),
                    )
                )
    return out


def stutters(window: Window) -> bool:
    """Whether more streams stop than anybody would bear."""
    return bool(_stutter(window))


def stutter_is_told(window: Window) -> bool:
    """Whether the records say of any stream how long it stood still, and what is usual."""
    return bool(_longest_gaps(window).size) and not np.isnan(_usual_gap_ms(window))


def _longest_gaps(window: Window) -> Floats:
    longest = window.done.ms("chunk_gap_max")
    return longest[window.interactive & ~np.isnan(longest)]


def _usual_gap_ms(window: Window) -> float:
    """The median gap; where nobody kept any, the time per token stands in."""
    if not np.isnan(window.median_gap_ms):
        return window.median_gap_ms
    pace = window.done.ms("tpot")
    pace = pace[window.interactive & ~np.isnan(pace)]
    return median(pace) if pace.size else float("nan")


def _stutter(window: Window) -> list[Symptom]:
    if not stutter_is_told(window):
        return []
    longest, usual = _longest_gaps(window), _usual_gap_ms(window)
    for floor, share in ((STUTTER_MS, STUTTER_SHARE), (PAUSE_MS, PAUSE_SHARE)):
        bound = max(floor, STUTTER_FACTOR * usual)
        count = int((longest > bound).sum())
        if more_often_than(count, longest.size, share):
            return [
                Symptom(
                    "stutter",
                    f"{count} of {longest.size} streams stop for more than {bound:.0f} ms (usual gap {usual:.0f} ms)",
                )
            ]
    return []
