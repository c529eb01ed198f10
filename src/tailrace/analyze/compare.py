"""Did the change help? Two arms, every metric with its interval, one verdict. The rules are those of `verdict`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from tailrace.analyze.arms import ArmData, Source, as_arm, pool
from tailrace.analyze.attainment import throughput
from tailrace.analyze.classes import Classes, classify
from tailrace.analyze.comparable import not_comparable, origin_of
from tailrace.analyze.decompose import stage_change
from tailrace.analyze.judged import MIN_N, Judged
from tailrace.analyze.matched import matched_change
from tailrace.analyze.other_changes import other_changes, unknown_conditions
from tailrace.analyze.same_work import same_arrivals, same_work
from tailrace.analyze.shed import Failures, failures_of, limit_words
from tailrace.analyze.trade_offs import latency_trade_offs, matched_trade_off, rate_trade_off
from tailrace.analyze.verdict import Headline, overall, surviving
from tailrace.analyze.verdict_words import (
    failure_words,
    fewer_words,
    in_short,
    limiting,
    need_of,
    quantile_words,
    trade_words,
    withheld_words,
)
from tailrace.analyze.withheld import HIDDEN_SHARE, hidden_stalls, stall_words, withheld
from tailrace.model.measurement import Comparison, RateDelta, Verdict
from tailrace.model.thresholds import Objectives
from tailrace.stats.bootstrap import FEW_BLOCKS
from tailrace.stats.quantiles import needed, supported
from tailrace.store.run_file import Run
from tailrace.store.table import RecordTable

__all__ = ["FAILURES_LEVEL", "HEADLINE_LEVEL", "compare", "prepare"]

_MAX_DROPPED: Final = 0.01
HEADLINE_LEVEL: Final = 0.05
"""False discovery rate of the headline."""
FAILURES_LEVEL: Final = 0.05
"""One-sided level at which failures rose."""
_RATES: Final = (
    ("requests_per_s", "Completed requests per second"),
    ("tokens_per_s", "Output tokens per second"),
    ("goodput_per_s", "Goodput (requests per second within every objective)"),
)


def prepare(source: Source | ArmData | Sequence[Source], name: str, *, dropped: float = 0.0) -> ArmData:
    """One arm, from one run or table or from several runs of it; an arm that is prepared already stays as it is."""
    if isinstance(source, ArmData):
        return source._replace(name=name)
    if isinstance(source, Run | RecordTable):
        return as_arm(source, name, dropped=dropped)
    if not source:
        raise ValueError(f"arm {name} holds no run")
    parts = [as_arm(one, f"{name}{i}", dropped=dropped) for i, one in enumerate(source, start=1)]
    return pool(parts, name, [part.duration_s for part in parts])


def _aligned(a: ArmData, b: ArmData) -> tuple[ArmData, ArmData, bool]:
    """(A, B, whether they replayed the same arrivals), pooled runs laid over each other where they did."""
    ones, others = (a.parts or (a,)), (b.parts or (b,))
    paired = len(ones) == len(others) and all(
        same_arrivals(x.every, y.every) for x, y in zip(ones, others, strict=True)
    )
    if paired and len(ones) > 1:
        spans = [max(x.duration_s, y.duration_s) for x, y in zip(ones, others, strict=True)]
        a, b = pool(ones, a.name, spans), pool(others, b.name, spans)
    return a, b, paired


def compare(
    a: Source | ArmData | Sequence[Source],
    b: Source | ArmData | Sequence[Source],
    *,
    objectives: Objectives | None = None,
    dropped: tuple[float, float] = (0.0, 0.0),
    rng: np.random.Generator | None = None,
    names: tuple[str, str] = ("", ""),
) -> Comparison:
    """Compare B (after) with A (before): runs, tables of records, or several runs of each arm.

    `dropped` is the share of each window's records that were lost (a store's counters); above 1 % there is no
    verdict. `names` are what the arms are called in the result. The answer depends on nothing but its inputs: without
    `rng` a fixed seed is used.
    """
    rng = rng or np.random.default_rng(20)
    one, two, paired = _aligned(prepare(a, "A", dropped=dropped[0]), prepare(b, "B", dropped=dropped[1]))
    arms = (one, two)
    classes = classify(one.every, two.every)
    failures = failures_of(one, two)
    work = same_work(one.every, two.every, classes, rates=(one.request_rate, two.request_rate))
    # Pooled runs replayed the same arrivals if each pair did; their pooled times say less.
    work |= {"arrivals": paired, "same": paired and work["classes"] and work["prompt_tokens"] and work["output_tokens"]}
    changed = other_changes(one, two)
    fell = failures_of(two, one).p_value
    work |= {
        "errors": min(failures.p_value, fell) >= FAILURES_LEVEL / 2,
        "conditions": not changed,
        "changed": changed,
    }
    about = _About(arms, classes, failures, work, names)
    refused = _refusals(arms)
    if refused or not len(one.done) or not len(two.done):
        return about.without_verdict(refused or ["no request completed in one of the runs"])
    apart = not_comparable(arms)
    origin = origin_of(arms)
    judged = Judged(arms, classes, paired=paired, intended=origin.intended, without=apart)
    other_mix = not (work["classes"] and work["prompt_tokens"])
    judged.measure_all(rng, adjust_mix=other_mix)
    headlines = judged.headlines()
    rose, fewer = failures.p_value < FAILURES_LEVEL, fell < FAILURES_LEVEL
    verdict, decided_by = overall(headlines, failures_rose=rose)
    observed = None
    held = None if rose else withheld(verdict, one, two, work)
    found = limiting(headlines)
    need = None
    if rose:
        kept = surviving(headlines)
        better = next((item for item in headlines if kept[item.name] is Verdict.IMPROVED), None)
        summary = failure_words(failures, better.change if better else None, better.name if better else "")
    elif held is not None:
        observed, verdict = verdict, Verdict.INCONCLUSIVE
        summary = withheld_words(held, decided_by, judged.changes)
    else:
        if verdict is Verdict.INCONCLUSIVE and found is not None:
            need = need_of(found.change)
        summary = quantile_words(verdict, decided_by, judged.changes, judged.metrics, headlines, need)
    objectives, yardstick = _objectives(objectives, arms)
    rates = _rates(arms, objectives)
    heavy = frozenset(classes.names) - classes.interactive
    first = headlines[0].change if headlines else None
    deciding = judged.changes.get(decided_by)
    told = decided_by if deciding is not None else (found.name if found is not None else "")
    trade = latency_trade_offs(observed or verdict, judged.metrics, judged.changes, heavy)
    return about.result(
        verdict=verdict,
        summary=summary + (fewer_words(failures, fell) if fewer else "") + trade_words(verdict, observed, trade),
        metrics=judged.metrics,
        trade_offs=[
            *trade,
            *_matched(judged, observed or verdict),
            *(
                text
                for name, what in _RATES
                for text in rate_trade_off(what, rates[name].a, rates[name].b, observed or verdict)
            ),
        ],
        min_detectable_pct=None if first is None else round(first.detectable * 100, 2),
        headline=[item.name for item in headlines],
        mix_within=judged.splits,
        per_stage={
            name: {"a": change.a, "b": change.b, "delta": change.delta, "low": change.low, "high": change.high}
            for name, change in stage_change(one.done, two.done, rng, block_s=first.block_s if first else 10.0).items()
        }
        if "e2e_ms" not in apart and one.run is None and two.run is None
        else {},
        checks=_checks(about, headlines, paired=paired, adjusted=other_mix) + origin.remarks + yardstick,
        in_short=in_short(told, judged.metrics) if told else "",
        equivalence_pct=round(deciding.bound * 100, 2) if verdict is Verdict.NO_DIFFERENCE and deciding else None,
        need_n=None if need is None else need.n,
        need_more=None if need is None else need.more,
        observed=observed,
        origin="intended" if origin.intended else "send",
        not_comparable=apart,
        rates=rates,
        decided_by=decided_by,
        p_value=failures.p_value if rose else (deciding.p_value if deciding is not None else None),
    )


class _About:
    """What is known of two arms before any metric is compared."""

    def __init__(
        self,
        arms: tuple[ArmData, ArmData],
        classes: Classes,
        failures: Failures,
        work: dict[str, Any],
        names: tuple[str, str],
    ) -> None:
        self.arms, self.classes, self.failures, self.work, self.names = arms, classes, failures, work, names

    def result(self, **told: Any) -> Comparison:
        """The comparison with `told` added."""
        one, two = self.arms
        return Comparison(
            same_work=self.work,
            n_a=len(one.every),
            n_b=len(two.every),
            interactive=sorted(self.classes.interactive),
            unknown=unknown_conditions(one, two),
            failures=self.failures.rows,
            failed_share=[round(self.failures.share_a, 6), round(self.failures.share_b, 6)],
            failures_p=self.failures.p_value,
            runs_a=one.runs,
            runs_b=two.runs,
            name_a=self.names[0],
            name_b=self.names[1],
            **told,
        )

    def without_verdict(self, refused: list[str]) -> Comparison:
        """There is no verdict, for these reasons."""
        out = self.result(
            verdict=Verdict.INCONCLUSIVE,
            summary="No verdict: " + "; ".join(refused) + ".",
            metrics={},
            trade_offs=[],
            min_detectable_pct=None,
            refused=refused,
        )
        return msgspec.structs.replace(out, interactive=[])


def _objectives(given: Objectives | None, arms: tuple[ArmData, ArmData]) -> tuple[Objectives, list[str]]:
    """What goodput is judged by in both arms, and a remark where B was measured with other objectives."""
    if given is not None:
        return given, []
    own = [arm.headers[0].objectives if arm.headers else Objectives() for arm in arms]
    remark = "The runs have other objectives: goodput is judged by those of A in both. --objective names others."
    return own[0], [remark] if own[0] != own[1] else []


def _rates(arms: tuple[ArmData, ArmData], objectives: Objectives) -> dict[str, RateDelta]:
    one, two = (throughput(arm.every, objectives, arm.duration_s) for arm in arms)
    out = {}
    for name, _ in _RATES:
        a, b = float(getattr(one, name)), float(getattr(two, name))
        out[name] = RateDelta(a=round(a, 4), b=round(b, 4), delta_pct=round((b / a - 1) * 100, 2) if a else None)
    return out


def _matched(judged: Judged, verdict: Verdict) -> list[str]:
    """Small classes, request by request: those with enough requests have intervals."""
    one, two = judged.arms
    if not judged.paired or one.run is not None:
        return []
    out = []
    for name in judged.classes.names if len(judged.classes.names) > 1 else ():
        for metric in ("ttft_ms", "e2e_ms"):
            if f"{name}/{metric}.p50" not in judged.metrics:
                pairs = matched_change(one.every, two.every, judged.classes, name, metric.removesuffix("_ms"))
                out += matched_trade_off(verdict, name, metric, pairs)
    return out


def _refusals(arms: tuple[ArmData, ArmData]) -> list[str]:
    out = []
    for arm in arms:
        if arm.client.limited:
            out.append(f"client_limited: in run {arm.name} the load generator was the limit ({arm.client.why})")
        if arm.dropped > _MAX_DROPPED:
            out.append(f"run {arm.name} lost {arm.dropped:.1%} of its records; above 1 % no verdict is given")
        if len(arm.done) < MIN_N:
            out.append(
                f"run {arm.name} has {len(arm.done)} completed requests; {MIN_N} are the least that say "
                "anything of more than a median"
            )
    return out


def _checks(about: _About, headlines: list[Headline], *, paired: bool, adjusted: bool) -> list[str]:
    arms, work = about.arms, about.work
    out: list[str] = []
    if paired:
        out.append("Both runs replayed the same arrivals: their blocks of time are compared in pairs.")
    if max(arm.runs for arm in arms) > 1:
        out.append(
            f"A is {arms[0].runs} and B {arms[1].runs} runs: intervals are never narrower than the runs of "
            "an arm differ from each other."
        )
    out += _about_work(about, adjusted=adjusted)
    if headlines and headlines[0].change.blocks < FEW_BLOCKS:
        change = headlines[0].change
        out.append(
            f"The shorter run holds {change.blocks} blocks of {change.block_s:.1f} s (20 would be comfortable): its "
            "interval is widened accordingly."
        )
    if headlines and not supported(0.99, min(headlines[0].change.n_a, headlines[0].change.n_b)):
        n = min(headlines[0].change.n_a, headlines[0].change.n_b)
        count = max(1, math.floor(n * 0.01 + 1e-9))
        out.append(
            f"With {n} requests the p99 rests on {count} sample{'' if count == 1 else 's'}; the verdict is taken at "
            f"p{headlines[0].change.p * 100:g}. {needed(0.99)} requests support the p99."
        )
    return out + _loops(arms, work)


def _about_work(about: _About, *, adjusted: bool) -> list[str]:
    """Work that differs, failures and timelines that are in no percentile."""
    arms, work = about.arms, about.work
    out: list[str] = []
    differs = work["differs"]
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
    if any(arm.failed for arm in arms) and about.failures.p_value >= FAILURES_LEVEL:
        grown = [row for row in about.failures.rows if row.b > row.a]
        if grown:
            out.append(f"Failures did not rise beyond chance; most of them: {limit_words(grown[0])}.")
    return out


def _loops(arms: tuple[ArmData, ArmData], work: dict[str, Any]) -> list[str]:
    """What closed loops do to a comparison."""
    closed = [arm for arm in arms if arm.closed_loop]
    if not closed:
        return []
    out = []
    if len(closed) == 1:
        out.append(
            f"Arm {closed[0].name} is a closed loop, the other one is not: their waits are not of the same kind. "
            "Measure both with --rate."
        )
    else:
        out.append(
            "Closed loops: the load waited whenever the server did, so what users wait while a queue grows is in "
            "neither arm. --rate measures it."
        )
    for arm in closed:
        stall = hidden_stalls(arm)
        if stall.share >= HIDDEN_SHARE:
            words = stall_words(stall)
            out.append(f"In {arm.name} {words}.")
    if not work["output_tokens"]:
        out.append(
            "Closed loop with other output lengths: TTFT depends on them here. Compare at an equal request rate."
        )
    return out
