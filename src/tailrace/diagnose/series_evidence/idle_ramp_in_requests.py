"""First requests after a pause are slow, others are fast, and load has nothing to do with it."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.observed import Observed, Rows
from tailrace.model.finding import Action, Evidence, Finding, Level

__all__ = ["idle_before", "idle_ramp_in_requests"]

Floats = NDArray[np.float64]
LEAST: Final = 3
SLOWER: Final = 1.5
APART: Final = 0.9
"""Share of the pairs (after a pause, without one) in which the one after the pause is the slower."""
LEAST_IDLE_S: Final = 1.0


def idle_before(rows: Rows) -> tuple[Floats, Floats]:
    """(seconds in which nothing was in flight before each request was sent, requests in flight at its send)."""
    send, last = rows.numbers("t_send_ms"), rows.numbers("t_last_ms")
    end = np.where(
        np.isfinite(last), last, np.where(np.isfinite(rows.numbers("t_first_ms")), rows.numbers("t_first_ms"), send)
    )
    order = np.argsort(send, kind="stable")
    idle = np.full(send.size, np.nan)
    sent = order[np.isfinite(send[order])]
    # Against the latest end of all that were sent before.
    idle[sent[1:]] = (send[sent[1:]] - np.maximum.accumulate(end[sent])[:-1]) / 1e3
    ends = np.sort(end[np.isfinite(end)])
    begun = np.sort(send[np.isfinite(send)])
    flight = np.searchsorted(begun, send, side="left") - np.searchsorted(ends, send, side="right").astype(float)
    return np.maximum(idle, 0.0), np.maximum(flight, 0.0)


def idle_ramp_in_requests(cause: Cause, observed: Observed) -> Finding | None:
    """The time to the first token splits by the pause before the request."""
    for rows in observed.table("requests"):
        if rows.has("t_send_ms") and rows.has("ttft_ms"):
            found = _of(cause, observed, rows)
            if found is not None:
                return found
    return None


def _of(cause: Cause, observed: Observed, rows: Rows) -> Finding | None:  # noqa: PLR0911  (one disproof after the other)
    ttft = rows.numbers("ttft_ms")
    idle, flight = idle_before(rows)
    ok = np.array([status == "ok" for status in rows.texts("status")], dtype=bool)
    known = ok & np.isfinite(ttft) & np.isfinite(idle)
    if known.sum() < 2 * LEAST:
        return None
    pauses = np.unique(np.maximum(idle[known], 0.05))
    if pauses.size < 2:
        return None
    place = int(np.argmax(pauses[1:] / pauses[:-1]))
    least = float(pauses[place + 1])
    with np.errstate(invalid="ignore"):
        after, without = known & (idle >= least), known & (idle < least)
    if least < LEAST_IDLE_S or min(after.sum(), without.sum()) < LEAST:
        return None
    slow, fast = float(np.median(ttft[after])), float(np.median(ttft[without]))
    faster = np.searchsorted(np.sort(ttft[without]), ttft[after], side="left")
    apart = float(faster.mean()) / float(without.sum())
    if slow < SLOWER * fast or apart < APART:
        return None
    missing, checked = [], []
    tokens = rows.numbers("prompt_tokens")
    if np.isnan(tokens[known]).all():
        missing.append("prompt tokens of each request: those after a pause may be longer")
    else:
        long, short = float(np.nanmedian(tokens[after])), float(np.nanmedian(tokens[without]))
        if long > 1.5 * short:
            return None
        checked.append(f"prompts are alike: {long:.0f} and {short:.0f} tokens")
    if float(np.median(flight[after])) > float(np.median(flight[without])):
        return None  # those after a pause met the larger load
    checked.append(
        f"load does not explain it: {float(np.median(flight[after])):.0f} in flight after a pause, "
        f"{float(np.median(flight[without])):.0f} otherwise"
    )
    a, b, pause = f"{slow:.0f}", f"{fast:.0f}", f"{float(np.median(idle[after])):.3g}"
    source = str(rows.place)
    clocks = any(len(item) >= 3 for item in observed.of_series("sm_clock"))
    return cause.finding(
        statement=f"The first request after a pause is slow: TTFT {a} ms after {pause} s idle, {b} ms back to back, "
        "at equal "
        "prompts and no load. Something sleeps or slows its clock when nothing is asked.",
        evidence=[
            Evidence(
                text=f"TTFT {a} ms (median of {int(after.sum())}) after {pause} s idle or about so",
                source=source,
                name="ttft_after_idle",
                value=slow,
                unit="ms",
            ),
            Evidence(
                text=f"TTFT {b} ms (median of {int(without.sum())}) without a pause",
                source=source,
                name="ttft",
                value=fast,
                unit="ms",
            ),
            Evidence(
                text=f"idle for {least:.3g} s and more goes with a slow first token in {apart:.0%} of all pairs",
                source=source,
                name="separation",
                value=apart,
            ),
        ],
        explains_ms=slow - fast,
        relation=f"{a} ms / {b} ms = {slow / fast:.1f} x after {pause} s idle",
        n=int(known.sum()),
        advice="Keep it warm (a tiny request every few seconds, from the gateway), lock the clocks (`nvidia-smi -lgc`, "
        "persistence mode `-pm 1`), and look for what falls asleep: an idle process that is swapped out, a worker "
        "that polls "
        "ever more rarely, a connection that is opened anew.",
        price="A warm device draws power while nobody asks.",
        verify=(
            "tailrace bench http://localhost:8000 --rate 0.1 --arrival constant --duration 200 --out "
            "idle.run && tailrace bench http://localhost:8000 --concurrency 1 --requests 20 --out "
            "busy.run && tailrace compare busy.run idle.run"
        ),
        missing=missing,
        disproof_checked=[
            *checked,
            "clocks were read" if clocks else "the SM clock at the first token would name the mechanism",
        ],
        action=Action.FIX,
        level=Level.SUSPECTED if missing else Level.CONSISTENT,
    )
