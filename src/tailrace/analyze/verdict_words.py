"""The verdict of a comparison in sentences, and the number of requests that would decide it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tailrace.analyze.shed import Failures, limit_words
from tailrace.analyze.trade_offs import metric_words, split_name
from tailrace.analyze.verdict import EQUIVALENCE, Headline, equivalent, too_small_for_other_arrivals
from tailrace.analyze.withheld import Withheld
from tailrace.model.measurement import MetricDelta, Verdict
from tailrace.stats.bootstrap import QuantileChange
from tailrace.stats.quantiles import needed, supported

__all__ = [
    "Need",
    "failure_words",
    "fewer_words",
    "in_short",
    "limiting",
    "need_of",
    "quantile_words",
    "trade_words",
    "withheld_words",
]

_HEADS: Final = {
    Verdict.IMPROVED: "Improved",
    Verdict.REGRESSED: "Regressed",
    Verdict.NO_DIFFERENCE: "No difference",
    Verdict.INCONCLUSIVE: "Inconclusive",
}
_SHORT: Final = (0.5, 0.95, 0.99)
_MOST: Final = 10**8
_NAMED_LIMITS: Final = 3


class Need(NamedTuple):
    """Requests a run that would decide, and how many more than the smaller arm has."""

    n: int
    more: int


def limiting(headlines: Sequence[Headline]) -> Headline | None:
    """The headline that keeps a comparison from an answer: the first decisive one that is not shown to be equal."""
    open_ones = [item for item in headlines if item.decisive and not equivalent(item.change)]
    found = open_ones or list(headlines)
    return found[0] if found else None


def need_of(change: QuantileChange) -> Need | None:
    """Requests a run after which a change as large as the one seen (or `EQUIVALENCE`, if that is larger) is found with
    80 % power: the standard error falls with the square root of n. None where it is no matter of n.
    """
    n = min(change.n_a, change.n_b)
    target = max(abs(math.log1p(change.change)) if change.change > -1 else 1.0, math.log1p(EQUIVALENCE))
    factor = (math.log1p(change.detectable) / target) ** 2
    enough = max(math.ceil(n * factor), needed(change.p))
    if enough <= n:
        if too_small_for_other_arrivals(change):
            return None  # more of other arrivals will not decide it; the same arrivals will
        enough = math.ceil(1.25 * n)
    if enough > _MOST:
        return None
    step = 10 ** max(1, len(str(enough)) - 2)
    enough = math.ceil(enough / step) * step
    return Need(enough, max(enough - n, 0))


def in_short(decided_by: str, metrics: Mapping[str, MetricDelta]) -> str:
    """`p50 +33 %, p95 -40 %, p99 -76 %` of the metric that decided; quantiles that n cannot support are left out."""
    scope, metric, _ = split_name(decided_by)
    prefix = f"{scope}/" if scope else ""
    parts = []
    for p in _SHORT:
        delta = metrics.get(f"{prefix}{metric}.p{p * 100:g}")
        if delta is not None and delta.delta_pct is not None and supported(p, min(delta.n_a, delta.n_b)):
            parts.append(f"p{p * 100:g} {delta.delta_pct:+.0f} %")
    return ", ".join(parts)


def _price(verdict: Verdict, decided_by: str, metrics: Mapping[str, MetricDelta]) -> str:
    """`, p50 +33 %`: the medians that moved against the verdict; named, and not fatal."""
    against = Verdict.IMPROVED if verdict is Verdict.REGRESSED else Verdict.REGRESSED
    scope, metric, _ = split_name(decided_by)
    prefix = f"{scope}/" if scope else ""
    for other in dict.fromkeys((metric, "ttft_ms", "e2e_ms")):
        delta = metrics.get(f"{prefix}{other}.p50")
        if delta is not None and delta.verdict is against and delta.delta_pct is not None:
            whose = "" if other == metric else f"{metric_words(other)} "
            return f", {whose}p50 {delta.delta_pct:+.0f} %"
    return ""


def quantile_words(
    verdict: Verdict,
    decided_by: str,
    changes: Mapping[str, QuantileChange],
    metrics: Mapping[str, MetricDelta],
    headlines: Sequence[Headline],
    need: Need | None,
) -> str:
    """The summary where latencies decided (or could not)."""
    if verdict is Verdict.INCONCLUSIVE:
        found = limiting(headlines)
        if found is None:
            return "Inconclusive: too few requests carry the metrics that a verdict rests on."
        change = found.change
        text = (
            f"Inconclusive: {name_words(found.name)} changed by {change.change:+.0%} (95 % interval "
            f"{change.low:+.0%} to {change.high:+.0%}, n = {change.n_a} and {change.n_b}); this run could have seen "
            f"{change.detectable:.0%}."
        )
        return text + _need_words(need, change)
    change = changes[decided_by]
    if verdict is Verdict.NO_DIFFERENCE:
        return (
            f"No difference larger than {change.bound:.1%}: {name_words(decided_by)} is {change.a:.0f} and "
            f"{change.b:.0f} ms ({change.change:+.1%}, 95 % interval {change.low:+.1%} to {change.high:+.1%}, "
            f"n = {change.n_a} and {change.n_b})."
        )
    return (
        f"{_HEADS[verdict]}{_price(verdict, decided_by, metrics)}: {name_words(decided_by)} went from "
        f"{change.a:.0f} to {change.b:.0f} ms ({change.change:+.0%}, 95 % interval {change.low:+.0%} to "
        f"{change.high:+.0%}, n = {change.n_a} and {change.n_b})."
    )


def _need_words(need: Need | None, change: QuantileChange) -> str:
    if need is None:
        if too_small_for_other_arrivals(change):
            return " Other arrivals move a tail by as much: give both runs the same --seed."
        return ""
    seed = "" if change.paired else " (fewer with the same --seed in both)"
    return f" Need {need.more:,} more: about {need.n:,} requests a run would decide it{seed}."


def trade_words(verdict: Verdict, observed: Verdict | None, trade: Sequence[str]) -> str:
    """What follows an open verdict where some waits became shorter and others longer: that is an answer, too."""
    if verdict is not Verdict.INCONCLUSIVE or observed is not None:
        return ""
    fell, rose = ([text for text in trade if f" {way} from" in text.split(",")[0]] for way in ("fell", "rose"))
    if not fell or not rose:
        return ""
    return f" It is a trade: {_until_interval(fell[0])}, {_until_interval(rose[0])}."


def _until_interval(sentence: str) -> str:
    """`TTFT p90 of chat fell from 2424 to 841 ms (-65%)`: a sentence of the trade-offs without its interval."""
    return sentence.partition(", 95 %")[0] + ")"


def withheld_words(why: Withheld, decided_by: str, changes: Mapping[str, QuantileChange]) -> str:
    """The summary where what the latencies say is not told."""
    change = changes.get(decided_by)
    said = "" if change is None else f"{name_words(decided_by)} changed by {change.change:+.0%}, but "
    return f"Inconclusive: {said}{why.why}. {why.remedy}"


def failure_words(failures: Failures, fell: QuantileChange | None, name: str) -> str:
    """The summary where failures rose; `fell` is the headline that fell meanwhile: then load was shed."""
    limits = "; ".join(limit_words(row) for row in [row for row in failures.rows if row.b > row.a][:_NAMED_LIMITS])
    rose = (
        f"{failures.share_b:.1%} of the requests did not complete, against {failures.share_a:.1%} before "
        f"(one-sided p = {failures.p_value:.3g})"
    )
    if fell is not None and failures.shed:
        return (
            f"Regressed: load was shed. {name_words(name)[:1].upper()}{name_words(name)[1:]} fell from {fell.a:.0f} to "
            f"{fell.b:.0f} ms ({fell.change:+.0%}), but {rose}: {limits}. Those that were left answered sooner; that "
            "is no improvement."
        )
    told = f": {limits}" if limits else ""
    return f"Regressed: {rose}{told}; faster answers to the others do not make up for them."


def fewer_words(failures: Failures, p_value: float) -> str:
    """What follows the summary where failures became fewer: latencies alone do not tell it."""
    return (
        f" Fewer requests failed: {failures.share_b:.1%} did not complete, against {failures.share_a:.1%} before "
        f"(one-sided p = {p_value:.3g})."
    )


def name_words(name: str) -> str:
    """`short/ttft_ms.p95` -> `p95 of the TTFT of short requests`."""
    scope, metric, statistic = split_name(name)
    return f"{statistic} of the {metric_words(metric)}" + (f" of {scope} requests" if scope else "")
