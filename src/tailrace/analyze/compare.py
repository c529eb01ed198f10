"""Did the change help? Two arms, every metric with its interval, one verdict. The rules are those of `verdict`."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from tailrace.analyze.arms import ArmData, as_arm
from tailrace.analyze.bench_summary import summarise
from tailrace.analyze.classes import classify
from tailrace.analyze.decompose import stage_change
from tailrace.analyze.judged import MIN_N, Judged
from tailrace.analyze.matched import matched_change
from tailrace.analyze.same_work import same_work
from tailrace.analyze.trade_offs import latency_trade_offs, matched_trade_off, rate_trade_off, split_name
from tailrace.analyze.verdict import Headline, overall
from tailrace.model.measurement import Comparison, Verdict
from tailrace.model.thresholds import Objectives
from tailrace.stats.bootstrap import FEW_BLOCKS
from tailrace.stats.quantiles import needed
from tailrace.stats.tests import two_proportion_p_value
from tailrace.store.run_file import Run
from tailrace.store.table import RecordTable

__all__ = ["compare"]

_MAX_DROPPED: Final = 0.01


def compare(
    a: Run | RecordTable,
    b: Run | RecordTable,
    *,
    objectives: Objectives | None = None,
    dropped: tuple[float, float] = (0.0, 0.0),
    rng: np.random.Generator | None = None,
) -> Comparison:
    """Compare run B (after) with run A (before).

    `dropped` is the share of each window's records that were lost (a store's counters); above 1 % there is no
    verdict. The answer depends on nothing but its inputs: without `rng` a fixed seed is used.
    """
    rng = rng or np.random.default_rng(20)
    arms = (as_arm(a, "A", dropped=dropped[0]), as_arm(b, "B", dropped=dropped[1]))
    classes = classify(arms[0].every, arms[1].every)
    work = same_work(arms[0].every, arms[1].every, classes)
    refused = _refusals(arms)
    if refused or not len(arms[0].done) or not len(arms[1].done):
        return _without_verdict(arms, work, refused or ["no request completed in one of the runs"])
    judged = Judged(arms, classes, paired=bool(work["arrivals"]))
    other_mix = not (work["classes"] and work["prompt_tokens"])
    judged.measure_all(rng, adjust_mix=other_mix)
    headlines = judged.headlines()
    guard_p = two_proportion_p_value(arms[0].failed, len(arms[0].every), arms[1].failed, len(arms[1].every))
    verdict, decided_by = overall(headlines, failures_rose=guard_p < 0.05)
    summaries = [summarise(arm.every, objectives=objectives, duration_s=arm.duration_s) for arm in arms]
    heavy = frozenset(classes.names) - classes.interactive
    trade_offs = latency_trade_offs(verdict, judged.metrics, judged.changes, heavy)
    if judged.paired:
        for name in classes.names:
            for metric in ("ttft_ms", "e2e_ms"):
                # Classes with enough requests have intervals; the small ones are matched request by request.
                if len(classes.names) > 1 and f"{name}/{metric}.p50" not in judged.metrics:
                    pairs = matched_change(arms[0].every, arms[1].every, classes, name, metric.removesuffix("_ms"))
                    trade_offs += matched_trade_off(verdict, name, metric, pairs)
    for what, field in (
        ("Completed requests per second", "requests_per_s"),
        ("Output tokens per second", "tokens_per_s"),
        ("Goodput (requests per second within every objective)", "goodput_per_s"),
    ):
        before, after = (float(getattr(summary, field)) for summary in summaries)
        trade_offs += rate_trade_off(what, before, after, verdict)
    first = headlines[0].change if headlines else None
    return Comparison(
        verdict=verdict,
        summary=_summary(verdict, decided_by, judged, arms, headlines, guard_p),
        metrics=judged.metrics,
        same_work=work,
        trade_offs=trade_offs,
        min_detectable_pct=None if first is None else round(first.detectable * 100, 2),
        n_a=len(arms[0].every),
        n_b=len(arms[1].every),
        headline=[item.name for item in headlines],
        interactive=sorted(classes.interactive),
        mix_within=judged.splits,
        per_stage={
            name: {"a": change.a, "b": change.b, "delta": change.delta, "low": change.low, "high": change.high}
            for name, change in stage_change(
                arms[0].done, arms[1].done, rng, block_s=first.block_s if first else 10.0
            ).items()
        },
        checks=_checks(arms, work, headlines, paired=judged.paired, adjusted=other_mix),
    )


def _refusals(arms: tuple[ArmData, ArmData]) -> list[str]:
    out = []
    for arm in arms:
        if arm.client.limited:
            out.append(f"client_limited: in run {arm.name} the load generator was the limit ({arm.client.why})")
        if arm.dropped > _MAX_DROPPED:
            out.append(f"run {arm.name} lost {arm.dropped:.1%} of its records; above 1 % no verdict is given")
        if len(arm.done) < MIN_N:
            out.append(f"run {arm.name} has {len(arm.done)} completed requests; {MIN_N} are the least")
    return out


def _without_verdict(arms: tuple[ArmData, ArmData], work: dict[str, object], refused: list[str]) -> Comparison:
    return Comparison(
        verdict=Verdict.INCONCLUSIVE,
        summary="No verdict: " + "; ".join(refused) + ".",
        metrics={},
        same_work=work,
        trade_offs=[],
        min_detectable_pct=None,
        n_a=len(arms[0].every),
        n_b=len(arms[1].every),
        refused=refused,
    )


def _checks(
    arms: tuple[ArmData, ArmData], work: dict[str, object], headlines: list[Headline], *, paired: bool, adjusted: bool
) -> list[str]:
    out = []
    if paired:
        out.append("Both runs replayed the same arrivals: their blocks of time are compared in pairs.")
    differs = work["differs"]
    assert isinstance(differs, list)
    if differs:
        weighted = " Latencies of B are weighted to the traffic of A." if adjusted else ""
        out.append("Not the same work: " + "; ".join(differs) + "." + weighted)
    for arm in arms:
        if arm.failed > 0.01 * len(arm.every):
            out.append(
                f"{arm.failed} of {len(arm.every)} requests of run {arm.name} did not complete and are in no latency "
                "percentile; the slowest may be among them."
            )
        if arm.gaps.rows < len(arm.done):
            out.append(
                f"Run {arm.name} kept {arm.gaps.rows} timelines of {len(arm.done)} requests; chunk gaps are theirs."
            )
    if headlines and headlines[0].change.blocks < FEW_BLOCKS:
        change = headlines[0].change
        out.append(
            f"The shorter run holds {change.blocks} blocks of {change.block_s:.1f} s (20 would be comfortable): its "
            "interval is widened accordingly."
        )
    if headlines and headlines[0].change.p < 0.99:
        n = min(headlines[0].change.n_a, headlines[0].change.n_b)
        out.append(
            f"With {n} requests the p99 rests on {max(1, math.floor(n * 0.01))}; the verdict is taken at "
            f"p{headlines[0].change.p * 100:g}. {needed(0.99)} requests support the p99."
        )
    if any(arm.closed_loop for arm in arms) and not work["output_tokens"]:
        out.append(
            "Closed loop with other output lengths: TTFT depends on them here. Compare at an equal request rate."
        )
    return out


def _summary(
    verdict: Verdict,
    decided_by: str,
    judged: Judged,
    arms: tuple[ArmData, ArmData],
    headlines: list[Headline],
    guard_p: float,
) -> str:
    if decided_by == "failures":
        rates = [arm.failed / len(arm.every) for arm in arms]
        return (
            f"Regressed: {rates[1]:.1%} of the requests did not complete, against {rates[0]:.1%} before "
            f"(one-sided p = {guard_p:.3g}); faster answers to the others do not make up for them."
        )
    if verdict is Verdict.INCONCLUSIVE:
        if not headlines:
            return "Inconclusive: too few requests carry the metrics that a verdict rests on."
        change = headlines[0].change
        factor = (change.detectable / max(abs(change.change), 1e-3)) ** 2
        n = math.ceil(min(change.n_a, change.n_b) * factor / 100) * 100
        more = f" About {n:,} requests a run would decide a change of this size." if factor > 1 and n < 10**7 else ""
        return (
            f"Inconclusive: {_words(headlines[0].name)} changed by {change.change:+.0%} (95 % interval "
            f"{change.low:+.0%} to {change.high:+.0%}); this run could have seen {change.detectable:.0%}.{more}"
        )
    change = judged.changes[decided_by]
    head = {
        Verdict.IMPROVED: "Improved",
        Verdict.REGRESSED: "Regressed",
        Verdict.NO_DIFFERENCE: "No difference",
    }[verdict]
    return (
        f"{head}: {_words(decided_by)} went from {change.a:.0f} to {change.b:.0f} ms ({change.change:+.0%}, 95 % "
        f"interval {change.low:+.0%} to {change.high:+.0%}, n = {change.n_a} and {change.n_b})."
    )


def _words(name: str) -> str:
    scope, metric, statistic = split_name(name)
    metric_words = metric.removesuffix("_ms").replace("_", " ").replace("ttft", "TTFT").replace("e2e", "E2E")
    return f"{statistic} of the {metric_words}" + (f" of {scope} requests" if scope else "")
