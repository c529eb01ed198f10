"""A comparison as JUnit test cases: the verdict, the rules, and each headline statistic."""

from __future__ import annotations

from pathlib import Path

from tailrace.export.junit import Case, junit
from tailrace.model.errors import InputError
from tailrace.model.measurement import Comparison, ComparisonSet, MetricDelta, RuleResult, Verdict

__all__ = ["comparison_cases", "render_junit", "write_junit"]


def write_junit(path: str, result: Comparison | ComparisonSet, *, fail_on_inconclusive: bool = False) -> None:
    """Write the file. InputError where that place cannot be written."""
    try:
        Path(path).write_bytes(render_junit(result, fail_on_inconclusive=fail_on_inconclusive))
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror or error}", place=path, remedy="Give --junit another path."
        ) from None


def render_junit(result: Comparison | ComparisonSet, *, fail_on_inconclusive: bool = False) -> bytes:
    """The whole file. What fails: a verdict that is `regressed`, a headline that got worse, a broken rule."""
    if isinstance(result, Comparison):
        return junit("compare", comparison_cases(result, fail_on_inconclusive=fail_on_inconclusive))
    cases = []
    for name, one in result.comparisons.items():
        cases += [
            case._replace(name=f"{name}: {case.name}")
            for case in comparison_cases(one, fail_on_inconclusive=fail_on_inconclusive)
        ]
    return junit("compare", cases)


def comparison_cases(result: Comparison, *, fail_on_inconclusive: bool = False) -> list[Case]:
    """The verdict first, then what it rests on. A headline got worse without the verdict doing so: a trade-off."""
    text = "\n".join([result.summary, *result.trade_offs, *result.checks])
    if result.refused:
        first = Case("verdict", text, error="; ".join(result.refused))
    elif result.verdict is Verdict.REGRESSED:
        first = Case("verdict", text, failure=result.summary)
    elif result.verdict is Verdict.INCONCLUSIVE:
        why = result.summary
        first = Case("verdict", text, failure=why) if fail_on_inconclusive else Case("verdict", text, skipped=why)
    else:
        first = Case("verdict", text)
    return [
        first,
        *(_rule(one) for one in result.rules),
        *(_headline(name, result.metrics[name], result) for name in result.headline),
    ]


def _rule(one: RuleResult) -> Case:
    if one.passed is None:
        return Case(f"rule {one.rule}", error=f"cannot be decided: {one.text}")
    return Case(f"rule {one.rule}", one.text) if one.passed else Case(f"rule {one.rule}", failure=one.text)


def _headline(name: str, delta: MetricDelta, result: Comparison) -> Case:
    words = _words(delta)
    if delta.verdict is Verdict.REGRESSED:
        if result.verdict is Verdict.IMPROVED:
            return Case(name, f"a price of the improvement: {words}")
        return Case(name, failure=words)
    if delta.verdict is Verdict.INCONCLUSIVE:
        return Case(name, skipped=words)
    return Case(name, words)


def _words(delta: MetricDelta) -> str:
    def ms(value: float | None) -> str:
        return "unknown" if value is None else f"{value:,.1f} ms"

    change = "" if delta.delta_pct is None else f" ({delta.delta_pct:+.1f} %)"
    low, high = delta.ci_pct
    interval = "" if low is None or high is None else f", 95 % interval {low:+.1f} to {high:+.1f} %"
    verdict = str(delta.verdict).replace("_", " ")
    return f"{verdict}: {ms(delta.a)} to {ms(delta.b)}{change}{interval}, n = {delta.n_a} and {delta.n_b}"
