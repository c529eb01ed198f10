"""Short requests as late as long ones, from tables and forms with a row a class of requests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.diagnose.arm_evidence.steals_on_arms import BUDGET
from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import condition, figure, number_stated
from tailrace.diagnose.arms.shown import evidence_of, evidence_of_setting, number, quantity
from tailrace.diagnose.cause import surest
from tailrace.diagnose.observed import Arm, Observed, Quoted, Setting
from tailrace.diagnose.observed.vocabulary import in_unit
from tailrace.diagnose.shorter_prompts import shorter_prompts
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["hol_on_arms"]

LONGER: Final = 4.0
"""Prompts of the long class against those of the short one."""
ALIKE: Final = 0.15
WAIT_MS: Final = 500.0
STEPS: Final = 20.0
"""So many steps of one prompt hold everybody behind it up."""
ALONE: Final = 5.0
_LABEL: Final = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?) ?(k)?[ -]?(?:tok|tokens?)\b", re.IGNORECASE)
ADVICE: Final = (
    "Give long prompts a lane of their own with a small running limit, or serve the shortest first with a bounded "
    "wait; "
    "vLLM: --max-long-partial-prefills, --long-prefill-token-threshold. Limit inputs."
)
PRICE: Final = "Long prompts wait in their own lane: their TTFT rises."


class _Class(NamedTuple):
    arm: Arm
    tokens: float
    late: Quoted


def hol_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """Classes by length with equal tails, or the arithmetic of one long prompt."""
    return surest([_classes(cause, observed), _steps(cause, observed)])


def _classes(cause: Cause, observed: Observed) -> Finding | None:
    found = []
    for arm in observed.arms:
        tokens = condition(arm, r"\bprompt tokens\b|\binput tokens\b|\bisl\b|prompt length|input length")
        tokens = _of_label(arm) if tokens is None else tokens
        late = figure(arm, "ttft", "e2e", stats=("p99", "p95", "max", "p50", "mean", ""))
        if tokens and late is not None:
            found.append(_Class(arm, tokens, late))
    found.sort(key=lambda item: item.tokens)
    for short in found:
        for long in reversed(found):
            if long.tokens < LONGER * short.tokens or long.late.key != short.late.key:
                continue
            if abs(short.late.value / long.late.value - 1.0) > ALIKE or short.late.value < WAIT_MS:
                continue
            if short.arm.place.source == long.arm.place.source:
                return _of_classes(cause, observed, short, long)
    return None


def _of_label(arm: Arm) -> float | None:
    """The tokens of `short (<1k tokens)`."""
    found = _LABEL.findall(arm.label)
    return float(found[0][0].replace(",", "")) * (1e3 if found[0][1] else 1.0) if len(found) == 1 else None


def _of_classes(cause: Cause, observed: Observed, short: _Class, long: _Class) -> Finding:
    counts = [figure(item.arm, "n") for item in (short, long)]
    n = sum(item.value for item in counts if item is not None)
    alone = number_stated(observed, r"baseline|alone|unloaded")
    evidence = [
        evidence_of(short.arm, short.late),
        evidence_of(long.arm, long.late),
        Evidence(
            f"{short.arm.name}: {short.tokens:g} prompt tokens",
            str(short.arm.place) or "form",
            "prompt_tokens",
            short.tokens,
            "tokens",
        ),
        Evidence(
            f"{long.arm.name}: {long.tokens:g} prompt tokens",
            str(long.arm.place) or "form",
            "prompt_tokens",
            long.tokens,
            "tokens",
        ),
        *(evidence_of(item.arm, count) for item, count in zip((short, long), counts, strict=True) if count is not None),
        *([evidence_of_setting(alone)] if alone is not None else []),
    ]
    relation = (
        f"short {number(short.late.value, 'ms')} / long {number(long.late.value, 'ms')} = "
        f"{short.late.value / long.late.value:.2f} at {long.tokens / short.tokens:.3g} x the tokens"
    )
    if counts[0] is not None and counts[1] is not None:
        ahead = counts[0].value * short.tokens + counts[1].value * long.tokens
        rate = 1000.0 * ahead / max(long.late.value, short.late.value)
        relation += (
            f"; {ahead:.0f} tokens / {max(long.late.value, short.late.value) / 1000:.2f} s = {rate:.0f} "
            "tok/s: a queue served in order"
        )
        evidence.append(
            Evidence(
                f"{ahead:.0f} prompt tokens drain at {rate:.0f} tok/s", "computed", "drain_tok_s", round(rate), "tok/s"
            )
        )
    few = (
        f"; n = {n:.0f}, so this {short.late.stat} is about the maximum"
        if n and short.late.stat == "p99" and n < 500
        else ""
    )
    if few:
        evidence.append(Evidence(f"n = {n:.0f}: a p99 needs 500 samples", str(short.arm.place) or "form", "n", n))
    missing = [] if n else ["how many requests each class has"]
    if not short.late.stat:
        missing.append("the tail (p99 or p95) of each class")
    return cause.finding(
        statement=f"Short requests are as late as long ones: {quantity(short.late)} {number(short.late.value, 'ms')} "
        "at "
        f"{short.tokens:g} prompt tokens, {number(long.late.value, 'ms')} at {long.tokens:g}{few}. They wait behind "
        "the "
        "prefill of the long ones.",
        evidence=evidence,
        explains_ms=short.late.value,
        relation=relation,
        n=int(n),
        advice=f"{ADVICE} {shorter_prompts(tokens=long.tokens, ttft_ms=long.late.value)}",
        price=PRICE,
        verify=again(short.arm),
        missing=missing,
        disproof_checked=["short and long have the same tail, so the wait does not depend on one's own length"],
    )


def _short_ones(observed: Observed) -> list[Evidence] | None:
    """The short requests without and with a long one among them, where both are told."""
    arms = [(arm, value) for arm in observed.arms if (value := figure(arm, "ttft", stats=("p99", "p95", "max", "p50")))]
    if len(arms) != 2 or arms[0][1].key != arms[1][1].key:
        return None
    (good, low), (bad, high) = sorted(arms, key=lambda item: item[1].value)
    return [evidence_of(good, low), evidence_of(bad, high)] if high.value >= ALONE * low.value else None


def _steps(cause: Cause, observed: Observed) -> Finding | None:
    """One long prompt takes tokens / budget steps, one partial prefill at a time, and the queue grew after it."""
    prompt = number_stated(observed, r"^(?:long )?prompt tokens|long prompt|longest prompt|^isl$|input tokens")
    budget = number_stated(observed, BUDGET)
    if prompt is None or budget is None or not prompt.number or not budget.number:
        return None
    steps = prompt.number / budget.number
    seen = number_stated(observed, r"^(?:iterations|steps)$|hol (?:iters|steps)|blocked (?:iterations|steps)")
    stall, step = number_stated(observed, r"^(?:gap|stall|pause)(?: s| ms)?$"), number_stated(observed, r"^step ms$")
    took = steps * step.number if step is not None and step.number else None
    lasted = in_unit(stall.number, stall.unit, "ms") if stall is not None and stall.number and stall.unit else None
    in_time = took is not None and lasted is not None and abs(lasted / took - 1.0) <= ALIKE
    if steps < STEPS or (stall is not None and not in_time):
        return None
    fits = seen is not None and seen.number and abs(seen.number / steps - 1.0) <= ALIKE
    if seen is not None and seen.number and not fits:
        return None
    missing = [
        "TTFT of short requests against the tokens queued ahead of them, and the queue after the long prompt came"
    ]
    if seen is None and not in_time:
        missing.append("how many steps the others waited")
    slower = _short_ones(observed)
    if slower is not None and in_time:
        missing = []
    timed = [] if not in_time or took is None or step is None else [
        evidence_of_setting(step),
        Evidence(f"{steps:.0f} steps x {step.number:g} ms = {took / 1e3:.3g} s; seen {lasted / 1e3 if lasted else 0:.3g} s", "computed", "hol_ms", took, "ms"),  # noqa: E501
    ]  # fmt: skip
    return cause.finding(
        statement=f"One prompt of {prompt.number:g} tokens takes {steps:.0f} steps of {budget.number:g} tokens, and "
        "requests "
        "behind it wait for all of them where one prompt is computed at a time.",
        evidence=[
            evidence_of_setting(prompt),
            evidence_of_setting(budget),
            Evidence(
                f"{prompt.number:g} / {budget.number:g} = {steps:.0f} steps", "computed", "steps", round(steps, 1)
            ),
            *([evidence_of_setting(seen)] if seen is not None else []),
            *timed,
            *(slower or []),
        ],
        explains_ms=took,
        relation=f"{prompt.number:g} / {budget.number:g} = {steps:.0f} steps"
        + (f"; x {step.number:g} ms = {took / 1e3:.3g} s" if in_time and took and step is not None else "")
        + (f"; seen {seen.number:g}" if fits and seen is not None else ""),
        n=1,
        advice=f"{ADVICE} {_shorter(observed, prompt)} Half of it takes {steps / 2:.0f} steps.",
        price=PRICE,
        verify=again(),
        missing=missing if not fits else missing[:1],
        rivals=["SCHED_PREFILL_STEALS_DECODE"] if missing else [],
    )


def _shorter(observed: Observed, prompt: Setting) -> str:
    rate = number_stated(observed, r"(?:prefill|prompt|input)(?: throughput)? tok s|prefill (?:rate|speed)")
    return shorter_prompts(tokens=prompt.number, rate=None if rate is None else rate.number)
