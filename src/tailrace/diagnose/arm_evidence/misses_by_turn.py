"""MIX_CACHE_MISS by turns of one conversation: each prompt holds the one before, and next to nothing of it is found."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.diagnose.arms.asked import figure
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.shorter_prompts import shorter_prompts
from tailrace.model.finding import Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["misses_by_turn", "turns_in_arms"]

LEAST: Final = 3
LOW: Final = 0.3
GROWS: Final = 0.9
LONG: Final = 1000.0
A_TURN: Final = 1.3
"""A turn adds so much to a long history, at most."""
LEAST_MS: Final = 200.0
_LACKS: Final = (
    "whether each prompt begins with the one before, byte for byte: without it the same numbers are a changed mix"
)
_TURN: Final = re.compile(r"^\s*(?:turn|round|message|msg)?\s*#?\s*(\d{1,4})\s*$", re.IGNORECASE)
_PROMPT: Final = re.compile(r"prompt.?tok|input.?tok|^isl$|context.?tok", re.IGNORECASE)
_CACHED: Final = re.compile(r"cache|prefix.?hit|hit.?tok", re.IGNORECASE)


class _Turn(NamedTuple):
    number: float
    prompt: float
    cached: float
    place: str


def _of_rows(observed: Observed) -> list[_Turn]:
    for rows in observed.table("turns"):
        names = {
            what: next((name for name in rows.columns if pattern.search(name) and rows.has(name)), None)
            for what, pattern in (("cached", _CACHED), ("prompt", _PROMPT))
        }
        if names["cached"] is None or names["prompt"] is None or not rows.has("turn"):
            continue
        turn, prompt, cached = (rows.numbers(name) for name in ("turn", names["prompt"], names["cached"]))
        known = np.isfinite(turn) & np.isfinite(prompt) & np.isfinite(cached)
        return [
            _Turn(float(turn[at]), float(prompt[at]), float(cached[at]), str(rows.place))
            for at in np.flatnonzero(known)
        ]
    return []


def _of_slots(observed: Observed) -> list[_Turn]:
    """Requests as llama.cpp logs them, one after the other, where each prompt is a little longer than the last: so a
    conversation grows that is sent again.
    """
    for rows in observed.table("requests"):
        if not (rows.has("slot") and rows.has("task") and rows.has("cached_tokens")):
            continue
        computed, cached, prefill = (rows.numbers(name) for name in ("prompt_tokens", "cached_tokens", "prefill"))
        whole = computed + cached
        known = np.flatnonzero(np.isfinite(whole) & np.isfinite(prefill))
        if known.size < LEAST or float(np.median(prefill[known])) < LEAST_MS:
            continue
        grown = whole[known][1:] / np.maximum(whole[known][:-1], 1.0)
        if whole[known[0]] >= LONG and bool(((grown >= 1.0) & (grown <= A_TURN)).all()):
            return [
                _Turn(place + 1.0, float(whole[at]), float(cached[at]), str(rows.line_of(int(at))))
                for place, at in enumerate(known)
            ]
    return []


def turns_in_arms(observed: Observed) -> list[_Turn]:
    """Arms that are the turns of a conversation, with what each sent and found cached; empty where some are not."""
    out = []
    for arm in observed.arms:
        number = _TURN.match(arm.name)
        prompt = figure(arm, "prompt_tokens", "total_prompt_tokens", "prefix_query_tokens")
        cached = figure(arm, "prefix_hit_tokens", "cached_tokens")
        if number is None or prompt is None or cached is None:
            return []
        out.append(_Turn(float(number[1]), prompt.value, cached.value, str(arm.place)))
    return out


def misses_by_turn(cause: Cause, observed: Observed) -> Finding | None:
    """What of each prompt was there in the turn before, against what was found in the cache."""
    turns = sorted(_of_rows(observed) or turns_in_arms(observed) or _of_slots(observed))
    if len(turns) < LEAST:
        return None
    later = list(itertools.pairwise(turns))
    growing = sum(after.prompt > before.prompt for before, after in later)
    if growing < GROWS * len(later):
        return None  # prompts that do not grow are no history that is sent again
    repeated = sum(before.prompt for before, _ in later)
    hits = sum(min(after.cached, before.prompt) for before, after in later)
    share = hits / repeated
    if share > LOW or any(after.cached > after.prompt for _, after in later):
        return None
    last = turns[-1]
    return cause.finding(
        statement=f"The prefix cache misses a conversation's history: over {len(later)} turns {hits:.0f} of "
        f"{repeated:.0f} tokens that the turn before had were found in it ({share:.0%}), so each turn computes its "
        "whole history again.",
        evidence=[
            Evidence(
                text=f"turn {after.number:.0f}: {after.prompt:.0f} prompt tokens, {after.cached:.0f} cached; the turn "
                f"before had {before.prompt:.0f}",
                source=after.place,
                name="cached_tokens",
                value=after.cached,
                unit="tokens",
            )
            for before, after in later[:6]
        ],
        explains_ms=None,
        relation=f"cached / prompt of the turn before = {hits:.0f} / {repeated:.0f} = {share:.0%}",
        n=len(later),
        advice="Look for what changes at the beginning of the prompt from turn to turn (a date, an id, a reordered "
        "system prompt or tool list), for turns that go to another slot (llama.cpp: id_slot), "
        "for prefix caching that is off (vLLM: --enable-prefix-caching; SGLang: "
        "--disable-radix-cache must be absent), for a router that sends the turns to other replicas, and for a cache "
        f"that is too small. Until then: {shorter_prompts(tokens=last.prompt)}",
        price="Affinity by session makes load uneven; more cache means fewer requests at once.",
        verify="tailrace bench http://localhost:8000 --rate 2 --duration 60 --out after.run",
        missing=[_LACKS],
        rivals=["LB_CACHE_AFFINITY_LOST"],
        level=Level.SUSPECTED,
    )
