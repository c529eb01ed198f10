"""A file's thresholds applied to a comparison."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.model.measurement import Comparison, MetricDelta, RateDelta, RuleResult
from tailrace.model.rules import ERROR_RATE, RATES, Rule
from tailrace.stats.quantiles import needed, supported

__all__ = ["apply_rules"]


def apply_rules(comparison: Comparison, rules: Iterable[Rule]) -> list[RuleResult]:
    """One result a rule.

    A limit of B itself (`max`, `min`) is judged by the measured value. A limit of the change is broken where the
    measured change exceeds it and its 95 % interval excludes no change at all; where it does not, nothing is known
    (`passed` is `None`), as where n does not support the quantile. A metric or class that was not measured breaks its
    rule: a gate must not pass because of a slip of the pen.
    """
    return [_apply(comparison, rule) for rule in rules]


def _apply(comparison: Comparison, rule: Rule) -> RuleResult:
    if rule.metric == ERROR_RATE:
        return _error_rate(comparison, rule)
    if rule.metric in RATES:
        return _rate(comparison.rates.get(rule.metric), rule)
    name = f"{rule.scope}/{rule.metric}" if rule.scope else rule.metric
    delta = comparison.metrics.get(name)
    if delta is None or delta.a is None or delta.b is None:
        return _result(rule, passed=False, text=_why_absent(comparison, rule))
    p = float(rule.metric.rpartition(".p")[2]) / 100 if ".p" in rule.metric else 0.0
    if not supported(p, min(delta.n_a, delta.n_b)):
        return _result(
            rule,
            passed=None,
            text=f"{delta.b:,.1f} ms {delta.note or 'rests on too few samples'}: {needed(p)} requests a run support it",
        )
    return _latency(delta, rule)


def _latency(delta: MetricDelta, rule: Rule) -> RuleResult:
    assert delta.a is not None
    assert delta.b is not None
    if rule.kind in ("max", "min"):
        good = delta.b <= rule.amount if rule.kind == "max" else delta.b >= rule.amount
        return _result(rule, passed=good, measured=delta.b, text=f"{delta.b:,.1f} ms")
    change = (delta.delta_pct or 0.0) if rule.unit == "%" else delta.b - delta.a
    sign = 1.0 if rule.kind == "max_increase" else -1.0
    low, high = delta.ci_pct
    interval = "" if low is None or high is None else f", 95 % interval {low:+.1f} to {high:+.1f} %"
    text = f"{delta.a:,.1f} to {delta.b:,.1f} ms ({delta.delta_pct or 0.0:+.1f} %{interval})"
    passed: bool | None = sign * change <= rule.amount
    if not passed and (low is None or high is None or low <= 0.0 <= high):
        passed, text = None, text + ": beyond the limit, and within what chance does"
    return _result(rule, passed=passed, measured=change, text=text)


def _error_rate(comparison: Comparison, rule: Rule) -> RuleResult:
    if len(comparison.failed_share) != 2:
        return _result(rule, passed=False, text="no requests")
    a, b = (100.0 * share for share in comparison.failed_share)
    text = f"{a:.2f} % to {b:.2f} % of the requests"
    if rule.kind in ("max", "min"):
        return _result(rule, passed=b <= rule.amount if rule.kind == "max" else b >= rule.amount, measured=b, text=text)
    change = (b - a) if rule.kind == "max_increase" else a - b
    passed: bool | None = change <= rule.amount
    if not passed and rule.kind == "max_increase" and (comparison.failures_p is None or comparison.failures_p >= 0.05):
        passed, text = None, text + ": beyond the limit, and within what chance does"
    return _result(rule, passed=passed, measured=b - a, text=text)


def _rate(rate: RateDelta | None, rule: Rule) -> RuleResult:
    if rate is None:
        return _result(rule, passed=False, text="it was not measured")
    text = f"{rate.a:,.2f}/s to {rate.b:,.2f}/s"
    if rule.kind in ("max", "min"):
        good = rate.b <= rule.amount if rule.kind == "max" else rate.b >= rule.amount
        return _result(rule, passed=good, measured=rate.b, text=text)
    change = (rate.delta_pct or 0.0) if rule.unit == "%" else rate.b - rate.a
    sign = 1.0 if rule.kind == "max_increase" else -1.0
    return _result(rule, passed=sign * change <= rule.amount, measured=change, text=text)


def _why_absent(comparison: Comparison, rule: Rule) -> str:
    if comparison.refused:
        return "nothing was compared: " + "; ".join(comparison.refused)
    metric = rule.metric.partition(".")[0]
    if metric in comparison.not_comparable:
        return f"not comparable: {comparison.not_comparable[metric]}"
    classes = sorted({name.rpartition("/")[0] for name in comparison.metrics} - {""})
    if rule.scope and rule.scope not in classes:
        return f"there is no class {rule.scope!r}; there are: {', '.join(classes) or 'none'}"
    return "it was not measured in both runs"


def _result(rule: Rule, *, passed: bool | None, text: str, measured: float | None = None) -> RuleResult:
    return RuleResult(
        rule=rule.written,
        passed=passed,
        text=text,
        measured=None if measured is None else round(measured, 4),
        limit=rule.amount,
        unit=rule.unit,
    )
