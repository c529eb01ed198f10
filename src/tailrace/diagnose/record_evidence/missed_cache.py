"""MIX_CACHE_MISS: prompts that the prefix cache knew are computed again."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.engine_counts import intervals_of
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.late import makes_late
from tailrace.diagnose.replicas import replicas
from tailrace.diagnose.reuse import LEAST, Reuse, reuse
from tailrace.model.finding import Evidence, Finding

__all__ = ["counted_hits", "missed_in_records"]

FELL: Final = 0.15
"""Of all prompt tokens."""
LEAST_REQUESTS: Final = 20
"""A window has this many, or its share of found tokens hangs on single requests."""
NORMAL_95: Final = 1.96
MISSED: Final = 0.5
"""Of what later turns repeat, the share that the cache must have missed where there is no window from before."""
OFFERED_FELL: Final = 0.15
MOVED: Final = 0.2
LENGTHS: Final = 1.3


def missed_in_records(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """Against the window from before; without one, against what the turns of sessions repeat."""
    window = evidence.now
    if cause.cannot_run(evidence) or window.n < LEAST_REQUESTS:
        return None
    seen = reuse(window)
    counted = counted_hits(evidence)
    hit = seen.hit if seen.known else counted if counted is not None else 0.0
    before = evidence.before
    old = reuse(before) if before is not None and before.n >= LEAST_REQUESTS else None
    if old is not None and before is not None and old.known and _fell(old, before.tokens, seen, window.tokens, hit):
        lengths = [float(np.nanmean(side.tokens)) for side in (before, window) if side is not None]
        if lengths[1] > LENGTHS * lengths[0]:
            return None
        missed = (old.hit - hit) * np.nan_to_num(window.tokens, nan=0.0)
    elif old is None and seen.later.sum() >= LEAST and seen.known:
        found = float(seen.cached[seen.later].sum()) / max(float(seen.repeat[seen.later].sum()), 1.0)
        if found > 1.0 - MISSED or seen.offered < FELL:
            return None
        missed = np.where(seen.later, np.maximum(seen.repeat - seen.cached, 0.0), 0.0)
    else:
        return None
    if replicas(window).n >= 2 and seen.later.any() and float(seen.moved[seen.later].mean()) >= MOVED:
        return None  # the history is in another replica's cache: the balancer's
    return _found(cause, evidence, seen, old, hit, missed, counted)


def _fell(old: Reuse, old_tokens: np.ndarray, seen: Reuse, tokens: np.ndarray, hit: float) -> bool:
    """Is the share that the cache finds lower by `FELL`, and by more than chance between the requests explains?

    The variance of a ratio of sums is that of its residuals (the delta method: Cochran, Sampling Techniques, 6.4).
    """
    noise = _variance(old, old_tokens) + (_variance(seen, tokens) if seen.known else 0.0)
    fell = old.hit - hit
    return fell >= FELL and fell > NORMAL_95 * math.sqrt(noise)


def _variance(seen: Reuse, tokens: np.ndarray) -> float:
    """Of the hit rate."""
    asked = np.nan_to_num(tokens, nan=0.0)
    residuals = (seen.cached - seen.hit * asked) / max(float(asked.mean()), 1.0)
    return float(residuals.var(ddof=1) / max(residuals.size, 1))


def _found(
    cause: Cause,
    evidence: EvidenceSet,
    seen: Reuse,
    old: Reuse | None,
    hit: float,
    missed: np.ndarray,
    counted: float | None,
) -> Finding | None:
    window = evidence.now
    rate = window.seconds_a_token
    prefill = window.done.ms("prefill")
    tokens = np.maximum(np.nan_to_num(window.tokens, nan=0.0) - seen.cached, 1.0)
    if not np.isnan(prefill).all():
        each = float(np.nanmedian(prefill / tokens))
    elif not np.isnan(rate):
        each = rate * 1e3
    else:
        return None
    ttft = np.nan_to_num(window.done.ms("ttft"), nan=0.0)
    share = missed / np.maximum(tokens, 1.0)
    # What the misses cost: their own prefill, and the same share of the queue behind everybody's.
    load = float(missed.sum()) / max(float(tokens.sum()), 1.0)
    own = np.where(np.isnan(prefill), missed * each, np.minimum(share, 1.0) * np.nan_to_num(prefill, nan=0.0))
    queue = (window.lost.engine_queue + window.lost.first_token) * load
    values = np.minimum(own + queue, ttft)
    explains = window.explain(cause.code, values)
    # Prefills that became longer stop the streams too, and those stops make the tail: what was promised is what counts.
    if not cause.carries(evidence, explains) and not makes_late(evidence, "ttft", values):
        return None
    missing, rivals, checked = [], [], []
    if old is None:
        missing.append("the hit rate of a usual window (--before FILE)")
    elif old.offered > 0 and seen.offered > 0:
        checked.append(f"repeated by sessions: {old.offered:.0%} of the tokens before, {seen.offered:.0%} now")
        if old.offered - seen.offered > OFFERED_FELL:
            rivals.append("MIX_SHIFT")
    else:
        missing.append("how much the prompts repeat (session_id by request): whether the traffic or the cache changed")
    kv = evidence.kv_usage
    evicted = kv is not None and kv >= 0.95
    offered = f"; sessions repeat {seen.offered:.0%}" if seen.offered > 0 else ""
    head = f"{old.hit:.0%} -> {hit:.0%}" if old is not None else f"{hit:.0%}"
    return cause.finding(
        statement=f"The prefix cache misses: {head} of the prompt tokens come from it{offered}, so "
        f"{missed.mean():,.0f} tokens more are computed for each request.",
        evidence=[
            Evidence(
                f"cached tokens / prompt tokens of the window: {head} (n = {window.n})",
                "record:cached_tokens, record:prompt_tokens",
                "hit",
                round(hit, 4),
            ),
            Evidence(
                f"{missed.mean():,.0f} prompt tokens more are computed for each request (mean), {each:.3f} ms each",
                "record:prompt_tokens, record:prefill_ns",
                "missed_tokens",
                round(float(missed.mean()), 1),
            ),
            *(
                [
                    Evidence(
                        f"later turns repeat {seen.offered:.0%} of all prompt tokens",
                        "record:session_id",
                        "offered",
                        round(seen.offered, 4),
                    )
                ]
                if seen.offered > 0
                else []
            ),
            *(
                [
                    Evidence(
                        f"the cache's own counters over the window: {counted:.0%}",
                        "metric:prefix_cache_hits",
                        "counted",
                        round(counted, 4),
                    )
                ]
                if counted is not None
                else []
            ),
            *(
                [Evidence(f"KV usage up to {kv:.0%}", "record:kv_usage", "kv_usage", round(kv, 4))]
                if kv is not None
                else []
            ),
        ],
        explains_ms=explains,
        relation=f"{missed.mean():,.0f} tokens x {each:.3f} ms = {missed.mean() * each:.0f} ms of prefill a request",
        n=window.n,
        advice=(
            "The cache is full and forgets: give it memory (gpu_memory_utilization, CPU offload of KV), or admit "
            "fewer at once. "
            if evicted
            else "Look at why equal beginnings do not match: a date, an id or a changed order near the start of "
            "the "
            "prompt, a new chat template, block alignment, caching switched off (enable_prefix_caching), a "
            "restart. "
        )
        + "Put what changes at the end of the prompt. It is not load: more replicas divide the cache further.",
        price="Memory that running requests cannot use, where it is given to the cache.",
        verify=evidence.verify_command + "  # and two scrapes of the cache's hit and query counters",
        missing=missing,
        rivals=rivals,
        disproof_checked=checked,
    )


def counted_hits(evidence: EvidenceSet) -> float | None:
    """Hit / asked prompt tokens over the scrapes of the window, by the engine's counters; `None` where it has none."""
    series = intervals_of(evidence.states)
    asked = float(np.nansum(series.queried)) if series.queried.size else 0.0
    return float(np.nansum(series.hit)) / asked if asked > 0 and not np.isnan(series.hit).all() else None
