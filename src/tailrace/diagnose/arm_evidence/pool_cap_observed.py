"""GW_CONN_POOL_CAP: the proxy's connections to the engine are all taken, and requests wait for one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.arms.asked import figure, number_stated, worded
from tailrace.diagnose.arms.pairs import changed
from tailrace.diagnose.arms.shown import evidence_of_setting, number
from tailrace.diagnose.observed import Observed, Series
from tailrace.diagnose.series_evidence.saturation_in_series import over_engines
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
FULL: Final = 0.9
"""KV usage from which the engine itself may hold requests back."""
_DEFAULTS: Final = {100: " (the default of aiohttp and of httpx)", 10: " (the default of requests and urllib3)"}
_FROM_CLIENTS: Final = re.compile(
    r"(?:open|active|in.?flight|connected|requests|connections|sockets).*(?:client|user|downstream|front)|"
    r"(?:client|user|downstream|frontend).*(?:open|active|in.?flight|connected|requests|connections|sockets)"
)
_TO_ENGINE: Final = re.compile(
    r"(?:^|(?:open|active|in.?flight|requests|connections|sockets|conns) )to (?:the )?"
    r"(?:engine|upstream|backend|vllm|model)|"
    r"(?:engine|upstream|backend).*(?:open|active|in.?flight|connections|sockets|conns)"
)


class _Plateau(NamedTuple):
    cap: float
    client: float
    waiting: float | None
    readings: int
    places: tuple[str, str, str]


def pool_cap_observed(cause: Cause, observed: Observed) -> Finding | None:
    """A plateau in the series, or the same numbers in a table or a form."""
    found = _in_series(observed) or _in_arms(observed) or _in_settings(observed) or _in_engine(observed)
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
        + _DEFAULTS.get(int(found.cap), ""),
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
    client = _one(observed, "inflight_client", "concurrency") or _worded(observed, _FROM_CLIENTS)
    upstream = _one(observed, "inflight_upstream") or _worded(observed, _TO_ENGINE) or _one(observed, "running")
    if client is None and upstream is not None and upstream.name == "inflight_upstream":
        # `proxy_inflight` beside what the engine runs: the proxy's own count is the outer one.
        client, upstream = upstream, _one(observed, "running")
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


def _in_engine(observed: Observed) -> _Plateau | None:
    """The engine runs the same round number in every reading and has room for more, which are under way before it."""
    running, waiting = over_engines(observed, "running"), over_engines(observed, "waiting")
    if running is None or waiting is None or len(running) < FLAT or not np.isfinite(running.values).any():
        return None
    cap = float(np.nanmax(running.values))
    top = np.flatnonzero(running.values >= cap - max(1.0, 0.01 * cap))
    # The load may begin or end within the readings: between the first and the last at the cap nothing leaves it.
    stays = top.size >= max(FLAT, 0.8 * (top[-1] - top[0] + 1)) and bool((running.values[top] == cap).mean() >= 0.5)
    limit = number_stated(observed, r"pool|connector|connection limit|max connections")
    usual = int(cap) in ROUND or (limit is not None and limit.number == cap)
    own = (observed.number("max_num_seqs"), observed.number("max_running_requests"), observed.number("parallel"))
    if not stays or not usual or cap in own:
        return None
    kv = [float(np.nanmax(item.values)) for item in observed.of_series("kv_usage") if np.isfinite(item.values).any()]
    if kv and max(kv) >= FULL:
        return None
    engines = {item.labels.get("engine", "") for item in observed.of_series("running")}
    if len(engines) < (observed.number("data_parallel", "replicas") or 1.0):
        return None  # the rest may run on the engines that are not shown
    client = _under_way(observed, top)
    if client is None or client[0] <= MORE * cap:
        return None
    waits = waiting.values[top[top < len(waiting)]]
    last = int(top[-1])
    return _Plateau(
        cap,
        client[0],
        float(np.nanmax(waits)) if waits.size and np.isfinite(waits).any() else None,
        int(top.size),
        (client[1], str(running.line_of(last)), str(waiting.line_of(min(last, len(waiting) - 1)))),
    )


def _under_way(observed: Observed, top: NDArray[np.int64]) -> tuple[float, str] | None:
    """(requests under way before the engine while it stands at its cap, where that is told)."""
    series = _one(observed, "inflight_client", "concurrency")
    if series is not None:
        seen = series.values[top[top < len(series)]]
        if seen.size and np.isfinite(seen).any():
            return float(np.nanmedian(seen)), str(series.line_of(int(top[-1]) if top[-1] < len(series) else 0))
    stated = number_stated(observed, _CLIENT)
    if stated is not None and stated.number is not None:
        return stated.number, str(stated.place) or "form"
    at_once = [found for arm in observed.arms if (found := arm.quoted("concurrency")) is not None]
    most = max(at_once, key=lambda item: item.value, default=None)
    return None if most is None else (most.value, str(most.place) or "form")


def _worded(observed: Observed, words: re.Pattern[str]) -> Series | None:
    """A series of counts that no vocabulary names, by the words of its name."""
    named = (item for item in observed.series if len(item) and not item.unit and not item.name.endswith("_total"))
    return next((item for item in named if words.search(item.name.replace("_", " "))), None)


def _one(observed: Observed, *names: str) -> Series | None:
    return next((item for name in names for item in observed.of_series(name) if len(item)), None)


_CLIENT: Final = (
    r"(?:client|downstream|before|proxy|gateway|load).*(?:in.?flight|concurren|connections|threads|workers|users)|"
    r"in.?flight.*(?:client|downstream|proxy|gateway)|^(?:max )?concurrency$|"
    r"^(?:concurrent|virtual) (?:users|requests|clients)$|^(?:users|clients)$"
)
_UPSTREAM: Final = (
    r"(?:upstream|engine|backend|behind).*(?:in.?flight|connections)|in.?flight.*(?:upstream|engine|backend)"
)
_POOL: Final = re.compile(r"pool|connect|limit|keep.?alive", re.IGNORECASE)
_WAITING: Final = r"(?:engine )?(?:waiting|queued|pending)"


def _in_arms(observed: Observed) -> _Plateau | None:
    """Rows along the load: the busiest tells, the others make the plateau."""
    rows = []
    for arm in observed.arms:
        waiting = worded(arm, _WAITING) or figure(arm, "waiting")
        # What runs in the engine stops at its own limits too: only that nobody waits there says who holds the rest.
        behind = worded(arm, _UPSTREAM) or (figure(arm, "running") if waiting is not None else None)
        before = worded(arm, _CLIENT) or arm.quoted("concurrency")
        if before is not None and behind is not None:
            rows.append((before, behind, waiting, arm))
    if not rows:
        return None
    rows.sort(key=lambda row: row[0].value)
    cap = max(row[1].value for row in rows)
    full = [row for row in rows if row[1].value >= cap - max(1.0, 0.01 * cap) and row[0].value > MORE * cap]
    if not full and len(rows) > 1 and _POOL.search(changed(observed)):
        # The limit is what was changed: the arm with the old one stops at it, the other goes on.
        low = min(rows, key=lambda row: row[1].value)
        cap = low[1].value
        full = [low] if low[0].value > MORE * cap else []
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
