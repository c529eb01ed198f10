"""SCHED_QUEUE_SATURATION from a line or two of an engine's log: more wait than may run. One look may be a burst."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from tailrace.diagnose.kv_cache import KV_FULL, thrown_out
from tailrace.diagnose.observed import Observed
from tailrace.diagnose.observed.load import Load, loads
from tailrace.model.finding import Action, Evidence, Finding, Level

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["queue_in_snapshot"]

DEEP: Final = 0.5
"""Waiting against running: a shallower queue turns over within a moment."""
LEAST: Final = 3
MANY: Final = 8
"""Of so many lines a queue that does not stay is none: then other rules have looked."""
STAYS: Final = 0.6
"""Of the lines must have it."""
KV_ROOM: Final = 0.5
STEADY: Final = 0.05
ONE_SPEED: Final = 3
"""Lines in which prompts are computed at one speed, for that speed to be the limit."""


def queue_in_snapshot(cause: Cause, observed: Observed) -> Finding | None:
    """The line with the deepest queue, while tokens come out and the cache has room; never more than a suspicion."""
    if thrown_out(observed):
        return None
    found = [(load, at) for load in loads(observed) if (at := _deepest(load)) is not None]
    if not found:
        return None
    load, at = max(found, key=lambda one: float(one[0].get("waiting")[one[1]]))
    waiting, running = load.get("waiting"), load.get("running")
    wait, run, n = float(waiting[at]), float(running[at]), len(load)
    kv = float(np.nanmax(load.get("kv_usage"))) if load.has("kv_usage") else None
    place = load.where(at)
    facts = [
        Evidence(f"{wait:g} wait while {run:g} run", place, "waiting", wait),
        Evidence(f"{run:g} run", place, "running", run),
    ]
    made = float(load.get("output_tok_s")[at])
    if not math.isnan(made):
        facts.append(
            Evidence(
                f"{made:g} tok/s come out, {made / run:.2f} tok/s per stream",
                place,
                "output_tok_s",
                made,
                "tok/s",
            )
        )
    if kv is not None:
        facts.append(Evidence(f"KV usage at most {kv:.0%}", load.place.source, "kv_usage", round(kv, 4)))
    known = waiting[np.isfinite(waiting)]
    drains = known.size > 1 and known[-1] < known[0]
    if known.size > 1:
        facts.append(Evidence(f"waiting goes from {known[0]:g} to {known[-1]:g}", load.place.source, "waiting_last"))
    speed = _prompt_speed(load)
    if speed is not None:
        facts.append(
            Evidence(
                f"prompts are computed at {speed:.0f} tok/s in every line", load.place.source, "prompt_tok_s", speed,
                "tok/s",
            )
        )  # fmt: skip
    room = kv is not None and kv < KV_ROOM and speed is None
    return cause.finding(
        statement=f"Requests wait for the scheduler: {wait:g} wait while {run:g} run"
        + (f" (the queue goes from {known[0]:g} to {known[-1]:g}: a burst that drains)" if drains else "")
        + (
            f". Prompts are computed at {speed:.0f} tok/s in every line: prefill is what they wait for"
            if speed is not None
            else f". The KV cache is not what limits it (at most {kv:.0%}): a cap on running requests may"
            if room and kv is not None
            else ""
        )
        + ".",
        evidence=facts,
        explains_ms=None,
        relation=f"waiting {wait:g} > {DEEP:g} x running {run:g}" + (f", KV {kv:.0%}" if kv is not None else ""),
        n=n,
        advice=(
            "First the limits: raise the cap on running requests (vLLM --max-num-seqs, SGLang --max-running-requests) "
            "step by step with TPOT beside it; the cache has room. "
            if room
            else "Shorten what has to be computed first: retrieve fewer chunks, trim the history, cache prefixes; a "
            "larger step (--max-num-batched-tokens, --chunked-prefill-size) computes prompts faster and lets streams "
            "wait longer. "
            if speed is not None
            else "First the limits: a sweep of the cap on running requests with TPOT beside it. "
        )
        + "What cannot be served in time is shed at the gateway (a queued limit and 429); a longer timeout only hides "
        "the queue.",
        price="TPOT rises with the batch; refused requests must be tried again by their clients.",
        verify="tailrace bench http://localhost:8000 --sweep rate=1,2,4,8 --duration 30",
        missing=[
            f"the log of the whole slow window: {n} line{'s' if n > 1 else ''} may show a burst",
            "how many requests came and how many were served",
        ],
        rivals=["TUNE_NOT_SCALE"] if room else ["SCHED_PREFILL_STEALS_DECODE"] if speed is not None else [],
        disproof_checked=["no line of preemption", *([f"KV usage at most {kv:.0%}"] if kv is not None else [])],
        action=Action.TUNE if room or speed is not None else Action.SHED,
        level=Level.SUSPECTED,
    )


def _deepest(load: Load) -> int | None:
    """The line with the deepest queue among those in which something is served; `None` where none is deep."""
    if len(load) > MANY or not load.has("waiting") or not load.has("running"):
        return None
    waiting, running = load.get("waiting"), load.get("running")
    kv = load.get("kv_usage")
    with np.errstate(invalid="ignore"):
        deep = (waiting >= np.maximum(DEEP * running, LEAST)) & (running >= 1) & (load.get("output_tok_s") > 0)
        deep &= ~(kv >= KV_FULL)
    at = np.flatnonzero(deep)
    # A spike among calm lines is no queue.
    if at.size < STAYS * np.count_nonzero(np.isfinite(waiting) & (load.get("output_tok_s") >= 0)):
        return None
    return int(at[int(np.argmax(waiting[at]))]) if at.size else None


def _prompt_speed(load: Load) -> float | None:
    """The speed at which prompts are computed all the time (tok/s); `None` where it varies or is not known."""
    speed = load.get("prompt_tok_s")
    speed = speed[np.isfinite(speed)]
    if speed.size < ONE_SPEED or not (speed > 0).all():
        return None
    middle = float(np.median(speed))
    return middle if float(np.abs(speed - middle).max()) <= STEADY * middle else None
