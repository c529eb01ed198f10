"""MIX_CACHE_MISS from a table of requests: prompts of one length had their prefix cached, and then had it no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.arms.again import again
from tailrace.diagnose.arms.shown import number
from tailrace.diagnose.observed import Observed, Rows
from tailrace.diagnose.shorter_prompts import shorter_prompts
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["hits_stop_in_requests"]

Floats = NDArray[np.float64]

LEAST: Final = 3
"""Requests on either side."""
FELL: Final = 0.4
"""The share of cached prompt tokens falls by so much, from one request to the next, and stays there."""
SLOWER: Final = 1.5
LEAST_MS: Final = 100.0
ALIKE: Final = 1.5
"""Prompts on both sides are of one length, to this factor."""


class _Side(NamedTuple):
    n: int
    cached: float
    asked: float
    ttft: float
    prompt: float
    computed: float

    @property
    def share(self) -> float:
        return self.cached / self.asked

    @property
    def words(self) -> str:
        return f"{number(self.cached)} of {number(self.asked)} prompt tokens cached ({self.share:.1%}, n = {self.n})"


class _Step(NamedTuple):
    rows: Rows
    at: int
    before: _Side
    after: _Side
    sessions: tuple[int, int]
    """Conversations that go on behind the step, of those in it."""
    first: str


def hits_stop_in_requests(cause: Cause, observed: Observed) -> Finding | None:
    """A step down of the cached share in time, with TTFT up and prompts as long as before."""
    steps = [step for rows in observed.table("requests") if (step := _step(rows)) is not None]
    if not steps:
        return None
    step = max(steps, key=lambda one: one.before.share - one.after.share)
    before, after = step.before, step.after
    going_on, known = step.sessions
    missing = [] if known and going_on else ["session ids: whether the same conversations go on behind the step"]
    rate = after.computed / after.ttft * 1e3 if after.ttft > 0 else 0.0
    source = str(step.rows.place) or "requests"
    place = str(step.rows.line_of(step.at))
    again_words = f"{going_on} of {known} sessions behind it were there before it" if known else ""
    return cause.finding(
        statement=f"From {step.first} on the prefix cache is missed: {before.share:.1%} of the prompt tokens were "
        f"cached before it, {after.share:.1%} behind it, with prompts of about {number(round(after.prompt))} tokens on "
        f"both sides. TTFT goes from {number(round(before.ttft), 'ms')} to {number(round(after.ttft), 'ms')} (median): "
        f"every prompt is computed again, at {rate:,.0f} tok/s."
        + (" The same sessions go on, so their reuse was on offer." if not missing else ""),
        evidence=[
            Evidence(f"before: {before.words}", source, "hit_before", round(before.share, 4)),
            Evidence(f"behind: {after.words}", place, "hit_after", round(after.share, 4)),
            Evidence(
                f"tokens to compute a prompt: {number(round(before.computed))} -> {number(round(after.computed))} "
                "(median)",
                place, "computed", after.computed, "tokens",
            ),
            Evidence(
                f"TTFT {number(round(before.ttft), 'ms')} -> {number(round(after.ttft), 'ms')} (median)",
                place, "ttft", round(after.ttft, 1), "ms",
            ),
            *([Evidence(again_words, place, "sessions", float(going_on))] if known else []),
            Evidence(f"prefill {rate:,.0f} tok/s behind the step", place, "prefill_tok_s", round(rate, 1), "tok/s"),
        ],
        explains_ms=after.ttft - before.ttft,
        relation=f"cached / prompt = {number(before.cached)} / {number(before.asked)} = {before.share:.1%} -> "
        f"{number(after.cached)} / {number(after.asked)} = {after.share:.1%}; {number(round(after.computed))} tokens / "
        f"{number(round(after.ttft), 'ms')} = {rate:,.0f} tok/s",
        n=before.n + after.n,
        advice="Look for what happened at that moment to the prefix: eviction (KV cache too small for all "
        "conversations, "
        "a large job beside them), a restart, a changed beginning of the prompt (date, tools, another template), "
        "another "
        "replica or slot. Until then: " + shorter_prompts(),
        price="Cached prefixes take KV cache from running requests.",
        verify=again(more="--shared-prefix 2000"),
        missing=missing,
        disproof_checked=[
            f"prompts are as long on both sides ({number(round(before.prompt))} and {number(round(after.prompt))})",
            *([again_words] if known else []),
        ],
    )  # fmt: skip


def _step(rows: Rows) -> _Step | None:
    prompt, cached = rows.numbers("prompt_tokens"), rows.numbers("cached_tokens")
    ttft = rows.numbers("ttft_ms")
    if not np.isfinite(ttft).any():
        ttft = rows.numbers("t_first_ms") - rows.numbers("t_send_ms")
    if len(set(rows.texts("arm"))) > 1:
        return None
    usable = np.flatnonzero((prompt > 0) & (cached >= 0) & (cached <= prompt) & np.isfinite(ttft))
    if usable.size < 2 * LEAST:
        return None
    sent = rows.numbers("t_send_ms")
    order = usable[np.argsort(sent[usable], kind="stable")] if np.isfinite(sent[usable]).all() else usable
    share = cached[order] / prompt[order]
    cut = _cut(share)
    if cut is None:
        return None
    sides = [order[:cut], order[cut:]]
    before, after = (_side(prompt[side], cached[side], ttft[side]) for side in sides)
    alike = max(before.prompt, after.prompt) <= ALIKE * min(before.prompt, after.prompt)
    if not alike or after.ttft < SLOWER * before.ttft or after.ttft - before.ttft < LEAST_MS:
        return None
    ids, names = rows.texts("session_id"), rows.texts("id")
    earlier = {ids[row] for row in sides[0]} - {""}
    later = {ids[row] for row in sides[1]} - {""}
    at = int(order[cut])
    first = f"request {names[at]}" if names[at] else f"request {cut + 1}"
    if np.isfinite(sent[at]):
        first += f" ({sent[at] / 1e3:.4g} s)"
    return _Step(rows, at, before, after, (len(earlier & later), len(later)), first)


def _cut(share: Floats) -> int | None:
    """Where the cached share falls for good: all before it are clearly above all behind it."""
    lowest = np.minimum.accumulate(share)
    highest = np.maximum.accumulate(share[::-1])[::-1]
    gaps = lowest[LEAST - 1 : -LEAST] - highest[LEAST : share.size - LEAST + 1]
    if not gaps.size or float(gaps.max()) < FELL:
        return None
    return int(np.argmax(gaps)) + LEAST


def _side(prompt: Floats, cached: Floats, ttft: Floats) -> _Side:
    return _Side(
        int(prompt.size), float(cached.sum()), float(prompt.sum()), float(np.median(ttft)), float(np.median(prompt)),
        float(np.median(prompt - cached)),
    )  # fmt: skip
