"""MIX_CACHE_MISS from an engine's load lines: its hit rate falls while it computes far more prompt tokens.

The rate in a load line counts over a long window: one that falls by so much hides a window that is worse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.observed import Observed
from tailrace.diagnose.observed.load import Load, loads
from tailrace.diagnose.shorter_prompts import shorter_prompts
from tailrace.model.finding import Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["hits_fall_in_load"]

FALL: Final = 0.2
MORE: Final = 2.0
"""Prompt tokens computed a second, late against early."""
LEAST: Final = 8
ALIKE: Final = 1.5
"""Running requests, late against early: with more of them more is computed anyway."""


def hits_fall_in_load(cause: Cause, observed: Observed) -> Finding | None:
    """The first engine whose hit rate falls by a fifth or more of all tokens while its prompt throughput doubles."""
    for load in loads(observed):
        found = _of(cause, load)
        if found is not None:
            return found
    return None


def _of(cause: Cause, load: Load) -> Finding | None:
    hits, prompts, running = (load.get(name) for name in ("prefix_hit", "prompt_tok_s", "running"))
    known = np.flatnonzero(np.isfinite(hits) & np.isfinite(prompts) & (running > 0))
    if known.size < LEAST:
        return None
    part = max(known.size // 4, 2)
    early, late = known[:part], known[-part:]
    was, now = float(np.median(hits[early])), float(np.median(hits[late]))
    slow, fast = float(np.median(prompts[early])), float(np.median(prompts[late]))
    many = float(np.median(running[late])) / max(float(np.median(running[early])), 1.0)
    if was - now < FALL or fast < MORE * max(slow, 1.0) or many > ALIKE:
        return None
    made = load.get("output_tok_s")
    facts = [
        Evidence(f"prefix cache hit rate {was:.1%} at first", load.where(int(early[0])), "prefix_hit_first", was),
        Evidence(f"prefix cache hit rate {now:.1%} at last", load.where(int(late[-1])), "prefix_hit", now),
        Evidence(
            f"prompts are computed at {slow:,.0f} tok/s at first, {fast:,.0f} tok/s at last",
            load.where(int(late[-1])), "prompt_tok_s", fast, "tok/s",
        ),
        Evidence(f"running requests x {many:.2f}", load.where(int(late[-1])), "running", many),
    ]  # fmt: skip
    if load.has("output_tok_s"):
        before, after = float(np.nanmedian(made[early])), float(np.nanmedian(made[late]))
        facts.append(
            Evidence(f"{before:,.0f} -> {after:,.0f} tok/s come out", load.place.source, "output_tok_s", after)
        )
    return cause.finding(
        statement=f"The prefix cache finds less and less: its hit rate falls from {was:.1%} to {now:.1%} while prompts "
        f"computed rise from {slow:,.0f} to {fast:,.0f} tok/s for as many requests.",
        evidence=facts,
        explains_ms=None,
        relation=f"{was:.1%} - {now:.1%} = {was - now:.1%}; {fast:,.0f} / {slow:,.0f} = {fast / max(slow, 1.0):.1f} x",
        n=int(known.size),
        advice="Look what changed then: routing that scatters sessions, a changing beginning of the prompt, evictions "
        "(the cache is too small for all prefixes), a switch. The rate in the log counts over a long time: the window "
        f"itself is worse than it says. Until then: {shorter_prompts()}",
        price="Cached prefixes take KV cache from running requests.",
        verify="tailrace diagnose before.prom after.prom  # hits and queries as counters over the slow window",
        missing=[
            "the prefix cache's counters at two moments (hits and queries): the log's rate counts over a long window",
            "how much of the prompts repeats, before and after: other prompts make the rate fall too",
        ],
        rivals=["LB_CACHE_AFFINITY_LOST", "MIX_SHIFT"],
        disproof_checked=[f"running requests are alike: x {many:.2f}"],
        level=Level.SUSPECTED,
    )
