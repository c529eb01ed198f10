"""Comparing where one side is only a summary: which percentiles both have, by how much they differ, and no verdict.

An interval needs the requests. Without one nobody can tell a change from noise, so the answer is always inconclusive;
what can be said is said, and what cannot be compared is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from tailrace.analyze.aggregate import Aggregate
from tailrace.analyze.bench_summary import completed, measured, summarise, summarise_run
from tailrace.analyze.common_ground import on_common_ground
from tailrace.analyze.compare import compare
from tailrace.analyze.gaps import pooled_gaps
from tailrace.model.errors import InputError
from tailrace.model.measurement import BenchSummary, Comparison, MetricDelta, MetricSummary, Verdict
from tailrace.model.thresholds import Objectives
from tailrace.stats.quantiles import needed, supported
from tailrace.store.run_file import Run, RunHeader
from tailrace.store.table import RecordTable

__all__ = ["Side", "compare_any", "compare_summaries"]

Side = Run | RecordTable | Aggregate
_STATISTICS: Final = ("mean", "p50", "p90", "p95", "p99", "p999", "max")
_QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
_SHOWN: Final = ("ttft_ms", "ttft_content_ms", "chunk_gap_ms", "itl_ms", "tpot_ms", "e2e_ms", "e2e_last_token_ms")
_NAMES: Final = {"p999": "p99.9"}


def compare_any(
    a: Side | Sequence[Side],
    b: Side | Sequence[Side],
    *,
    objectives: Objectives | None = None,
    dropped: tuple[float, float] = (0.0, 0.0),
    rng: np.random.Generator | None = None,
    names: tuple[str, str] = ("", ""),
) -> Comparison:
    """Compare B with A, whatever they are: requests by `compare`, on common ground; else by their summaries.

    InputError where an arm joins percentiles with other runs: nothing can be pooled without the requests.
    """
    arms = [[one] if isinstance(one, Run | RecordTable | Aggregate) else list(one) for one in (a, b)]
    if any(isinstance(one, Aggregate) for arm in arms for one in arm):
        for arm in arms:
            if len(arm) > 1:
                raise InputError(
                    "percentiles cannot be joined with other runs",
                    place=", ".join(one.path for one in arm if isinstance(one, Aggregate)) or names[0],
                    remedy="Compare one result with one.",
                )
        return msgspec.structs.replace(compare_summaries(arms[0][0], arms[1][0]), name_a=names[0], name_b=names[1])
    plain = [[one for one in arm if not isinstance(one, Aggregate)] for arm in arms]
    one, two, notes = on_common_ground(*plain)
    result = compare(one, two, objectives=objectives, dropped=dropped, rng=rng, names=names)
    return msgspec.structs.replace(result, checks=[*notes, *result.checks]) if notes else result


def compare_summaries(a: Side, b: Side) -> Comparison:
    """The statistics that both sides have, and their change. Never a verdict, never an interval."""
    (one, of_a), (two, of_b) = _summary(a), _summary(b)
    metrics: dict[str, MetricDelta] = {}
    missing: list[str] = []
    compared: dict[str, list[str]] = {}
    for name in _SHOWN:
        left, right = one.metrics.get(name), two.metrics.get(name)
        lacks = [arm for arm, side in (("A", left), ("B", right)) if side is None or not _has_any(side)]
        if len(lacks) == 1:
            missing.append(f"{name.removesuffix('_ms')} (not in {lacks[0]})")
        if lacks or left is None or right is None:
            continue
        for statistic in _STATISTICS:
            before, after = getattr(left, statistic), getattr(right, statistic)
            if before is None or after is None:
                continue
            compared.setdefault(name, []).append(_NAMES.get(statistic, statistic))
            metrics[f"{name}.{_NAMES.get(statistic, statistic)}"] = MetricDelta(
                a=round(before, 4),
                b=round(after, 4),
                delta_pct=round((after / before - 1) * 100, 2) if before > 0 else None,
                ci_pct=[None, None],
                n_a=left.n,
                n_b=right.n,
            )
    told = "; ".join(f"{name.removesuffix('_ms')} {', '.join(which)}" for name, which in compared.items())
    no_interval = "Without the requests there is no interval: a difference here may be noise."
    checks = [f"Compared: {told}. {no_interval}" if told else "No statistic is in both."]
    if missing:
        checks.append("Cannot be compared: " + "; ".join(missing) + ".")
    checks += _too_few(one, two, compared)
    for arm, summary, header in (("A", one, of_a), ("B", two, of_b)):
        if summary.errors:
            why = ", ".join(f"{reason} {n}" for reason, n in summary.errors.items())
            checks.append(f"Failed in {arm}: {why} of {summary.n}; they are in no percentile.")
        checks += [f"{arm} ({header.source}): {note}." for note in header.notes] if header else []
    which = " and ".join(arm for arm, side in (("A", a), ("B", b)) if isinstance(side, Aggregate))
    reason = f"{which} holds percentiles only, and intervals need the requests"
    return Comparison(
        verdict=Verdict.INCONCLUSIVE,
        summary=f"No verdict: {reason}.",
        metrics=metrics,
        same_work=_same_work(one, two, of_a, of_b),
        trade_offs=[],
        min_detectable_pct=None,
        n_a=one.n,
        n_b=two.n,
        refused=[reason],
        checks=checks,
    )


def _has_any(metric: MetricSummary) -> bool:
    return any(getattr(metric, name) is not None for name in _STATISTICS)


def _summary(side: Side) -> tuple[BenchSummary, RunHeader | None]:
    if isinstance(side, Aggregate):
        return side.summary, side.header
    if isinstance(side, Run):
        return _with_rare(summarise_run(side), side.table()), side.header
    return _with_rare(summarise(side), side), None


def _with_rare(summary: BenchSummary, table: RecordTable) -> BenchSummary:
    """With the percentiles that our rule leaves out for want of requests: the other side has them as well, and what
    they rest on is said beside them.
    """
    done = measured(table)
    done = done.where(completed(done))
    metrics = dict(summary.metrics)
    for name in _SHOWN:
        one = metrics.get(name)
        if one is None or not one.n or name == "itl_ms":
            continue
        if name == "chunk_gap_ms":
            values = pooled_gaps(done, np.arange(len(done))).ms
        else:
            values = done.ms(name.removesuffix("_ms"))
        values = values[~np.isnan(values)]
        missing = {key: p for key, p in _QUANTILES.items() if getattr(one, key) is None}
        if values.size and missing:
            found = {key: float(np.quantile(values, p)) for key, p in missing.items()}
            metrics[name] = msgspec.structs.replace(one, **found)
    return msgspec.structs.replace(summary, metrics=metrics)


def _too_few(one: BenchSummary, two: BenchSummary, compared: dict[str, list[str]]) -> list[str]:
    """Other tools print a p99 of ten requests: it is shown as theirs, with what it rests on."""
    n = min(one.n, two.n)
    shown = {name for which in compared.values() for name in which}
    weak = [name for name, p in _QUANTILES.items() if _NAMES.get(name, name) in shown and n and not supported(p, n)]
    if not weak:
        return []
    least = _QUANTILES[weak[0]]
    names = ", ".join(_NAMES.get(name, name) for name in weak)
    support = f"{needed(least)} support the {_NAMES.get(weak[0], weak[0])}"
    return [f"Few of the {n} requests lie beyond {names} ({support})."]


def _same_work(
    one: BenchSummary, two: BenchSummary, of_a: RunHeader | None, of_b: RunHeader | None
) -> dict[str, object]:
    differs = []
    rates = (one.requests_per_s, two.requests_per_s)
    if rates[0] and rates[1] and abs(rates[1] / rates[0] - 1) > 0.05:
        differs.append(f"{rates[0]:.2f} requests/s were done in A and {rates[1]:.2f} in B")
    if of_a is not None and of_b is not None:
        left, right = of_a.arrival, of_b.arrival
        if left.concurrency and right.concurrency and left.concurrency != right.concurrency:
            differs.append(f"at most {left.concurrency} at once in A, {right.concurrency} in B")
        if left.rate and right.rate and abs(right.rate / left.rate - 1) > 0.01:
            differs.append(f"asked for {left.rate:g} requests/s in A, {right.rate:g} in B")
        if of_a.source != of_b.source:
            differs.append(f"measured by {of_a.source} in A and {of_b.source} in B")
    # What was sent cannot be seen in a summary: "same" would be a claim.
    return {"same": None, "n_a": one.n, "n_b": two.n, "rate_a": rates[0], "rate_b": rates[1], "differs": differs}
