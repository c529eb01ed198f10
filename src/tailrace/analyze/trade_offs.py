"""Trade-offs as sentences: what the change cost, or bought, besides what the verdict says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tailrace.analyze.matched import Matched
from tailrace.model.measurement import MetricDelta, Verdict
from tailrace.stats.bootstrap import QuantileChange
from tailrace.stats.quantiles import supported
from tailrace.stats.tests import benjamini_hochberg

__all__ = ["latency_trade_offs", "matched_trade_off", "metric_words", "rate_trade_off", "split_name"]

_WORDS: Final = {
    "longest_wait_ms": "longest wait",
    "ttft_ms": "TTFT",
    "longest_gap_ms": "longest gap",
    "chunk_gap_ms": "chunk gap",
    "tpot_ms": "TPOT",
    "e2e_ms": "E2E",
    "longest_wait_from_schedule_ms": "longest wait from the schedule",
    "ttft_from_schedule_ms": "TTFT from the schedule",
    "e2e_from_schedule_ms": "E2E from the schedule",
}
MATCHED_CHANGE: Final = 0.05
RATE_CHANGE: Final = 0.02
"""A throughput that moved by less than this share is the same."""


def split_name(name: str) -> tuple[str, str, str]:
    """`long/ttft_ms.p95` -> (`long`, `ttft_ms`, `p95`); the class is empty for all requests."""
    scope, _, rest = name.rpartition("/")
    metric, _, statistic = rest.partition(".")
    return scope, metric, statistic


def metric_words(metric: str) -> str:
    """`ttft_ms` -> `TTFT`; a name without words of its own is told as it is."""
    return _WORDS.get(metric, metric.removesuffix("_ms").replace("_", " "))


def latency_trade_offs(
    verdict: Verdict,
    metrics: Mapping[str, MetricDelta],
    changes: Mapping[str, QuantileChange],
    heavy: frozenset[str],
) -> list[str]:
    """Every metric that moved against the verdict, one sentence a class and metric, the largest move first.

    Only changes whose interval excludes 0, that exceed the tolerance and survive Benjamini-Hochberg over everything
    that was compared. Where a lower quantile moved one way and a higher one the other, the sentence names both. Where
    the verdict is open, nothing moved with it: both sides of the trade are told.
    """
    names = list(changes)
    kept = dict(zip(names, benjamini_hochberg([changes[name].p_value for name in names]), strict=True))
    moved = {Verdict.IMPROVED: (Verdict.REGRESSED,), Verdict.REGRESSED: (Verdict.IMPROVED,)}
    sides = moved.get(verdict, (Verdict.IMPROVED, Verdict.REGRESSED))
    return [text for side in sides for text in _one_side(side, metrics, changes, kept, heavy)]


def _one_side(
    against: Verdict,
    metrics: Mapping[str, MetricDelta],
    changes: Mapping[str, QuantileChange],
    kept: Mapping[str, bool],
    heavy: frozenset[str],
) -> list[str]:
    opposite = Verdict.REGRESSED if against is Verdict.IMPROVED else Verdict.IMPROVED
    # A p99 that rests on one request is no price that anybody can name.
    names = [name for name, one in changes.items() if supported(one.p, min(one.n_a, one.n_b))]
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        if kept[name] and metrics[name].verdict is against:
            scope, metric, _ = split_name(name)
            groups.setdefault((scope, metric), []).append(name)
    scopes = {scope for scope, _ in groups}
    out: list[tuple[float, str]] = []
    for (scope, metric), found in groups.items():
        if not scope and any(other for other in scopes if (other, metric) in groups):
            continue  # told by the class that it comes from
        if metric.startswith("longest_wait") and {(scope, "ttft_ms"), (scope, "longest_gap_ms")} & set(groups):
            continue  # told by the part that it is
        if (scope, metric.replace("_ms", "_from_schedule_ms")) in groups:
            continue  # told from the schedule
        top = max(found, key=lambda name: changes[name].p)
        text = _moved(top, changes[top], heavy)
        higher = [
            name
            for name in names
            if split_name(name)[:2] == (scope, metric)
            and changes[name].p > changes[top].p
            and kept[name]
            and metrics[name].verdict is opposite
        ]
        if higher:
            peak = changes[max(higher, key=lambda name: changes[name].p)]
            way = "fell" if peak.change < 0 else "rose"
            text += f", while its p{peak.p * 100:g} {way} from {peak.a:.0f} to {peak.b:.0f} ms"
        size = abs(changes[top].b - changes[top].a)
        out.append((size, text + "."))
    return [text for _, text in sorted(out, key=lambda item: -item[0])]


def _moved(name: str, change: QuantileChange, heavy: frozenset[str]) -> str:
    scope, metric, statistic = split_name(name)
    whose = f" of {scope}" + (" (long prompts)" if scope in heavy else "") if scope else ""
    way = "rose" if change.change > 0 else "fell"
    return (
        f"{metric_words(metric)} {statistic}{whose} {way} from {change.a:.0f} to {change.b:.0f} ms "
        f"({change.change:+.0%}, 95 % interval {change.low:+.0%} to {change.high:+.0%}, "
        f"n = {change.n_a} and {change.n_b})"
    )


def matched_trade_off(verdict: Verdict, scope: str, metric: str, matched: Matched | None) -> list[str]:
    """One sentence if the requests of a small class moved against the verdict: sign test at 5 %, medians above 5 %."""
    if matched is None or matched.p_value >= 0.05 or not matched.a:
        return []
    change = matched.b / matched.a - 1.0
    if abs(change) <= MATCHED_CHANGE or (change > 0) is (verdict is Verdict.REGRESSED):
        return []
    way, count = ("rose", matched.rose) if change > 0 else ("fell", matched.fell)
    text = (
        f"{_WORDS[metric]} of {scope} {way} for {count} of {matched.n} requests, each against itself: median "
        f"{matched.a:.0f} to {matched.b:.0f} ms ({change:+.0%}, sign test p = {matched.p_value:.2g})."
    )
    return [text]


def rate_trade_off(what: str, a: float, b: float, verdict: Verdict) -> Sequence[str]:
    """One sentence if a rate moved by more than `RATE_CHANGE` against the verdict (down, unless it regressed)."""
    if not a:
        return ()
    change = b / a - 1.0
    if abs(change) <= RATE_CHANGE or (change > 0) is not (verdict is Verdict.REGRESSED):
        return ()
    return (f"{what} {'rose' if change > 0 else 'fell'} from {a:.1f} to {b:.1f} ({change:+.1%}).",)
