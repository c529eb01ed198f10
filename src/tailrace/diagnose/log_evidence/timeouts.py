"""GW_UPSTREAM_TIMEOUT from an access log: the proxy gave up, always after the same time, before a byte came."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.diagnose.age_cluster import densest
from tailrace.diagnose.configured.timers import alike
from tailrace.diagnose.observed import Observed, Rows
from tailrace.diagnose.timer_ends import ENDED_BY_HOP, GAVE_UP
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["timeout_in_access"]

WIDTH_MS: Final = 15.0
"""A timer ends a request within so much; answers that take long do not agree to so few milliseconds."""
LEAST_MS: Final = 500.0
"""Nobody times a whole answer with less."""
ROUND_MS: Final = 12.0
_ROUND_S: Final = (1, 2, 3, 5, 10, 12, 15, 20, 25, 30, 40, 45, 50, 60, 75, 90, 100, 120, 150, 180, 200, 240, 250, 300,
                   360, 400, 450, 500, 600, 720, 900, 1000, 1200, 1500, 1800, 2400, 3000, 3600, 7200)  # fmt: skip
_SETTINGS: Final = ("proxy_read_timeout", "read_timeout", "upstream_timeout", "route_timeout", "timeout_s", "timeout")
LEAST: Final = 2
OTHER: Final = 3
"""Requests that must agree where the time is no round one."""


class _Timer(NamedTuple):
    rows: Rows
    at: NDArray[np.int64]
    """Those that ended by it."""
    ms: float
    ages: NDArray[np.float64]
    what: str
    round_s: float | None
    named: str
    """The gateway's own word for it (a response flag)."""
    unanswered: bool | None
    failed: int


def timeout_in_access(cause: Cause, observed: Observed) -> Finding | None:
    """Failed requests whose upstream time is one value to some milliseconds, with no byte from the upstream."""
    timers = [timer for rows in observed.table("access") if (timer := _timer(rows)) is not None]
    if not timers:
        return _told(cause, observed)
    timer = max(timers, key=lambda one: one.at.size)
    rows, ages = timer.rows, timer.ages
    near = alike(observed, float(ages.mean()), owner="gateway")
    if (
        near
        and near[0].kind == "idle"
        and not timer.named
        and not np.isin(rows.numbers("status")[timer.at], GAVE_UP).any()
    ):
        return None  # a hop that loses its connection by an idle timer: another cause
    count = float(rows.numbers("count")[timer.at].sum()) if rows.has("count") else float(timer.at.size)
    spread = float(ages.max() - ages.min())
    seconds = ages.mean() / 1e3 if timer.round_s is None else timer.round_s
    status = sorted({int(value) for value in rows.numbers("status")[timer.at] if not math.isnan(value)})
    place = str(rows.line_of(int(timer.at[0])))
    configured = _configured(observed, seconds)
    done = _done(rows)
    values = ", ".join(f"{value / 1e3:.3f}" for value in ages[:6])
    timer_words = f"a timer of {seconds:g} s" if timer.round_s is not None else f"a timer of about {seconds:.3f} s"
    facts = [
        Evidence(
            text=f"{count:g} requests failed with upstream time {values}{' …' if ages.size > 6 else ''} s"
            if timer.what == "upstream"
            else f"{count:g} requests failed after {values}{' …' if ages.size > 6 else ''} s",
            source=place,
            name="upstream_time",
            value=round(float(ages.mean()) / 1e3, 4),
            unit="s",
        ),
        Evidence(f"they agree to {spread:.0f} ms", place, "spread", round(spread, 2), "ms"),
        Evidence(f"status {', '.join(map(str, status))}", place, "status", float(status[0]) if status else None),
    ]
    if timer.unanswered is not None:
        facts.append(
            Evidence(
                text="0 bytes had come from the upstream"
                if timer.unanswered
                else "some bytes had come from the upstream",
                source=place,
                name="upstream_bytes",
                value=0.0 if timer.unanswered else None,
            )
        )
    if timer.named:
        facts.append(Evidence(f"the gateway's own word: {timer.named}", place))
    if done is not None:
        facts.append(
            Evidence(f"the longest answered request took {done / 1e3:.1f} s", rows.place.source, "longest", done, "ms")
        )
    missing, checked = [], [f"{timer.failed} failed, {count:g} of them at {seconds:g} s"]
    if configured is not None:
        facts.append(
            Evidence(f"{configured[0]} is {configured[1]:g} s", configured[2], configured[0], configured[1], "s")
        )
        checked.append(f"a configured timer of {configured[1]:g} s is there")
    elif timer.at.size < LEAST and not timer.named:
        missing.append("the proxy's timeouts (proxy_read_timeout, route timeout): one request may agree by chance")
    if timer.unanswered is None and not timer.named:
        missing.append("$upstream_response_length: whether a byte had come")
    stage = "before the first byte: queue or prefill (or the whole answer, where it is not streamed)"
    return cause.finding(
        statement=f"The proxy gives up, not the engine: {count:g} requests ended with "
        f"{'/'.join(map(str, status)) or 'an error'} "
        f"when the upstream had answered nothing for {seconds:g} s, {timer_words} in the proxy.",
        evidence=facts,
        explains_ms=float(ages.mean()),
        relation=f"upstream time {values}{' …' if ages.size > 6 else ''} s = {seconds:g} s to {spread:.0f} ms"
        + (f"; {configured[0]} {configured[1]:g} s" if configured is not None else ""),
        n=int(timer.at.size),
        advice="Set the timers of every hop above what a request may take, from outside in (client > ingress > "
        "gateway > "
        f"engine's budget), and look why the upstream needs {seconds:g} s {stage}. nginx: proxy_read_timeout and "
        "proxy_send_timeout (ingress: nginx.ingress.kubernetes.io/proxy-read-timeout); Envoy: the route's timeout and "
        "stream idle timeout; APISIX: upstream timeout.read. Stream the answer: the timer then counts between "
        "tokens. Long "
        "answers without a stream belong in jobs that are polled.",
        price="A longer timer finds a dead upstream later, and holds connections longer.",
        verify="tailrace diagnose access.log  # after the change: no cluster of ages",
        missing=missing,
        disproof_checked=checked,
    )


def _told(cause: Cause, observed: Observed) -> Finding | None:
    """The proxy's own error log: it says that it gave up, and while doing what; not after how long."""
    lines = observed.of_kind("upstream_timeout")
    if not lines:
        return None
    first = lines[0]
    phases = sorted({str(event.attributes["phase"]) for event in lines if "phase" in event.attributes})
    while_ = f" while {', '.join(phases)}" if phases else ""
    return cause.finding(
        statement=f"The proxy gives up on the upstream: {len(lines)} lines of its error log say that a timer ran "
        f"out{while_}.",
        evidence=[
            Evidence(
                text=f"{len(lines)} lines: “{first.text[:140]}”",
                source=str(first.place),
                name="upstream_timeouts",
                value=float(len(lines)),
            ),
            *([Evidence(f"it was {', '.join(phases)}", str(first.place))] if phases else []),
        ],
        explains_ms=None,
        relation=f"{len(lines)} timeouts{while_}",
        n=len(lines),
        advice="Set the timers of every hop above what a request may take (nginx proxy_read_timeout, Envoy route "
        "timeout, "
        "APISIX upstream timeout.read), stream the answer, and look why the upstream took so long: its queue or its "
        "prefill.",
        price="A longer timer finds a dead upstream later, and holds connections longer.",
        verify="tailrace diagnose access.log  # with $request_time and $upstream_response_time",
        missing=[
            "the access log of the same time: whether all of them ended after one time, and that no byte had come"
        ],
        disproof_checked=["the ages of the failed requests are not known"],
    )


def _failed(rows: Rows) -> NDArray[np.bool_]:
    """Requests that a proxy ended: a gateway's error. 499 is the client's doing, 503 a refusal."""
    status, upstream = rows.numbers("status"), rows.numbers("upstream_status")
    flags = rows.texts("flags")
    named = np.array([_name(flag) != "" for flag in flags], dtype=bool)
    return np.asarray(np.isin(status, ENDED_BY_HOP) | np.isin(upstream, (504,)) | named)


_FLAGS: Final = {"UT": "UT (upstream request timeout)", "SI": "SI (stream idle timeout)", "DT": "DT (duration timeout)",
                 "UMSDR": "UMSDR (maximum stream duration)", "IT": "IT (idle timeout)"}  # fmt: skip


def _name(flags: str) -> str:
    return next((_FLAGS[flag] for flag in flags.replace("|", ",").split(",") if flag in _FLAGS), "")


def _timer(rows: Rows) -> _Timer | None:
    failed = np.flatnonzero(_failed(rows))
    if not failed.size:
        return None
    for what in ("upstream_last", "e2e"):
        ages = rows.numbers(what)[failed]
        known = ~np.isnan(ages)
        if not known.any():
            continue
        best = _cluster(ages[known])
        if best is None:
            continue
        chosen = failed[known][best]
        taken = rows.numbers(what)[chosen]
        mean = float(taken.mean()) / 1e3
        near = min(_ROUND_S, key=lambda one: abs(one - mean))
        # A timer fires at its time or a little after, never before.
        is_round = abs(near - mean) * 1e3 <= ROUND_MS
        named = next((name for flag in np.array(rows.texts("flags"))[chosen] if (name := _name(str(flag)))), "")
        least = LEAST if is_round else OTHER
        if chosen.size < least and not named and not (is_round and chosen.size == 1):
            continue
        size = rows.numbers("upstream_bytes")[chosen]
        unanswered = None if np.isnan(size).all() else bool(np.nanmax(size) == 0)
        if unanswered is False and not named:
            continue
        shown = "upstream" if what == "upstream_last" else "e2e"
        timer = float(near) if is_round else None
        return _Timer(rows, chosen, float(taken.mean()), taken, shown, timer, named, unanswered, int(failed.size))
    return None


def _cluster(ages: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """Places of the largest group that agrees to `WIDTH_MS`, among ages that a timer may have."""
    old = np.flatnonzero(ages >= LEAST_MS)
    return old[densest(ages[old], apart=WIDTH_MS)] if old.size else None


def _done(rows: Rows) -> float | None:
    status, took = rows.numbers("status"), rows.numbers("e2e")
    good = took[(status < 400) & ~np.isnan(took)]
    return float(good.max()) if good.size else None


def _configured(observed: Observed, seconds: float) -> tuple[str, float, str] | None:
    known = alike(observed, seconds * 1e3, owner="gateway")
    if known:
        return known[0].name, seconds, known[0].place
    for item in observed.settings:
        name = item.name.rsplit(".", 1)[-1]
        if name.removesuffix("_s") in _SETTINGS or "timeout" in name:
            value = item.number
            if value is None and isinstance(item.value, str) and item.value.rstrip("s").replace(".", "").isdigit():
                value = float(item.value.rstrip("s"))
            if value is not None and (abs(value - seconds) < 0.05 or abs(value / 1e3 - seconds) < 0.05):
                return item.name, seconds, str(item.place) or "configuration"
    return None
