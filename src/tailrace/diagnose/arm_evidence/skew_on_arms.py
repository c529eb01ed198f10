"""LB_SKEW: one replica has the work and others have none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.diagnose.arm_evidence.replicas_doubled import replicas_doubled
from tailrace.diagnose.arms.replicas import IN_FLIGHT, Spread, spreads
from tailrace.diagnose.arms.shown import number
from tailrace.diagnose.observed import Observed
from tailrace.model.finding import Evidence, Finding

if TYPE_CHECKING:
    from tailrace.diagnose.cause import Cause

__all__ = ["skew_on_arms"]

SKEW: Final = 2.0
"""Busiest / mean from which the load counts as skewed. Of two replicas the busiest cannot reach it …"""
FEW: Final = 3
LEAST: Final = 3.0
"""… so of up to three, the busiest against the least busy decides as well."""
MIN_REQUESTS: Final = 4
"""Fewer requests on the busiest are chance."""


def skew_on_arms(cause: Cause, observed: Observed) -> Finding | None:
    """Busiest / mean of what is in flight, by tokens and by requests."""
    found = [item for item in spreads(observed) if _skewed(item)]
    if not found:
        return replicas_doubled(cause, observed)
    # A replica without a queue is not idle: what runs there counts as well, wherever it is told.
    whole = [item for item in found if item.quantity == IN_FLIGHT or item.counts_tokens]
    worst = max(whole or found, key=lambda item: (item.skew / len(item.names), item.counts_tokens))
    others = [item for item in spreads(observed) if not item.counts_tokens and item.quantity != worst.quantity]
    snapshot = worst.times < 2 and len(worst.names) < FEW
    missing = (
        ["requests and tokens in flight per replica over time (one /metrics scrape per replica, repeated)"]
        if snapshot
        else []
    )
    return cause.finding(
        statement=_statement(worst),
        evidence=_evidence(worst, others[:2]),
        explains_ms=None,
        relation=f"skew = busiest / mean = {number(worst.most)} / {number(worst.mean)} = {worst.skew:.3g}"
        + (f" (it was {worst.before:.3g} in the first reading)" if worst.before is not None else ""),
        n=len(worst.names),
        advice="Route by the work that is queued (tokens waiting and running), not by the count of requests or in "
        "turn; bound session affinity by load, and take idle replicas out of the rotation only when they are down."
        if worst.counts_tokens
        else "Route to the replica with the least in flight (waiting first, then running, weighted by tokens); "
        "bound session affinity by load. Check that the idle replicas are in the rotation at all.",
        price="Conversations move between replicas and lose prefix hits.",
        verify=(
            "tailrace diagnose http://127.0.0.1:9480  # of a gateway with one backend per replica: "
            "in-flight requests by backend"
        ),
        missing=missing,
        disproof_checked=_checked(observed, worst),
    )


def _statement(worst: Spread) -> str:
    idle = worst.idle
    words = (
        f"{worst.what.capitalize()} are unevenly spread over {len(worst.names)} replicas: {worst.busiest} has "
        f"{number(worst.most)}, {worst.skew:.3g} x the mean of {number(worst.mean)}"
    )
    if idle:
        return f"{words}; {', '.join(idle)} {'is' if len(idle) == 1 else 'are'} idle."
    return f"{words}, {worst.most / worst.least:.3g} x that of {worst.lightest} ({number(worst.least)})."


def _skewed(item: Spread) -> bool:
    if not item.mean or (not item.counts_tokens and item.most < MIN_REQUESTS):
        return False
    few = len(item.names) <= FEW and item.most >= LEAST * max(item.least, 1e-9)
    return item.skew > SKEW or few


def _evidence(worst: Spread, others: list[Spread]) -> list[Evidence]:
    out = [
        Evidence(text=f"{name}: {number(value)} {worst.what}", source=place, name=worst.quantity, value=value)
        for name, value, place in zip(worst.names, worst.values, worst.places, strict=True)
    ]
    out.append(
        Evidence(
            text=f"skew {worst.skew:.3g} (busiest {number(worst.most)} / mean {number(worst.mean)} of "
            f"{len(worst.names)} replicas)",
            source=worst.places[0],
            name="skew",
            value=round(worst.skew, 4),
        )
    )
    if not worst.idle and worst.least:
        out.append(
            Evidence(
                text=f"busiest / least busy = {number(worst.most)} / {number(worst.least)} = "
                f"{worst.most / worst.least:.3g} x",
                source=worst.places[0],
                name="spread",
                value=round(worst.most / worst.least, 4),
            )
        )
    for by_requests in others:
        shares = ", ".join(
            f"{name} {number(value)}" for name, value in zip(by_requests.names, by_requests.values, strict=True)
        )
        out.append(
            Evidence(
                text=f"by {by_requests.what}: {shares} (skew {by_requests.skew:.3g})",
                source=by_requests.places[0],
                name=f"{by_requests.quantity}_skew",
                value=round(by_requests.skew, 4),
            )
        )
    return out


def _checked(observed: Observed, worst: Spread) -> list[str]:
    affinity = any(
        word in f"{item.name} {item.value}".lower()
        for item in observed.settings
        for word in ("affinity", "sticky", "session", "prefix")
    )
    out = [f"{worst.times} reading{'s' if worst.times > 1 else ''} of {len(worst.names)} replicas"]
    out.append(
        "a session-affinity rule is stated: compare its prefix hits with the queue it makes"
        if affinity
        else "no session-affinity rule is stated"
    )
    return out
