"""LB_CACHE_AFFINITY_LOST: the turns of a session go to other replicas than the one that has their history cached."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.reuse import LEAST, reuse
from tailrace.diagnose.window import Window
from tailrace.model.finding import Evidence, Finding

__all__ = ["affinity_in_records"]

MOVED: Final = 0.2
HALF: Final = 0.6
"""Those that moved hit less than this much of what those that stayed hit."""
FALL: Final = 0.1
SMALL_FALL: Final = 0.05
APART: Final = 0.15
LATER: Final = 0.05
OF_USUAL: Final = 0.2
"""Of the usual TTFT: so much is computed again for the mean request that the engine has less room for everything."""
ENOUGH: Final = 0.3
"""Of the rise of the mean TTFT, what must be computed again to explain it."""


def affinity_in_records(cause: Cause, evidence: EvidenceSet) -> Finding | None:  # noqa: PLR0911  (one a condition)
    """Many turns move, and those that moved have lost their cached history."""
    window = evidence.now
    if cause.cannot_run(evidence):
        return None
    seen = reuse(window)
    moved = float(seen.moved[seen.later].mean())
    if moved < MOVED:
        return None
    before = evidence.before
    old = reuse(before) if before is not None and before.n else None
    was = float(old.moved[old.later].mean()) if old is not None and old.later.sum() >= LEAST else None
    if was is not None and moved < was + MOVED / 2:
        return None
    missing = []
    if not seen.known:
        missing.append("cached tokens of the requests (usage.prompt_tokens_details)")
    gone, stayed = (
        float(seen.cached[rows].sum() / max(float(seen.repeat[rows].sum()), 1.0))
        for rows in (seen.moved, seen.later & ~seen.moved)
    )
    if seen.known and gone > HALF * max(stayed, 0.1) and was is None:
        return None
    if was is None:
        missing.append("a window from before the routing changed")
    elif old is not None and old.known and seen.known:
        # Where those that moved hit less than those that stayed, a smaller fall of the whole is theirs.
        least = SMALL_FALL if gone < stayed - APART else FALL
        if seen.hit > old.hit - least:
            return None
    computed = np.where(seen.moved, np.maximum(seen.repeat - seen.cached, 0.0), 0.0)
    extra = computed * _ms_a_token(window, seen.cached)
    explains = window.explain(cause.code, np.minimum(extra, np.nan_to_num(window.done.ms("ttft"), nan=0.0)))
    if not cause.carries(evidence, explains) and not _moves_the_usual(evidence, np.minimum(extra, 1e9)):
        return None
    return cause.finding(
        statement=f"Sessions have lost their replica: {moved:.0%} of the later turns go to another one than the "
        f"turn "
        f"before{'' if was is None else f' ({was:.0%} earlier)'}, and find {gone:.0%} of their history cached "
        f"there "
        f"instead of {max(stayed, old.hit if old is not None else 0.0):.0%}.",
        evidence=[
            Evidence(
                f"{moved:.0%} of {int(seen.later.sum())} later turns changed their replica"
                + ("" if was is None else f", {was:.0%} in the window before"),
                "record:session_id, record:backend",
                "moved",
                round(moved, 4),
            ),
            Evidence(
                f"cached of the repeated history: {gone:.0%} after a move, {stayed:.0%} without one",
                "record:cached_tokens",
                "hit_moved",
                round(gone, 4),
            ),
            *(
                [
                    Evidence(
                        f"hit rate of all prompt tokens {old.hit:.0%} -> {seen.hit:.0%}",
                        "record:cached_tokens",
                        "hit",
                        round(seen.hit, 4),
                    )
                ]
                if old is not None and old.known
                else []
            ),
            Evidence(
                f"{np.median(computed[seen.moved]):,.0f} tokens of history are computed again (median of those "
                f"that "
                "moved)",
                "record:prompt_tokens",
                "recomputed",
                round(float(np.median(computed[seen.moved])), 1),
            ),
        ],
        explains_ms=explains,
        relation=f"hit after a move {gone:.0%} < {HALF:.0%} x {stayed:.0%} without one",
        n=int(seen.later.sum()),
        advice="Restore the stickiness (route by session id or by a hash of the prefix, with the same tie-break), "
        "bounded by load; compare the hit rate by session before and after.",
        price="A hot session may make its replica the fullest: bound the affinity.",
        verify=evidence.verify_command,
        missing=missing,
        disproof_checked=[f"hit rate within sessions {gone:.0%} moved, {stayed:.0%} stayed"],
    )


def _moves_the_usual(evidence: EvidenceSet, extra: np.ndarray) -> bool:
    """Whether what is computed again makes the usual first token later, although others make the tail."""
    before, window = evidence.before, evidence.now
    if before is None:
        return False
    old, new = (side.done.ms("ttft") for side in (before, window))
    old, new = old[~np.isnan(old)], new[~np.isnan(new)]
    if min(old.size, new.size) < 100:
        return False
    rose = float(new.mean() - old.mean())
    usual = float(np.median(new))
    cost = float(extra.mean())
    return (rose > LATER * float(np.median(old)) and cost >= ENOUGH * rose) or cost >= OF_USUAL * usual


def _ms_a_token(window: Window, cached: np.ndarray) -> float:
    """What a computed prompt token takes (ms): as the engine reports it of longer prompts; else by TTFT."""
    prefill = window.done.ms("prefill")
    tokens = np.maximum(np.nan_to_num(window.tokens, nan=0.0) - cached, 0.0)
    known = ~np.isnan(prefill) & (tokens > 0)
    if window.reported and known.any():
        large = known & (tokens >= np.median(tokens[known]))
        return float(np.median(prefill[large] / tokens[large]))
    rate = window.seconds_a_token
    return 0.0 if np.isnan(rate) else rate * 1e3
