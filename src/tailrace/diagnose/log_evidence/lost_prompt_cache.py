"""MIX_CACHE_MISS from llama.cpp's log: it says itself that it computes whole prompts anew, and how long that took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.observed import Observed
from tailrace.diagnose.shorter_prompts import shorter_prompts
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["lost_prompt_cache"]

LEAST_MS: Final = 200.0
"""A prompt computed anew within less delays nobody."""
TWICE: Final = 2


def lost_prompt_cache(cause: Cause, observed: Observed) -> Finding | None:
    """Lines `forcing full prompt re-processing`, with the prefill of the requests of these slots and tasks."""
    lost = observed.of_kind("prompt_cache_lost")
    if not lost:
        return None
    named = {(str(event.attributes.get("slot")), str(event.attributes.get("task"))) for event in lost}
    took: list[tuple[float, float, str]] = []
    for rows in observed.table("requests"):
        keys = zip(rows.texts("slot"), rows.texts("task"), strict=True)
        prefill, tokens = rows.numbers("prefill"), rows.numbers("prompt_tokens")
        for at, key in enumerate(keys):
            if key in named and np.isfinite(prefill[at]):
                took.append((float(prefill[at]), float(tokens[at]), str(rows.line_of(at))))
    times = np.array([one[0] for one in took])
    if times.size and float(np.median(times)) < LEAST_MS:
        return None
    launched = len(observed.of_kind("launched"))
    alike = [value for event in lost if isinstance(value := event.attributes.get("alike"), float)]
    first = lost[0]
    of = f" of {launched}" if launched >= len(lost) else ""
    facts = [
        Evidence(
            f"{len(lost)}{of} prompts were computed anew: “{first.text.strip()[:160]}”",
            str(first.place), "prompt_cache_lost", float(len(lost)),
        )
    ]  # fmt: skip
    missing = []
    relation = f"{len(lost)}{of} prompts computed anew"
    if times.size:
        worst = max(took)
        facts.append(
            Evidence(
                f"their prefill takes {np.median(times):,.0f} ms (median), {worst[0]:,.0f} ms for {worst[1]:,.0f} "
                "tokens at worst",
                worst[2], "prefill", worst[0], "ms",
            )
        )  # fmt: skip
        relation += f"; {worst[1]:,.0f} tokens in {worst[0]:,.0f} ms"
    else:
        missing.append("the timings of these requests (print_timing lines): how long their prefill took")
    if alike:
        facts.append(
            Evidence(
                f"the slot held a prompt alike to {min(alike):.0%} at least", str(first.place), "alike", min(alike)
            )
        )
        relation += f", though {min(alike):.0%} or more of each stood in the slot"
    if len(lost) < TWICE:
        missing.append("more turns: one prompt computed anew may be the first of its kind")
    return cause.finding(
        statement=f"The prompt cache is not used: {len(lost)}{of} prompts were computed anew as a whole"
        + (f", {np.median(times):,.0f} ms of prefill each (median)." if times.size else "."),
        evidence=facts,
        explains_ms=float(np.median(times)) if times.size else None,
        relation=relation,
        n=len(lost),
        advice="The engine says why in that line. Sliding-window and recurrent layers keep only their last state: give "
        "them checkpoints (--ctx-checkpoints, --swa-full for sliding windows, at the price of memory), keep the "
        "beginning of the prompt unchanged, and give each conversation its slot (id_slot, or more of them: "
        f"--parallel). Until then: {shorter_prompts()}",
        price="Checkpoints and full windows take memory from the context.",
        verify="tailrace diagnose server.log  # after the change: no such line, and a short prefill on later turns",
        missing=missing,
        disproof_checked=["the engine names it itself, in its own log"],
        action=Action.TUNE,
        level=Level.SUSPECTED if missing else Level.CONSISTENT,
    )
