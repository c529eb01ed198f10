"""SCHED_PREFILL_STEALS_DECODE without an engine's log: from stated numbers, or requests with what ran beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailrace.diagnose.engine_settings import step_budget
from tailrace.diagnose.log_evidence.prefill import ends, prefill_advice
from tailrace.diagnose.observed import Observed, Rows
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["prefill_beside_requests", "prefill_stated"]

PRICE = "The first token of long prompts comes later, because each step computes less of them."
VERIFY = "tailrace bench http://localhost:8000 --mix 'short:0.9,long:0.1' --rate 5 --duration 60 --out after.run"
FALL = 0.8
"""Of the rate alone: a stream beside others that makes less shares its steps."""
PAUSE_S = 2.0


def prefill_stated(cause: Cause, observed: Observed) -> Finding | None:
    """Step budget / prefill rate is the gap that was seen: a suspicion, as long as nobody saw a prefill in the gap."""
    budget = step_budget(observed)
    rate = observed.number("prefill_tok_s", "prompt_tok_s")
    gap = ends(observed.setting("gap_s", "stall_s", "longest_pause_s"))
    if budget is None or not budget.number or not rate or gap is None or observed.series:
        return None
    extra = ends(observed.setting("page_fault_s_per_chunk", "io_s_per_chunk")) or (0.0, 0.0)
    step = budget.number / rate
    if not 0.5 * gap[0] <= step + extra[1] <= 1.5 * gap[1]:
        return None
    shown = f"{gap[0]:g} to {gap[1]:g}" if gap[1] > gap[0] else f"{gap[0]:g}"
    kv = observed.number("kv_usage_pct")
    full = kv is not None and kv >= 98
    prompts = observed.number("prompt_tokens")
    return cause.finding(
        statement=f"A step of {budget.number:g} tokens takes {step:.2f} s at {rate:g} tok/s, and gaps of {shown} s "
        "were "
        "seen: prompts in prefill may take the steps from running streams.",
        evidence=[
            Evidence(
                f"{budget.name} {budget.number:g}", str(budget.place) or "stated", budget.name, budget.number, "tokens"
            ),
            Evidence(f"prefill rate {rate:g} tok/s", "stated", "prefill_tok_s", rate, "tok/s"),
            Evidence(f"{budget.number:g}/{rate:g} = {step:.2f} s a step", "stated", "step", round(step, 3), "s"),
            Evidence(f"gaps of {shown} s", "stated", "gap", gap[0], "s"),
        ],
        explains_ms=step * 1e3,
        relation=f"{budget.number:g}/{rate:g} = {step:.2f} s"
        + (f" + {extra[0]:g} to {extra[1]:g} s of page faults" if extra[1] else "")
        + f"; gaps seen {shown} s",
        n=1,
        advice=prefill_advice(budget, rate, prompts),
        price=PRICE,
        verify=VERIFY,
        missing=[
            "the engine's log of the slow window: that prompts were computed while the streams stood still",
            *([] if kv is not None else ["KV usage or the preemption counter of that time"]),
        ],
        rivals=["SCHED_KV_PREEMPTION"] if full else [],
        disproof_checked=[f"KV usage {kv:g} %"] if kv is not None else [],
    )


def prefill_beside_requests(cause: Cause, observed: Observed) -> Finding | None:
    """Requests make fewer tokens a second and pause for long when others run beside them, and not alone; the size of
    one piece of prefill is known.
    """
    piece = step_budget(observed)
    tables = [rows for rows in observed.table("requests") if rows.has("in_flight")]
    if piece is None or not piece.number or not tables:
        return None
    rows = tables[0]
    beside, rate, pause = rows.numbers("in_flight"), _rate(rows), _pause(rows)
    known = ~np.isnan(beside) & ~np.isnan(rate)
    lone, shared = known & (beside <= 1), known & (beside >= 2)
    told = ends(observed.setting("decode_tok_s_alone", "decode_alone_tok_s"))
    if not shared.any() or np.isnan(pause[shared]).all():
        return None
    alone = float(np.median(rate[lone])) if lone.any() else None if told is None else told[0]
    quiet = float(np.nanmax(pause[lone])) if lone.any() and not np.isnan(pause[lone]).all() else 0.0
    worst = int(np.flatnonzero(shared)[np.nanargmax(pause[shared])])
    longest = float(pause[worst])
    if alone is None or float(np.median(rate[shared])) > FALL * alone or longest < max(PAUSE_S, 5 * quiet):
        return None
    fall = ", ".join(
        f"{np.median(rate[shared & (beside == level)]):g} tok/s with {level:g} in flight"
        for level in np.unique(beside[shared])
    )
    speed = observed.number("prefill_tok_s")
    place = str(rows.line_of(worst))
    return cause.finding(
        statement=f"Streams stop while others' prompts are computed in pieces of {piece.number:g} tokens: the "
        "longest pause "
        f"is {longest:g} s with {beside[worst]:g} in flight, and alone {quiet:g} s.",
        evidence=[
            Evidence(f"longest pause {longest:g} s with {beside[worst]:g} in flight", place, "pause", longest, "s"),
            Evidence(f"longest pause alone {quiet:g} s", rows.place.source, "pause_alone", quiet, "s"),
            Evidence(f"{alone:g} tok/s alone, {fall}", rows.place.source, "decode_tok_s", alone, "tok/s"),
            Evidence(f"{piece.name} {piece.number:g} tokens", str(piece.place) or "stated", piece.name, piece.number),
        ],
        explains_ms=longest * 1e3,
        relation=f"{alone:g} -> {fall}; "
        + (
            f"{piece.number:g}/{speed:g} = {piece.number / speed:.1f} s a piece"
            if speed
            else f"a pause of {longest:g} s is one piece at {piece.number / longest:,.0f} tok/s, or several"
        ),
        n=int(shared.sum()),
        advice=prefill_advice(piece, speed or piece.number / longest, observed.number("prompt_tokens")),
        price=PRICE,
        verify=VERIFY,
        missing=[
            *([] if speed else ["the prefill rate (tok/s) of the engine"]),
            "when prompts were in prefill: the engine's log of the pauses",
        ],
        disproof_checked=[f"alone the longest pause is {quiet:g} s"],
    )


def _rate(rows: Rows) -> np.ndarray:
    """Tokens a second while decoding: told, else from tokens and stamps."""
    if rows.has("decode_tok_s"):
        return rows.numbers("decode_tok_s")
    took = (rows.numbers("t_last_ms") - rows.numbers("t_first_ms")) / 1e3
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(took > 0, (rows.numbers("output_tokens") - 1) / took, np.nan)


def _pause(rows: Rows) -> np.ndarray:
    """The longest gap of each request (s); a table of requests keeps durations in ms."""
    for name in ("longest_pause", "longest_gap", "max_gap", "max_itl", "longest_stall", "max_pause", "max_stall"):
        for column in (name, f"{name}_ms"):
            if rows.has(column):
                return rows.numbers(column) / 1e3
    return np.full(len(rows), np.nan)
