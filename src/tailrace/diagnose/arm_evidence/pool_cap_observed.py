"""GW_CONN_POOL_CAP: the proxy's connections to the engine are all taken, and requests wait for one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tailrace.diagnose.arms.asked import number_stated, worded
from tailrace.diagnose.arms.shown import evidence_of_setting, number
from tailrace.diagnose.observed import Observed, Series
from tailrace.model.finding import Action, Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["pool_cap_observed"]

ROUND: Final = (10, 16, 20, 25, 32, 50, 64, 75, 100, 128, 150, 200, 250, 256, 300, 400, 500, 512, 1000, 1024, 2048)
"""Limits that people and libraries set; aiohttp's connector has 100."""
MORE: Final = 1.2
FLAT: Final = 3
"""So many readings at the cap make a plateau."""
WAITING: Final = 0.02


class _Plateau(NamedTuple):
    cap: float
    client: float
    waiting: float | None
    readings: int
    places: tuple[str, str, str]


def pool_cap_observed(cause: Cause, observed: Observed) -> Finding | None:
    """A plateau in the series, or the same numbers in a table or a form."""
    found = _in_series(observed) or _in_arms(observed) or _in_settings(observed)
    if found is None:
        return None
    if found.waiting is not None and found.waiting > max(1.0, WAITING * found.cap):
        return None
    missing = []
    if found.waiting is None:
        missing.append("waiting requests of the engine at the plateau (0 clears it)")
    if found.readings < FLAT:
        missing.append("in-flight requests on both sides over time: a cap is flat while the load rises")
    limit = number_stated(
        observed, r"(?:pool|connector|connection|max connections|keepalive).*(?:limit|size|cap|max)|max connections"
    )
    round_number = int(found.cap) in ROUND
    if not round_number and limit is None:
        missing.append("the connection limit of the proxy (aiohttp TCPConnector limit, pool size)")
    waits = found.client - found.cap
    waiting = "unknown" if found.waiting is None else number(found.waiting)
    return cause.finding(
        statement=f"In flight to the engine stops at {number(found.cap)} while {number(found.client)} requests are in "
        f"flight before the proxy, and the engine's waiting is {waiting}: the proxy's connection pool is full, and "
        f"{number(waits)} requests wait in it where no engine metric sees them.",
        evidence=[
            Evidence(
                f"in flight before the proxy: {number(found.client)}",
                found.places[0],
                "inflight_client",
                found.client,
            ),
            Evidence(
                f"in flight to the engine: {number(found.cap)} (in {found.readings} "
                f"reading{'s' if found.readings != 1 else ''})",
                found.places[1],
                "inflight_upstream",
                found.cap,
            ),
            *(
                [Evidence(f"the engine's waiting: {waiting}", found.places[2], "waiting", found.waiting)]
                if found.waiting is not None
                else []
            ),
            *([evidence_of_setting(limit)] if limit is not None else []),
            Evidence(f"{number(waits)} requests wait in the pool", found.places[0], "pool_wait", waits),
        ],
        explains_ms=None,
        relation=f"{number(found.client)} - {number(found.cap)} = {number(waits)} waiting for a connection; "
        f"{number(found.cap)} is {'a usual limit' if round_number else 'the plateau'}"
        + (" (aiohttp's default)" if found.cap == 100 else ""),
        n=found.readings,
        advice="Raise the proxy's connection limit above the engine's max_num_seqs plus its queue (aiohttp: "
        "TCPConnector(limit=0) or a number; httpx: Limits(max_connections=…); nginx: keepalive and "
        "worker_connections), and count the wait for a connection as queue.",
        price="The queue moves into the engine; bound it there or at the gateway, or it grows without limit.",
        verify=(
            f"tailrace bench http://localhost:8080 --concurrency {int(2 * found.cap)} --duration 60 --out after.run"
        ),
        missing=missing,
        disproof_checked=[f"the engine's waiting is {waiting}"],
        action=Action.TUNE,
    )


def _in_series(observed: Observed) -> _Plateau | None:
    client, upstream = _one(observed, "inflight_client"), _one(observed, "inflight_upstream")
    if client is None or upstream is None:
        return None
    size = min(len(client), len(upstream))
    before, behind = client.values[:size], upstream.values[:size]
    if not np.isfinite(behind).any():
        return None
    cap = float(np.nanmax(behind))
    full = np.flatnonzero((behind >= cap - max(1.0, 0.01 * cap)) & (before > MORE * cap))
    if full.size < 2 or cap < ROUND[0]:
        return None
    last = int(full[-1])
    waiting = _one(observed, "waiting", "engine_waiting")
    found = None
    if waiting is not None and len(waiting) >= last + 1:
        found = float(np.nanmax(waiting.values[full[full < len(waiting)]]))
    return _Plateau(
        cap,
        float(before[last]),
        found,
        int(full.size),
        (
            str(client.line_of(last)),
            str(upstream.line_of(last)),
            str(waiting.line_of(last)) if waiting is not None else "",
        ),
    )


def _one(observed: Observed, *names: str) -> Series | None:
    return next((item for name in names for item in observed.of_series(name) if len(item)), None)


_CLIENT: Final = r"(?:client|downstream|before).*(?:in.?flight|concurren|connections)|in.?flight.*(?:client|downstream)"
_UPSTREAM: Final = (
    r"(?:upstream|engine|backend|behind).*(?:in.?flight|connections)|in.?flight.*(?:upstream|engine|backend)"
)
_WAITING: Final = r"(?:engine )?(?:waiting|queued|pending)"


def _in_arms(observed: Observed) -> _Plateau | None:
    """Rows along the load: the busiest tells, the others make the plateau."""
    rows = []
    for arm in observed.arms:
        behind = worded(arm, _UPSTREAM)
        before = worded(arm, _CLIENT) or arm.quoted("concurrency")
        if before is not None and behind is not None:
            rows.append((before, behind, worded(arm, _WAITING), arm))
    if not rows:
        return None
    rows.sort(key=lambda row: row[0].value)
    cap = max(row[1].value for row in rows)
    full = [row for row in rows if row[1].value >= cap - max(1.0, 0.01 * cap) and row[0].value > MORE * cap]
    if not full or cap < ROUND[0]:
        return None
    before, behind, waiting, arm = full[-1]
    place = str(arm.place) or "form"
    return _Plateau(
        cap, before.value, None if waiting is None else waiting.value, len(full),
        (str(before.place) or place, str(behind.place) or place, place),
    )  # fmt: skip


def _in_settings(observed: Observed) -> _Plateau | None:
    client, upstream = number_stated(observed, _CLIENT), number_stated(observed, _UPSTREAM)
    if client is None or upstream is None or client.number is None or upstream.number is None:
        return None
    if client.number <= MORE * upstream.number or upstream.number < ROUND[0]:
        return None
    waiting = number_stated(observed, _WAITING)
    place = str(client.place) or "form"
    return _Plateau(
        upstream.number, client.number, waiting.number if waiting is not None else None, 1, (place, place, place)
    )
