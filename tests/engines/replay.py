"""Replays captured streams of real engines through the meter and an adapter."""

from __future__ import annotations

from typing import Any

from tailrace.engines.base import EngineAdapter, TimingFacts
from tailrace.measure.ledger import RequestLedger
from tailrace.measure.meter import StreamMeter
from tailrace.measure.summary import StreamSummary
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import RequestRecord, broken_invariants

CHAT = "/v1/chat/completions"
S = 1_000_000_000
MS = 1_000_000


def ns(seconds: float) -> int:
    return round(seconds * S)


def replay(adapter: EngineAdapter, chunks: list[dict[str, Any]], path: str = CHAT) -> StreamSummary:
    """Feed captured HTTP chunks `[{t: seconds since send, data: text}]`."""
    meter = StreamMeter(adapter.dialect(path), origin_ns=0)
    now = 0
    for chunk in chunks:
        now = ns(chunk["t"])
        meter.feed(chunk["data"].encode(), now)
    meter.end(now, clean=True)
    return meter.summary()


def record_of(
    adapter: EngineAdapter, summary: StreamSummary, *, headers: int | None, stream: bool = True
) -> RequestRecord:
    """The record of a request sent at 0."""
    end = summary.ended_at
    assert end is not None
    ledger = RequestLedger(
        request_id="r", vantage="client", start_unix_ns=0, received=0, sent=0, headers=headers, stream=stream
    )
    ledger.passages = adapter.passages(0, headers)
    facts = TimingFacts(sent=0, headers=headers, first_token=summary.first_token_at, end=end, stream=stream)
    ending = adapter.judge(summary)
    record = ledger.close(
        end,
        ending.outcome,
        ending.reason,
        summary=summary,
        timings=adapter.timings(facts, summary.timings),
        died_in=ending.stage,
    )
    assert broken_invariants(record) == []
    return record


def completed(adapter: EngineAdapter, summary: StreamSummary) -> bool:
    return adapter.judge(summary).outcome is OutcomeKind.COMPLETED
