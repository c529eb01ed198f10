"""Requests in flight as the admin port shows them."""

from __future__ import annotations

from typing import Any, Protocol

from tailrace.gateway.routes import Route
from tailrace.gateway.work import Work
from tailrace.measure.ledger import RequestLedger
from tailrace.measure.meter import StreamMeter


class _Transit(Protocol):
    @property
    def meter(self) -> StreamMeter | None: ...


class _Connection(Protocol):
    @property
    def blocked_since(self) -> int | None: ...


class InFlight(Protocol):
    """A request in flight, by whatever protocol it came."""

    ledger: RequestLedger
    received: int
    lane: str
    work: Work
    route: Route
    next_check: int
    """Earliest instant at which a budget may be over; the sweeper looks no closer before it."""
    loop_lag_ns: int | None

    @property
    def transit(self) -> _Transit:
        """What is measured of its answer."""

    @property
    def connection(self) -> _Connection:
        """What is known of its client's end."""

    @property
    def waits_for_token(self) -> bool:
        """A stream whose first token has not come."""

    def stage(self, now: int) -> str:
        """The stage that it is in."""

    def sweep(self, now: int) -> None:
        """A budget may be over."""

    def stop(self, now: int) -> None:
        """The gateway shuts down and this request's time is over."""

    def broken(self, now: int) -> None:
        """We failed over it."""


def stream_view(exchange: InFlight, now: int) -> dict[str, Any]:
    """One request of `/streams`: where it is, for how long, what it has given."""
    meter = exchange.transit.meter
    out: dict[str, Any] = {
        "request_id": exchange.ledger.request_id,
        "client_request_id": exchange.ledger.client_request_id,
        "lane": exchange.lane,
        "endpoint": exchange.route.endpoint,
        "model": exchange.work.model,
        "stream": exchange.work.stream,
        "stage": exchange.stage(now),
        "age_ms": (now - exchange.received) / 1e6,
        "prompt_tokens": exchange.work.prompt_tokens,
        "tokens": 0,
        "ttft_ms": None,
        "silent_ms": None,
        "slow": [],
        "client_blocked": exchange.connection.blocked_since is not None,
    }
    if meter is not None:
        out["tokens"] = meter.tokens
        if meter.first_token_ns is not None:
            out["ttft_ms"] = (meter.first_token_ns - exchange.received) / 1e6
        if meter.last_progress_ns is not None:
            out["silent_ms"] = (now - meter.last_progress_ns) / 1e6
        if meter.check(now):
            out["slow"] = meter.slow
    return out
