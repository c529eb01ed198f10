"""From an exchange that is over to the record of it, seen from the client."""

from __future__ import annotations

import msgspec

from tailrace.engines.base import EngineAdapter, TimingFacts
from tailrace.engines.registry import ADAPTERS
from tailrace.measure.engine_timings import NO_TIMINGS, EngineTimings
from tailrace.measure.ledger import RequestLedger
from tailrace.model.outcome import REASON_KIND
from tailrace.model.record import RequestRecord
from tailrace.probe.exchange import Exchange
from tailrace.probe.request import GENERATING


def record_of(
    exchange: Exchange, *, adapter: EngineAdapter, engine_version: str, began: int, open_loop: bool
) -> RequestRecord:
    """The record of `exchange`, counted from its send; `began` is the start of the run's measured part (ns).

    The time before the send (waiting for a slot, connecting) is `intended_to_sent_ns`, kept apart, so that latency
    from the send and from the schedule can both be told. A request that was never sent counts from when it was
    taken up.
    """
    ending, planned, target = exchange.ending, exchange.planned, exchange.target
    assert ending is not None
    origin = exchange.sent if exchange.sent is not None else exchange.queued
    summary = exchange.summary
    ledger = RequestLedger(
        request_id=exchange.request_id,
        vantage="client",
        start_unix_ns=exchange.sent_unix_ns,
        received=origin,
        sent=exchange.sent,
        connect_start=exchange.connect_start,
        connect_end=exchange.connected,
        headers=exchange.headers,
        first_byte=exchange.first_byte,
        lane=planned.name,
        endpoint=target.path,
        model=target.options.model,
        backend=target.envelope.host,
        engine=adapter.name,
        engine_version=engine_version,
        attempts=exchange.attempts,
        prompt_tokens=exchange.planned_tokens,
        prompt_tokens_source="" if exchange.planned_tokens is None else "estimate",
        prompt_bytes=exchange.prompt_bytes,
        max_tokens=planned.output_tokens if target.api is None or target.api in GENERATING else None,
        audio_seconds=exchange.audio_seconds,
        session_id="" if exchange.talk is None else exchange.talk.session_id,
        stream=target.stream,
        connection_reused=exchange.reused,
        intended_to_queued_ns=max(0, exchange.queued - exchange.intended) if open_loop else None,
        intended_to_sent_ns=max(0, origin - exchange.intended) if open_loop else None,
        run_offset_ns=max(0, exchange.intended - began),
        http_status=exchange.status,
        retries=exchange.attempts - 1,
    )
    if exchange.sent is not None:
        ledger.passages = adapter.passages(exchange.sent, exchange.headers)
    record = ledger.close(
        exchange.ended_at,
        REASON_KIND[ending.reason],
        ending.reason,
        summary=summary,
        timings=_timings(exchange, adapter),
        died_in=ending.stage,
        budget=ending.budget,
        error=ending.error,
        thresholds=exchange.desk.thresholds,
        sample_rate=1.0,
    )
    if planned.turn is None and not exchange.answer_hash:
        return record
    return msgspec.structs.replace(record, turn=planned.turn, answer_hash=exchange.answer_hash)


def _timings(exchange: Exchange, adapter: EngineAdapter) -> EngineTimings:
    """What the stream itself said about its stages. The form tells the engine, also behind a gateway."""
    summary = exchange.summary
    if summary is None or summary.timings is None or exchange.sent is None:
        return NO_TIMINGS
    facts = TimingFacts(
        sent=exchange.sent,
        headers=exchange.headers,
        first_token=summary.first_token_at,
        end=exchange.ended_at,
        stream=exchange.target.stream,
    )
    for one in (adapter, *ADAPTERS.values()):
        found = one.timings(facts, summary.timings)
        if found is not NO_TIMINGS:
            return found
    return NO_TIMINGS
