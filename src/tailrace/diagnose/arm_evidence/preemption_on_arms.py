"""Preemptions in a table, a form or a printed benchmark, and a cache that is too small for what runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.asked import CENTRAL, TAIL_FIRST, as_share, figure, number_stated, said, stated
from tailrace.diagnose.arms.limits import kv_holds
from tailrace.diagnose.arms.pairs import Pair, changed, pairs
from tailrace.diagnose.arms.shown import compared, evidence_of, evidence_of_setting, number, quantity
from tailrace.diagnose.cause import surest
from tailrace.diagnose.kv_cache import KV_FULL
from tailrace.diagnose.observed import Arm, Observed, Quoted
from tailrace.model.finding import Evidence, Finding, Level, Proof

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["preemption_on_arms"]

_POLICY: Final = re.compile(r"polic|schedul|admission|capacity|batching", re.IGNORECASE)
FEWER: Final = 1.5
EFFECT: Final = 0.10
"""A latency that changed by so much was affected."""
STUCK: Final = 0.8
ADVICE: Final = (
    "Admit fewer requests at once, near what the KV cache holds (vLLM: --max-num-seqs, or an admission watermark; "
    "SGLang: "
    "--max-running-requests, --schedule-conservativeness; TensorRT-LLM: batch_scheduler_policy guaranteed_no_evict; "
    "or a "
    "lane's running limit), shorten outputs, or give the cache more memory (--gpu-memory-utilization, fp8 KV cache)."
)
PRICE: Final = "Requests wait in the queue instead of being preempted: TTFT rises, ITL and throughput gain."
_LATENCIES: Final = ("itl", "tpot", "chunk_gap", "e2e", "ttft", "output_tok_s", "req_s")
_EVICTION: Final = re.compile(
    r"evict|preempt|retract|recompute|swap|watermark|schedule.?conservat|no.?evict", re.IGNORECASE
)


def preemption_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """Two arms with other counts of preemptions; one arm with some; running requests that the cache caps; or a policy
    of eviction that was changed.
    """
    return surest(
        [_between(cause, observed), _one(cause, observed), _capped(cause, observed), _policy(cause, observed)]
    )


def _between(cause: Cause, observed: Observed) -> Finding | None:
    best: tuple[Pair, Arm, Quoted, Arm, Quoted] | None = None
    for pair in pairs([arm for arm in observed.arms if figure(arm, "preemptions") is not None]):
        one, two = figure(pair.first, "preemptions"), figure(pair.second, "preemptions")
        if one is None or two is None:
            continue
        (many, bad), (few, good) = sorted(((one, pair.first), (two, pair.second)), key=lambda item: -item[0].value)
        if many.value > 0 and many.value >= FEWER * few.value and (best is None or many.value > best[2].value):
            best = pair, bad, many, good, few
    if best is None:
        return None
    pair, bad, many, good, few = best
    gains, prices, evidence = _effects(bad, good)
    what = changed(observed)
    n = _requests(observed, bad)
    if not gains:
        return None
    per = f" per {n:.0f} requests" if n else ""
    # The counter is the mechanism itself, and one stated change moved it and the latency together.
    proven = bool(what) and not pair.differs
    return cause.finding(
        statement=f"The KV cache is too small for what runs at once: {number(many.value)} preemptions{per} "
        f"({bad.name}), {number(few.value)} with {good.name}; {'; '.join(gains)}"
        + (f", but {'; '.join(prices)}" if prices else "")
        + ".",
        evidence=[
            evidence_of(bad, many),
            evidence_of(good, few),
            *_others(observed, bad, good),
            *evidence,
            *([Evidence(f"{n:.0f} requests", str(bad.place) or "form", "n", n)] if n else []),
            *([Evidence(f"changed: {what}", "form")] if what else []),
            *_kv(observed),
        ],
        explains_ms=_explains(bad, good),
        relation=f"preemptions {number(many.value)} -> {number(few.value)}"
        + (f" ({few.value / many.value - 1:+.0%}); " if many.value else "; ")
        + "; ".join(gains + prices),
        n=int(n or 0),
        advice=ADVICE,
        price=f"{'; '.join(prices)}. {PRICE}" if prices else PRICE,
        verify=again(bad),
        missing=[] if what else ["that nothing else differs between the arms (what was changed)"],
        disproof_checked=[
            f"the counter moved: {number(many.value)} and {number(few.value)}",
            *(f"equal {item}" for item in pair.same),
        ],
        level=Level.PROVEN if proven else Level.CONSISTENT,
        proof=Proof.ONE_CHANGE,
    )


def _others(observed: Observed, bad: Arm, good: Arm) -> list[Evidence]:
    """What the arms between the two, or beyond them, counted."""
    counts = [(arm, figure(arm, "preemptions")) for arm in observed.arms if arm is not bad and arm is not good]
    return [evidence_of(arm, count) for arm, count in counts[:8] if count is not None]


def _effects(bad: Arm, good: Arm) -> tuple[list[str], list[str], list[Evidence]]:
    """(what got better with fewer preemptions, what got worse, the numbers)."""
    gains: list[str] = []
    prices: list[str] = []
    evidence: list[Evidence] = []
    for name in _LATENCIES:
        for stat in TAIL_FIRST:
            one, two = figure(bad, name, stats=(stat,)), figure(good, name, stats=(stat,))
            if one is None or two is None or not one.value:
                continue
            change = two.value / one.value - 1.0
            evidence += [evidence_of(bad, one), evidence_of(good, two)]
            rate = name in ("output_tok_s", "req_s")
            if abs(change) < (EFFECT if not rate else 0.02):
                continue
            (gains if (change > 0) is rate else prices).append(compared(quantity(one), one, two))
    return gains, prices, evidence


def _explains(bad: Arm, good: Arm) -> float | None:
    for name in ("itl", "chunk_gap", "tpot", "e2e"):
        one, two = (figure(arm, name, stats=TAIL_FIRST) for arm in (bad, good))
        if one is not None and two is not None and one.key == two.key and one.value > two.value:
            return one.value - two.value
    return None


def _requests(observed: Observed, arm: Arm) -> float | None:
    own = figure(arm, "n")
    item = number_stated(observed, r"^(?:n|requests|num prompts|bench num prompts)$")
    return own.value if own is not None else item.number if item is not None else None


def _kv(observed: Observed) -> list[Evidence]:
    found = number_stated(observed, r"kv (?:capacity )?tokens|kv capacity")
    return [evidence_of_setting(found)] if found is not None else []


def _one(cause: Cause, observed: Observed) -> Finding | None:
    """Preemptions in one arm or as a statement: the counter moved, and no other arm says what it cost."""
    found: list[tuple[float, Evidence, Arm | None]] = [
        (value.value, evidence_of(arm, value), arm)
        for arm in observed.arms
        if (value := figure(arm, "preemptions")) is not None
    ]
    item = number_stated(observed, r"preemptions|retractions")
    if item is not None and item.number is not None:
        found.append((item.number, evidence_of_setting(item), None))
    if not found:
        return None
    count, evidence, arm = max(found, key=lambda one: one[0])
    n = _requests(observed, arm) if arm is not None else None
    if n is None:
        stated_n = number_stated(observed, r"^(?:n|requests|jobs|num prompts)$")
        n = None if stated_n is None else stated_n.number
    if count <= 0 or (n and count < max(1.0, 0.01 * n)):
        return None
    held = kv_holds(observed)
    missing = [] if n else ["how many requests there were in that window"]
    per = f" in {n:.0f} requests" if n else ""
    return cause.finding(
        statement=f"The KV cache is too small for what runs at once: {number(count)} preemptions{per}; requests lose "
        "their "
        "blocks and are computed again." + (f" It holds {held[0]:.0f} of {held[2]:.0f} tokens each." if held else ""),
        evidence=[
            evidence,
            *_kv(observed),
            *([_fits(held)] if held else []),
            *([Evidence(f"{n:.0f} requests", evidence.source, "n", n)] if n else []),
        ],
        explains_ms=None,
        relation=f"{count / n * 100:.0f} preemptions per 100 requests" if n else f"{number(count)} preemptions > 0",
        n=int(n or 0),
        advice=ADVICE,
        price=PRICE,
        verify=again(arm),
        missing=missing,
        disproof_checked=[f"the counter moved by {number(count)}"],
    )


def _fits(held: tuple[float, float, float]) -> Evidence:
    """`kv_holds` in words: tokens of the cache / tokens of a request = requests."""
    requests, cache, each = held
    return Evidence(
        f"{cache:.0f} / {each:.0f} = {requests:.0f} requests fit", "form", "requests_held", round(requests, 1)
    )


def _capped(cause: Cause, observed: Observed) -> Finding | None:
    """Running stays below the cap of the batch while the cache is full and others wait."""
    usage, running = _usage(observed), number_stated(observed, r"^(?:engine )?running$|running requests")
    cap = number_stated(observed, r"max num seqs|max running requests|^max concurrency$|client concurrency")
    if usage is None or running is None or cap is None or not running.number or not cap.number:
        return None
    if usage[0] < KV_FULL or running.number > STUCK * cap.number:
        return None
    held = kv_holds(observed)
    fits = held is not None and abs(held[0] / running.number - 1.0) <= 0.1
    return cause.finding(
        statement=f"Only {running.number:g} of {cap.number:g} requests run, and the KV cache is {usage[0]:.0%} full: "
        "the "
        "cache is the cap, and what is admitted beyond it waits or is preempted."
        + (f" {held[1]:.0f} / {held[2]:.0f} = {held[0]:.0f} fit." if held and fits else ""),
        evidence=[
            usage[1],
            evidence_of_setting(running),
            evidence_of_setting(cap),
            *_kv(observed),
            *([_fits(held)] if held else []),
        ],
        explains_ms=None,
        relation=f"running {running.number:g} < cap {cap.number:g} at KV {usage[0]:.0%}",
        n=1,
        advice=ADVICE,
        price=PRICE,
        verify=again(),
        missing=["the preemption counter (two scrapes of /metrics)"],
        disproof_checked=[f"KV usage {usage[0]:.0%}"],
    )


def _usage(observed: Observed) -> tuple[float, Evidence] | None:
    item = number_stated(observed, r"^kv usage|kv cache usage")
    if item is not None and item.number is not None:
        share = as_share(item.number, item.unit)
        return share, evidence_of_setting(item)
    for arm in observed.arms:
        value = figure(arm, "kv_usage", stats=("max", "p99", "p95", "", "mean"))
        if value is not None:
            return value.value, evidence_of(arm, value)
    return None


def _policy(cause: Cause, observed: Observed) -> Finding | None:
    """A change of the eviction policy that mended a collapse: the lever fits, the counter is missing."""
    what = changed(observed)
    item = None if _EVICTION.search(what) else stated(observed, _EVICTION.pattern)
    words = what if _EVICTION.search(what) else "" if item is None else f"{item.name.replace('_', ' ')}: {item.value}"
    words = words or _by_label(observed, what)
    if not words or any(figure(arm, "preemptions") is not None for arm in observed.arms):
        return None
    if item is not None and (item.number is not None or isinstance(item.value, bool)):
        return None
    gain = None
    for pair in pairs(observed.arms):
        for name in ("e2e", "ttft", "itl", "tpot"):
            one, two = (figure(arm, name, stats=("p99", "p95", *CENTRAL)) for arm in (pair.first, pair.second))
            if one is not None and two is not None and one.key == two.key and min(one.value, two.value) > 0:
                ratio = max(one.value, two.value) / min(one.value, two.value)
                if ratio >= FEWER and (gain is None or ratio > gain[0]):
                    gain = ratio, pair, one, two
    knee = number_stated(observed, r"knee|collapse|max stable")
    if gain is None and knee is None:
        return None
    evidence = [Evidence(f"changed: {words}", "form")]
    if gain is not None:
        evidence += [evidence_of(gain[1].first, gain[2]), evidence_of(gain[1].second, gain[3])]
    if knee is not None:
        evidence.append(evidence_of_setting(knee))
    made = "" if gain is None else _made(gain[1], evidence)
    return cause.finding(
        statement=f"What was changed is how the engine makes room in its KV cache ({words}), and the tail followed "
        "it: the "
        "cache is too small for what was admitted.",
        evidence=evidence,
        explains_ms=None if gain is None else abs(gain[2].value - gain[3].value),
        relation=f"{quantity(gain[2])}: x {gain[0]:.3g} between the arms{made}"
        if gain is not None
        else f"knee at {knee.number:g}"
        if knee
        else "",
        n=2,
        advice=ADVICE,
        price=PRICE,
        verify=again(),
        missing=["the preemption (eviction) counter of both arms, and KV usage"],
        rivals=["SCHED_QUEUE_SATURATION"],
    )


def _by_label(observed: Observed, what: str) -> str:
    """A change of policy of which only the labels say that it is one of eviction; empty where none does, or all do."""
    if not _POLICY.search(what):
        return ""
    named = [arm.name for arm in observed.arms if _EVICTION.search(said(arm).replace("_", " "))]
    return f"{what}: {named[0]} or not" if 0 < len(named) < len(observed.arms) else ""


def _made(pair: Pair, evidence: list[Evidence]) -> str:
    """How much less the slower arm makes, in words; its numbers join the evidence."""
    one, two = (figure(arm, "output_tok_s", "req_s") for arm in pair[:2])
    if one is None or two is None or one.key != two.key or min(one.value, two.value) <= 0:
        return ""
    evidence += [evidence_of(pair.first, one), evidence_of(pair.second, two)]
    low, high = sorted((one.value, two.value))
    return f"; {quantity(one)} {low:.4g} / {high:.4g} = {low / high:.2f} (-{1 - low / high:.1%})"
