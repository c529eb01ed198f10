"""GW_CONN_POOL_CAP: requests wait for a connection, not for the engine."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tailrace.diagnose.cause import Cause
from tailrace.diagnose.evidence import EvidenceSet
from tailrace.diagnose.in_flight import account
from tailrace.diagnose.window import Window
from tailrace.model.finding import Evidence, Finding
from tailrace.stats.quantiles import median, or_zero, quantile

__all__ = ["pool_in_records"]

IDLE: Final = 0.5
FLAT: Final = 0.15
"""Share of the requests that found the engine at its most, with more of ours under way than it had."""
LEAST: Final = 20
BETWEEN: Final = 3.0
"""Requests of ours under way that the engine does not have, from which somebody between us holds them."""
USUAL: Final = (8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 250, 256, 500, 512, 1000, 1024)
"""Caps that pools have by default."""


class _Cap(NamedTuple):
    cap: int
    """Requests that get through at once."""
    explains: float
    waited: int
    source: str
    text: str


def pool_in_records(cause: Cause, evidence: EvidenceSet) -> Finding | None:
    """By the gateway's own pool; else by requests that neither it nor the engine has."""
    window = evidence.now
    if cause.cannot_run(evidence) or window.n < LEAST:
        return None
    found = _own_pool(window) or _between(window)
    if found is None or not cause.carries(evidence, found.explains):
        return None
    missing, checked = [], []
    waiting = window.done.column("waiting_at_admission")
    waiting = waiting[~np.isnan(waiting)]
    if waiting.size:
        idle = float((waiting == 0).mean())
        checked.append(f"the engine had nobody waiting for {idle:.0%} of the requests")
        if idle < IDLE:
            return None
    else:
        missing.append("waiting requests of the engine (its /metrics)")
    round_ = " (a default of connection pools)" if found.cap in USUAL else ""
    share = found.explains / max(window.tail_lost_ms, 1e-9)
    return cause.finding(
        statement=f"A connection pool is the limit: {found.cap} requests get through to the engine at once, and "
        f"{found.waited} had to wait for one of them to end, although the engine has room.",
        evidence=[
            Evidence(
                f"at most {found.cap} requests are with the engine at once{round_}",
                found.source,
                "cap",
                float(found.cap),
            ),
            Evidence(f"{found.waited} of {window.n} requests: {found.text}", found.source, "waited", found.waited),
            Evidence(
                f"{found.explains:.0f} of {window.tail_lost_ms:.0f} ms that the slowest requests lost",
                found.source,
                "explains_ms",
                round(found.explains, 1),
                "ms",
            ),
            *(Evidence(text, "record:waiting_at_admission", "idle") for text in checked),
        ],
        explains_ms=found.explains,
        relation=f"pool wait / lost = {found.explains:.0f} / {window.tail_lost_ms:.0f} ms = {share:.0%} in the "
        f"tail; in flight flat at {found.cap}, engine waiting 0",
        n=found.waited,
        advice=f"Raise or remove the pool's limit (now {found.cap}): `upstream_connections` here, limit= of "
        f"aiohttp's "
        "TCPConnector, max_connections of httpx, keepalive and max_conns of nginx; and count the wait for a "
        "connection as queue. Put the limit that you want into a lane, where it is seen.",
        price="More requests share the engine's steps: TPOT rises a little for everybody.",
        verify=evidence.verify_command,
        missing=missing,
        disproof_checked=checked,
    )


def _own_pool(window: Window) -> _Cap | None:
    wait = or_zero(window.done.ms("pool_wait"))
    held = wait > 1.0
    if held.sum() < 5:
        return None
    known = account(window)
    got = known.sent + or_zero(window.every.column("pool_wait_ns"))
    through = np.sort(got[known.reached]), np.sort(known.end[known.reached])
    # Whoever waits for a connection gets it when another one is given back: so many are out then.
    at = (known.sent + 1.0)[window.rows][held]
    out = np.searchsorted(through[0], at, side="right") - np.searchsorted(through[1], at, side="right")
    return _Cap(
        int(np.median(out)),
        window.in_tail(wait),
        int(held.sum()),
        "record:pool_wait_ns",
        f"waited for a connection, {median(wait[held]):.0f} ms (median)",
    )


def _between(window: Window) -> _Cap | None:
    """More of ours is under way than the engine has: somebody between holds the rest."""
    known = account(window)
    ours = known.upstream().at(known.sent)[window.rows] - 1.0
    running = window.done.column("running_at_admission")
    theirs = running + or_zero(window.done.column("waiting_at_admission"))
    seen = ~np.isnan(running)
    if seen.sum() < LEAST:
        return None
    cap = quantile(running[seen], 0.99)
    between = seen & (ours - theirs >= BETWEEN)
    at_cap = between & (running >= 0.95 * cap - 1)
    if cap < 1 or at_cap.sum() < max(5, FLAT * seen.sum()) or at_cap.sum() < 0.6 * between.sum():
        return None
    # Below the cap everybody gets through: the two counts agree there.
    below = seen & (ours < 0.7 * cap)
    if below.sum() >= LEAST and abs(median((ours - theirs)[below])) >= BETWEEN:
        return None
    waited = np.where(between, window.lost.first_token, 0.0)
    return _Cap(
        round(cap),
        window.in_tail(waited),
        int(between.sum()),
        "record:running_at_admission, record:start",
        f"{median((ours - theirs)[between]):.0f} of our requests under way that the engine does not have (median)",
    )
