"""Status lines come early or late, by engine: the time to the first token is the same in all, and so is its record."""

from __future__ import annotations

import pytest

from tailrace.engines.base import TimingFacts
from tailrace.engines.registry import adapter
from tailrace.measure.ledger import RequestLedger
from tailrace.measure.meter import StreamMeter
from tailrace.model.outcome import OutcomeKind
from tailrace.model.record import broken_invariants
from tests.engines.replay import CHAT, MS

FIRST, SECOND = (
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n' % text
    for text in (b"Hi", b" you")
)
ROLE = b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
FINISH = b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    ("engine", "headers_ms", "queue_ms"),
    [
        ("vllm", 6, None),  # at once, even while queued
        ("tgi", 1, None),
        ("llamacpp", 300, 300),  # when a slot takes the request
        ("sglang", 400, None),  # with the first chunk
        ("openai_compatible", 0, None),
    ],
)
def test_headers_early_or_late(engine: str, headers_ms: int, queue_ms: int | None) -> None:
    each = adapter(engine)
    meter = StreamMeter(each.dialect(CHAT), origin_ns=0)
    meter.feed(ROLE + FIRST, 400 * MS)
    meter.feed(SECOND, 430 * MS)
    meter.feed(FINISH, 431 * MS)
    meter.end(431 * MS, clean=True)
    summary = meter.summary()
    headers = headers_ms * MS
    ledger = RequestLedger(request_id="r", start_unix_ns=0, received=0, queued=0, admitted=0, sent=0, headers=headers)
    ledger.client_first_write, ledger.upstream_end = 400 * MS, 431 * MS
    ledger.passages = each.passages(0, headers)
    facts = TimingFacts(sent=0, headers=headers, first_token=400 * MS, end=431 * MS)
    record = ledger.close(
        431 * MS, OutcomeKind.COMPLETED, summary=summary, timings=each.timings(facts, summary.timings)
    )
    assert record.ttft_ns == record.ttft_upstream_ns == 400 * MS
    assert record.headers_ns == headers
    assert (record.queue_engine_ns or 0) == (queue_ms or 0) * MS
    assert broken_invariants(record) == []
