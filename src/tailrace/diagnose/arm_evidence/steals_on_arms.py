"""Decoding that stands still while a prompt is computed, from tables, forms and printed benchmarks."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arm_evidence.steals_by_chunk import RATE, steals_by_chunk
from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import TAIL_FIRST, as_share, figure, number_stated
from tailrace.diagnose.arms.pairs import sweep
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting, number, quantity
from tailrace.diagnose.cause import surest
from tailrace.diagnose.kv_cache import KV_FULL
from tailrace.diagnose.observed import Arm, Observed, Quoted, Setting
from tailrace.diagnose.observed.vocabulary import in_unit
from tailrace.diagnose.shorter_prompts import shorter_prompts
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["BUDGET", "steals_on_arms"]

BUDGET: Final = (
    r"max[ _-]?num[ _-]?batched[ _-]?tokens|chunked[ _-]?prefill[ _-]?size|prefill[ _-]?chunk|token[ _-]?budget|"
    r"\bn[ _-]?batch\b|"
    r"\bchunk[ _-]?size\b|^budget$|max[ _-]?prefill[ _-]?tokens|^-{0,2}b\b(?! *size)|\bstep[ _-]?budget\b"
)
FITS: Final = 0.35
"""Relative error of gap = chunk / prefill rate."""
LONG_MS: Final = 250.0
FEW_HUGE: Final = 5.0
"""Mean ITL / median ITL from which a few huge gaps make the mean."""
FOLLOWS: Final = 0.5
"""Exponent of gap ~ budget^e from which the gap follows the budget."""
LEAST_RATES: Final = 3
ONE_RATE: Final = 1.15
"""Largest over smallest budget / gap of a sweep in which every gap is one chunk."""
SLOWED: Final = 2.0
ADVICE: Final = (
    "Lower the step's token budget (vLLM: --max-num-batched-tokens 2048 or less with --enable-chunked-prefill; SGLang: "
    "--chunked-prefill-size; llama.cpp: -b/-ub), give long prompts a lane of their own, or disaggregate prefill."
)
PRICE: Final = (
    "The first token of long prompts comes later, because their prefill shares each step; a bit more overhead a step."
)


def steals_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """The arithmetic of a chunk, a sweep of the budget, decoding alone against decoding beside prefills, or ITL whose
    mean is far from its median.
    """
    return surest(
        [
            _arithmetic(cause, observed),
            _budgets(cause, observed),
            _beside(cause, observed),
            steals_by_chunk(cause, observed, _kv),
            *(_split(cause, arm) for arm in observed.arms),
        ]
    )


def _ms(item: Setting | None) -> float | None:
    return None if item is None or item.number is None else in_unit(item.number, item.unit or "s", "ms")


def _arithmetic(cause: Cause, observed: Observed) -> Finding | None:
    """Gap = chunk / prefill rate, all four stated."""
    chunk = number_stated(observed, BUDGET)
    rate = number_stated(observed, RATE)
    gap = number_stated(
        observed,
        r"^(?:gap|stall|pause|chunk)(?: s| ms| max s| max ms)?$|"
        r"(?:longest|max|worst|biggest) (?:gap|stall|itl|pause|freeze|silence|stop)|"
        r"(?:gap|stall|pause|freeze|itl|stop) (?:max|p99)|freezes?\b|gaps? (?:of|in|between)|"
        r"stalls? (?:of|in)|pauses? (?:of|in)",
    )
    seen = _ms(gap)
    if chunk is None or rate is None or gap is None or seen is None or not rate.number or not chunk.number:
        return None
    expected = 1000.0 * chunk.number / rate.number
    top = gap.value[-1] if isinstance(gap.value, list) else None
    high = seen if top is None else in_unit(float(top), gap.unit or "s", "ms") or seen
    extra = number_stated(observed, r"page fault")
    added = _ms(extra) or 0.0
    if expected < LONG_MS or not (1 - FITS) * seen <= expected + added <= (1 + FITS) * high:
        return None
    rivals, checked, missing = _kv(observed)
    prompt = number_stated(observed, r"^prompt tokens|isl|input tokens")
    return cause.finding(
        statement=f"Each step carries one prefill chunk of {chunk.number:g} tokens, which takes "
        f"{number(expected, 'ms')} at "
        f"{rate.number:g} tokens/s; the streams that decode stand still for {number(seen, 'ms')} meanwhile.",
        evidence=[
            evidence_of_setting(chunk),
            evidence_of_setting(rate),
            evidence_of_setting(gap),
            Evidence(
                f"{chunk.number:g} / {rate.number:g} = {number(expected, 'ms')} a chunk",
                "computed",
                "chunk_ms",
                round(expected, 1),
                "ms",
            ),
            Evidence(f"seen: {number(seen, 'ms')}", str(gap.place) or "form", "gap_ms", seen, "ms"),
            *([evidence_of_setting(extra)] if extra is not None else []),
            *([evidence_of_setting(prompt)] if prompt is not None else []),
        ],
        explains_ms=seen,
        relation=f"{chunk.number:g} / {rate.number:g} = {expected / 1000:.2f} s"
        + (f" + {added / 1000:.2f} s page faults" if added else "")
        + f"; seen {seen / 1000:.2f} s",
        n=1,
        advice=f"{ADVICE} {shorter_prompts(tokens=None if prompt is None else prompt.number, rate=rate.number)}",
        price=PRICE,
        verify=again(),
        missing=missing,
        rivals=rivals,
        disproof_checked=checked,
    )


def _shorter(observed: Observed) -> str:
    prompt = number_stated(observed, r"^(?:long )?prompt tokens|long prompt|longest prompt|^isl$|input tokens")
    rate = number_stated(observed, RATE)
    return shorter_prompts(tokens=prompt.number if prompt else None, rate=rate.number if rate else None)


def _shorter_of(arm: Arm) -> str:
    tokens, ttft = figure(arm, "prompt_tokens"), figure(arm, "ttft")
    return shorter_prompts(
        tokens=tokens.value if tokens is not None else None, ttft_ms=ttft.value if ttft is not None else None
    )


def _kv(observed: Observed) -> tuple[list[str], list[str], list[str]]:
    """(rivals, checked, missing): a full cache makes gaps as well."""
    used = number_stated(observed, r"kv (?:cache )?(?:usage|util)|^kv(?: cache)?(?: pct| percent| max)?$|token usage")
    if used is not None and used.number is not None:
        share = as_share(used.number, used.unit)
        return (["SCHED_KV_PREEMPTION"] if share >= KV_FULL else []), [f"KV usage {share:.0%}"], []
    levels = [
        value
        for arm in observed.arms
        if (value := figure(arm, "kv_usage", "preemptions", stats=("max", "", "p99"))) is not None
    ]
    if levels:
        return [], [f"{quantity(item)} {number(item.value, item.unit)}" for item in levels[:2]], []
    series = [item for item in observed.of_series("kv_usage") if len(item)]
    if series:
        top = max(float(max(item.values)) for item in series)
        return (["SCHED_KV_PREEMPTION"] if top >= KV_FULL else []), [f"KV usage at most {top:.0%}"], []
    return [], [], ["KV usage or the preemption counter of that window"]


def _one_rate(points: list[tuple[float, float]]) -> str:
    """Budget over gap of each point in words, where they are one prefill rate (tok/s); empty where they are not."""
    rates = [1e3 * budget / gap for budget, gap in points if gap > 0]
    if len(rates) < LEAST_RATES or max(rates) > ONE_RATE * min(rates):
        return ""
    return "; ".join(
        f"{budget:g} / {gap / 1e3:.3g} s = {rate:.0f} tok/s" for (budget, gap), rate in zip(points, rates, strict=True)
    )


def _budgets(cause: Cause, observed: Observed) -> Finding | None:
    """The gap follows the budget over a sweep."""
    points = sweep(observed, BUDGET, lambda arm: _gap(arm) is not None)
    if len(points) < 2 or points[0].x <= 0:
        return None
    first, last = points[0], points[-1]
    low, high = _gap(first.arm), None
    high = None if low is None else figure(last.arm, low.quantity, stats=(low.stat,))
    if low is None or high is None or low.value <= 0:
        return None
    exponent = math.log(high.value / low.value) / math.log(last.x / first.x) if high.value > 0 else 0.0
    if exponent < FOLLOWS or high.value < LONG_MS:
        return None
    rivals, checked, missing = _kv(observed)
    ttft = [figure(point.arm, "ttft", stats=TAIL_FIRST) for point in (first, last)]
    price = PRICE
    evidence = [
        item for point in points if (value := _gap(point.arm)) is not None for item in [evidence_of(point.arm, value)]
    ]
    if ttft[0] is not None and ttft[1] is not None and ttft[0].key == ttft[1].key:
        evidence += [evidence_of(first.arm, ttft[0]), evidence_of(last.arm, ttft[1])]
        price = (
            f"{quantity(ttft[0])} {number(ttft[1].value, 'ms')} -> {number(ttft[0].value, 'ms')} with the small "
            f"budget. {PRICE}"
        )
    one_rate = _one_rate([(point.x, value.value) for point in points if (value := _gap(point.arm)) is not None])
    if one_rate:
        evidence.append(Evidence(f"budget / gap: {one_rate}", "computed", "prefill_tok_s"))
        checked.append("budget / gap is one prefill rate throughout, which a full cache or a busy host would not make")
        missing = []
    return cause.finding(
        statement=f"The longest gaps follow the step's token budget: {quantity(low)} {number(low.value, 'ms')} at "
        f"{first.x:g} "
        f"tokens, {number(high.value, 'ms')} at {last.x:g}: a prefill chunk occupies the step and decoding waits.",
        evidence=evidence,
        explains_ms=high.value - low.value,
        relation=f"{number(high.value)} / {number(low.value)} = {high.value / low.value:.3g} at "
        f"{last.x / first.x:.3g} x the budget "
        f"(gap ~ budget^{exponent:.2f})",
        n=len(points),
        advice=f"{ADVICE} {_shorter(observed)}",
        price=price,
        verify=again(first.arm),
        missing=missing if len(points) < 3 else [],
        rivals=rivals,
        disproof_checked=[*checked, f"{len(points)} budgets"],
    )


def _gap(arm: Arm) -> Quoted | None:
    return figure(arm, "chunk_gap", "itl", stats=("max", "p99", "p95"))


_ALONE: Final = re.compile(
    r"\balone|\bno prefill|without prefill|decode only|\bidle\b|\bsolo|by itself|baseline|after", re.IGNORECASE
)
_BESIDE: Final = re.compile(
    r"during|while|beside|with (?:a )?(?:long )?(?:prefill|prompt|document)|mixed|others? prefill|under prefill",
    re.IGNORECASE,
)


def _beside(cause: Cause, observed: Observed) -> Finding | None:
    """Decoding alone against decoding while prompts are computed."""
    alone = [arm for arm in observed.arms if _ALONE.search(arm.name) and not _BESIDE.search(arm.name)]
    beside = [arm for arm in observed.arms if _BESIDE.search(arm.name)]
    for calm in alone:
        for busy in beside:
            for name, slower in (("decode_tok_s", False), ("output_tok_s", False), ("itl", True), ("tpot", True)):
                one, two = figure(calm, name, stats=_ANY), figure(busy, name, stats=_ANY)
                if one is None or two is None or one.key != two.key or min(one.value, two.value) <= 0:
                    continue
                ratio = two.value / one.value if slower else one.value / two.value
                if ratio < SLOWED or not re.search(r"prefill|prompt|document|long", busy.name, re.IGNORECASE):
                    continue
                rivals, checked, missing = _kv(observed)
                return cause.finding(
                    statement=f"Decoding is {ratio:.3g} x slower while prompts are computed: {quantity(one)} "
                    f"{number(one.value, one.unit)} {calm.name}, {number(two.value, two.unit)} {busy.name}.",
                    evidence=[evidence_of(calm, one), evidence_of(busy, two)],
                    explains_ms=two.value - one.value if slower else 1000.0 / two.value - 1000.0 / one.value,
                    relation=f"{number(one.value)} / {number(two.value)} = {one.value / two.value:.3g}",
                    n=2,
                    advice=f"{ADVICE} {_shorter(observed)}",
                    price=PRICE,
                    verify=again(busy),
                    missing=[*missing, "the gap's length beside the chunk and the prefill rate (gap = chunk / rate)"],
                    rivals=rivals,
                    disproof_checked=checked,
                )
    return None


_ANY: Final = ("p50", "mean", "", "p99", "p95")


def _split(cause: Cause, arm: Arm) -> Finding | None:
    """A mean ITL far above the median: a few huge gaps. Prefills make such; so do other stops."""
    median, mean = figure(arm, "itl", stats=("p50",)), figure(arm, "itl", stats=("mean",))
    tail = figure(arm, "itl", stats=("p99", "max", "p95"))
    if median is None or mean is None or tail is None or median.value <= 0:
        return None
    if mean.value < FEW_HUGE * median.value or tail.value < LONG_MS:
        return None
    share = (mean.value - median.value) / tail.value
    return cause.finding(
        statement=f"Few huge gaps make the mean: ITL median {number(median.value, 'ms')}, mean "
        f"{number(mean.value, 'ms')}, "
        f"{tail.stat} {number(tail.value, 'ms')}. Prefills that take a whole step interrupt decoding so.",
        evidence=[evidence_of(arm, median), evidence_of(arm, mean), evidence_of(arm, tail)],
        explains_ms=mean.value - median.value,
        relation=f"({number(mean.value)} - {number(median.value)}) / {number(tail.value)} = {share:.1%} of the gaps "
        "would do",
        n=int(value.value) if (value := figure(arm, "n")) is not None else 0,
        advice=f"{ADVICE} {_shorter_of(arm)}",
        price=PRICE,
        verify=again(arm),
        missing=["when prompts were in prefill (engine log), the step's token budget and the prefill rate"],
        rivals=["FE_EVENTLOOP_BLOCK", "SCHED_KV_PREEMPTION"],
    )
