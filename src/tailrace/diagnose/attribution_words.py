"""What the attributions say, as a list: the stage first, then the change, then who stops with whom, and whose it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from tailrace.analyze.attribution.mix_split import MixSplit
from tailrace.analyze.decompose import shift_words
from tailrace.diagnose.attribution import SPIKES, Attributed
from tailrace.diagnose.broken_rules import BrokenRules
from tailrace.model.finding import Attribution

__all__ = ["attribution_words"]

_METRICS: Final = {"ttft": "TTFT", "e2e": "E2E", "tpot": "TPOT"}
_WAITS: Final = {
    "queue_engine": "waits in the engine's queue",
    "queue_gateway": "waits in the gateway's queue",
    "queue": "waits in the queue",
    "ttft": "times to first token",
    "failed": "ages at which requests failed",
}
_MOST: Final = 5
"""Rows of one kind that are listed, the most telling."""
_MIN_N: Final = 20


def attribution_words(found: Attributed, broken: BrokenRules | None = None) -> list[Attribution]:
    """Everything that can be said of the evidence; empty with fewer than 20 completed requests."""
    if found.evidence.now.n < _MIN_N:
        return []
    broken = broken or BrokenRules()
    out: list[Attribution] = []
    for kinds in (_stages, _shifts, _splits, _slower, _gaps, _where):
        # What was said before one of them failed is lost with it: each kind is computed as a whole.
        out += broken.ask(f"attribution ({kinds.__name__.strip('_')})", partial(_listed, kinds, found)) or []
    return out


def _listed(kinds: Callable[[Attributed], Iterator[Attribution]], found: Attributed) -> list[Attribution]:
    return list(kinds(found))


def _stages(found: Attributed) -> Iterator[Attribution]:
    for total in ("ttft", "e2e"):
        tail = found.stages(total)
        if tail is None or not tail.leader:
            continue
        parts = found.stage_parts(tail)
        shown = [one for one in parts if one.value > 0.02 * tail.value_ms or one.stage == tail.leader]
        numbers = {"p_ms": tail.value_ms}
        for one in shown:
            numbers |= {one.stage: one.value, f"{one.stage}_low": one.low, f"{one.stage}_high": one.high}
        yield Attribution(
            kind="stage_at_tail",
            text=f"{tail.sentence} By stage: {'; '.join(one.share for one in shown)}.",
            source=f"record: stages of the {tail.rows} requests near p{tail.p * 100:g} of {total}",
            about=tail.leader,
            n=tail.n,
            numbers=_rounded(numbers),
        )


def _shifts(found: Attributed) -> Iterator[Attribution]:
    for total in ("ttft", "e2e"):
        changes = found.shift(total)
        named = [name for name in changes if changes[name].named]
        if not named:
            continue
        numbers: dict[str, float] = {}
        for name in named:
            one = changes[name]
            numbers |= {name: one.delta, f"{name}_low": one.low, f"{name}_high": one.high}
        yield Attribution(
            kind="stage_shift",
            text=f"Against before, the p99 of {_METRICS[total]} moved in: {shift_words(changes)}.",
            source="record: stages near the quantile, both windows",
            about=max(named, key=lambda name: (changes[name].delta, name)),
            n=found.evidence.now.n,
            numbers=_rounded(numbers),
        )


def _splits(found: Attributed) -> Iterator[Attribution]:
    for metric in ("ttft", "e2e"):
        split = found.split(metric)
        if split is None or not split.verdict:
            continue
        yield Attribution(
            kind="mix_within",
            text=split.sentence + _kinds(split),
            source=f"record:{metric}_ns by kind of traffic, both windows",
            about=metric,
            n=split.n_b,
            numbers=_rounded(
                {
                    "a": split.a,
                    "b": split.b,
                    "mix": split.mix.value,
                    "mix_low": split.mix.low,
                    "mix_high": split.mix.high,
                    "within": split.within.value,
                    "within_low": split.within.low,
                    "within_high": split.within.high,
                    "traffic_of_one_window": split.traffic,
                    "mean_a": split.mean_a,
                    "mean_b": split.mean_b,
                }
            ),
        )


def _kinds(split: MixSplit) -> str:
    text = ""
    if split.verdict in ("mix", "both"):
        if split.grown is not None:
            text += f" What grew: {split.grown.name}, {split.grown.share_a:.1%} -> {split.grown.share_b:.1%}."
        if split.new:
            name = max(split.new, key=lambda one: (split.new[one], one))
            text += f" New: {name}, {split.new[name]:.1%} of the requests."
    if split.verdict in ("within", "both") and split.slower is not None:
        part = split.slower.within
        text += f" What slowed: {split.slower.name}, {part.value:+.0f} ms [{part.low:+.0f}, {part.high:+.0f}]."
    return text


def _slower(found: Attributed) -> Iterator[Attribution]:
    for metric in ("ttft", "tpot"):
        rows = found.regressions(metric)
        slower = [row for row in rows if row.slower]
        for row in slower[:_MOST]:
            yield Attribution(
                kind="slower_kind",
                text=f"{_METRICS[metric]} of {row.sentence}; {len(slower)} of {len(rows)} comparisons stand "
                "(Benjamini-Hochberg at 5 %).",
                source=f"record:{metric}_ns by kind, both windows",
                about=row.kind,
                n=row.n_b,
                numbers=_rounded(
                    {"a": row.a, "b": row.b}, change=row.change, low=row.low, high=row.high, p_value=row.p_value
                ),
            )


def _gaps(found: Attributed) -> Iterator[Attribution]:
    gaps = found.gaps
    if gaps is not None and gaps.verdict:
        yield Attribution(
            kind="gaps_together",
            text=gaps.sentence[0].upper() + gaps.sentence[1:],
            source="timeline: stalls of all streams laid beside each other",
            about=gaps.verdict,
            n=gaps.judged,
            numbers=_rounded(
                {"length_ms": gaps.length_ms},
                together=gaps.together,
                alone=gaps.alone,
                chance=gaps.chance,
                common_low=gaps.common_low,
                common_high=gaps.common_high,
            ),
        )
    laid = found.prefills
    if laid is not None and laid.relation is not None and laid.stalling >= 3 and laid.covered_share >= 0.5:
        one = laid.relation
        yield Attribution(
            kind="gap_and_prefill",
            text=f"A stop is as long as a prompt takes to compute: {one.tokens:,.0f} tokens / "
            f"{one.tokens_a_second:,.0f} tokens/s = {one.predicted_ms:,.0f} ms, seen {one.seen_ms:,.0f} ms (median "
            f"error {one.error:.0%} over {one.n} prefills); {laid.covered_share:.0%} of the time stopped lies in "
            f"prefills, {laid.chance_share:.0%} would by chance.",
            source="timeline + record:prompt_tokens",
            about="decode",
            n=one.n,
            numbers=_rounded(
                {"predicted_ms": one.predicted_ms, "seen_ms": one.seen_ms, "tokens_a_second": one.tokens_a_second},
                error=one.error,
                covered_share=laid.covered_share,
                chance_share=laid.chance_share,
            ),
        )
    if found.period is not None:
        yield Attribution(
            kind="period",
            text=f"Streams stop every {found.period.seconds:.3g} s (strength {found.period.strength:.2f} of 1, "
            f"p = {found.period.p_value:.1g}, {found.period.n} stops).",
            source="timeline: moments at which streams stop",
            about="decode",
            n=found.period.n,
            numbers={
                "period_s": round(found.period.seconds, 4),
                "strength": round(found.period.strength, 3),
                "p_value": found.period.p_value,
            },
        )


def _where(found: Attributed) -> Iterator[Attribution]:
    if found.skew is not None:
        yield Attribution(
            kind="replica_skew",
            text=found.skew.sentence[0].upper() + found.skew.sentence[1:],
            source="record:backend, start and end of each request",
            about=found.skew.replicas[0].name,
            n=sum(one.n for one in found.skew.replicas),
            numbers=_rounded(
                {},
                skew=found.skew.skew,
                skew_low=found.skew.low,
                skew_high=found.skew.high,
                token_skew=found.skew.token_skew,
            ),
        )
    seen = set()
    for wait in SPIKES:
        spike = found.spike(wait)
        if spike is None or round(spike.value, 1) in seen:
            continue
        seen.add(round(spike.value, 1))
        like = f", the mark of a timer of {spike.nominal:g} ms" if spike.nominal is not None else ""
        yield Attribution(
            kind="timer",
            text=f"{spike.share:.0%} [{spike.low:.0%}, {spike.high:.0%}] of the {_WAITS[wait]} lie at "
            f"{spike.value:,.1f} ms, where {spike.expected:.1%} would be expected (n = {spike.n}){like}.",
            source=f"record:{wait}_ns" if wait != "failed" else "record:e2e_ns of those that failed",
            about=wait,
            n=spike.n,
            numbers=_rounded({"value_ms": spike.value}, share=spike.share, low=spike.low, high=spike.high),
        )
    for moment in found.moments[:_MOST]:
        yield Attribution(
            kind="moment",
            text=moment.sentence[0].upper() + moment.sentence[1:],
            source=f"record:{moment.metric}_ns over the window",
            about=moment.metric,
            n=len(found.evidence.now.every),
            numbers=_rounded({"at_s": moment.at_s, "before": moment.before, "after": moment.after}),
        )
    for one in [item for item in found.contributions if item.named][:_MOST]:
        yield Attribution(
            kind="contribution",
            text=one.sentence[0].upper() + one.sentence[1:] + ".",
            source=f"record:{one.dimension}",
            about=one.name,
            n=one.n,
            numbers=_rounded({}, tail_share=one.tail_share, low=one.low, high=one.high, traffic=one.traffic_share),
        )


def _rounded(tenths: dict[str, float], **shares: float) -> dict[str, float]:
    """Milliseconds to a tenth, shares and ratios to four places: finer is noise, and depends on the order of sums."""
    return {name: round(value, 1) for name, value in tenths.items()} | {
        name: float(f"{value:.4g}") for name, value in shares.items()
    }
