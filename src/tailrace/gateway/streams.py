"""Requests in flight as the admin port shows them."""

from __future__ import annotations

from typing import Any

from tailrace.gateway.in_flight import InFlight
from tailrace.gateway.session import SessionExchange
from tailrace.gateway.standstill import Standstill


def stream_view(exchange: InFlight, standstill: Standstill, now: int) -> dict[str, Any]:
    """One request of `/streams`: where it is, for how long, what it has given, and whether it stands still.

    `idle_ms` counts from its last token, `mean_gap_ms` is of the last ten gaps; `stalled_ms` is how long ago the stall
    that it is in was seen, `None` where it is in none.
    """
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
        "idle_ms": None,
        "mean_gap_ms": None,
        "stalled_ms": None,
        "slow": [],
        "client_blocked": exchange.connection.blocked_since is not None,
    }
    if isinstance(exchange, SessionExchange) and exchange.tunnel is not None:
        tunnel = exchange.tunnel
        out["silent_ms"] = (now - tunnel.last_data_ns) / 1e6
        out["messages"] = {"client": tunnel.up.messages, "engine": tunnel.down.messages}
    if meter is not None:
        out["tokens"] = meter.tokens
        if meter.first_token_ns is not None:
            out["ttft_ms"] = (meter.first_token_ns - exchange.received) / 1e6
        if meter.last_progress_ns is not None:
            out["silent_ms"] = (now - meter.last_progress_ns) / 1e6
        if meter.last_token_ns is not None:
            gaps = meter.recent_gaps
            out["idle_ms"] = (now - meter.last_token_ns) / 1e6
            out["mean_gap_ms"] = sum(gaps) / len(gaps) / 1e6 if gaps else None
            seen = standstill.alarm(exchange.ledger.request_id, meter.last_token_ns)
            out["stalled_ms"] = None if seen is None else (now - seen) / 1e6
        if meter.check(now):
            out["slow"] = meter.slow
    return out
