from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.measure.dialect import EngineFault
from tailrace.measure.engine_timings import NO_TIMINGS, EngineTimings
from tailrace.measure.ledger import RequestLedger
from tailrace.measure.stage_account import Passage
from tailrace.measure.summary import StreamSummary
from tailrace.model.engine_state import EngineState
from tailrace.model.outcome import REASON_KIND, OutcomeKind, Reason
from tailrace.model.record import RequestRecord, broken_invariants
from tailrace.model.thresholds import MS

VLLM = EngineTimings(
    queue_ns=30 * MS,
    prefill_ns=50 * MS,
    sources={"queue": "reported(metrics.queue_time_ms)", "prefill": "reported(metrics.time_to_first_token_ms)"},
)


def ledger(**stamps_ms: Any) -> RequestLedger:
    """A ledger with stamps given in milliseconds after its start."""
    fields = {
        name: round(at * MS) + 1_000_000_000
        for name, at in stamps_ms.items()
        if isinstance(at, int | float) and at is not False
    }
    rest = {name: value for name, value in stamps_ms.items() if name not in fields}
    return RequestLedger(request_id="r", start_unix_ns=5, received=1_000_000_000, **fields, **rest)


def at(ms: float) -> int:
    return round(ms * MS) + 1_000_000_000


def stream(first: float | None = 100, last: float | None = 300, **more: Any) -> StreamSummary:
    fields: dict[str, Any] = {"finish_reason": "stop", "done": True, "clean": True} | more
    return StreamSummary(
        origin_at=at(0),
        first_token_at=None if first is None else at(first),
        last_token_at=None if last is None else at(last),
        **fields,
    )


def in_ms(record: RequestRecord) -> dict[str, float]:
    return {stage: value / MS for stage, value in record.stages().items()}


def whole(**changes: Any) -> RequestLedger:
    stamps = {
        "parsed": 1, "queued": 2, "admitted": 12, "connect_start": 12, "connect_end": 13, "sent": 14, "headers": 60,
        "client_first_token": 101, "upstream_end": 310, "client_last_write": 315,
    }  # fmt: skip
    return ledger(**(stamps | changes))


def test_every_stage_of_a_gateway_request() -> None:
    record = whole().close(at(320), OutcomeKind.COMPLETED, summary=stream(), timings=VLLM)
    assert broken_invariants(record) == []
    assert in_ms(record) == {
        "ingress": 2, "queue": 42, "prefill": 50, "decode": 200, "postprocess": 10, "response": 5, "unattributed": 6,
    }  # fmt: skip
    assert record.e2e_ns == 315 * MS
    assert (record.queue_gateway_ns, record.queue_engine_ns) == (10 * MS, 30 * MS)
    assert record.stage_sources == {
        "ingress": "measured",
        "queue": "reported(metrics.queue_time_ms)",
        "queue.gateway": "measured",
        "queue.engine": "reported(metrics.queue_time_ms)",
        "prefill": "reported(metrics.time_to_first_token_ms)",
        "decode": "measured",
        "postprocess": "measured",
        "response": "measured",
        "unattributed": "inferred(remainder)",
    }
    assert (record.ttft_ns, record.ttft_upstream_ns) == (101 * MS, 86 * MS)
    assert (record.headers_ns, record.connect_ns) == (46 * MS, 1 * MS)
    assert record.e2e_last_token_ns == 300 * MS


def test_without_reports_the_wait_is_unattributed_not_prefill() -> None:
    record = whole().close(at(320), OutcomeKind.COMPLETED, summary=stream())
    assert record.prefill_ns is None
    assert record.queue_engine_ns is None
    assert record.unattributed_ns == 86 * MS


def test_encode_and_prefill_may_both_be_there() -> None:
    timings = EngineTimings(encode_ns=20 * MS, prefill_ns=40 * MS, preprocess_ns=5 * MS, queue_ns=1 * MS)
    record = whole().close(at(320), OutcomeKind.COMPLETED, summary=stream(), timings=timings)
    assert (record.encode_ns, record.prefill_ns, record.preprocess_ns) == (20 * MS, 40 * MS, 5 * MS)
    assert record.unattributed_ns == 20 * MS
    assert broken_invariants(record) == []


def test_what_is_reported_never_exceeds_what_was_measured_and_the_cut_is_told() -> None:
    timings = EngineTimings(
        queue_ns=80 * MS, prefill_ns=50 * MS, sources={"queue": "reported(q)", "prefill": "reported(p)"}
    )
    record = whole().close(at(320), OutcomeKind.COMPLETED, summary=stream(), timings=timings)
    assert (record.queue_engine_ns, record.prefill_ns, record.unattributed_ns) == (80 * MS, 6 * MS, None)
    assert record.stage_sources["prefill"] == "reported(p; clamped from 50.000 ms)"
    assert record.stage_sources["queue.engine"] == "reported(q)"
    assert broken_invariants(record) == []


def test_a_negative_report_is_no_report() -> None:
    record = whole().close(at(320), OutcomeKind.COMPLETED, summary=stream(), timings=EngineTimings(queue_ns=-5))
    assert record.queue_engine_ns is None


def test_a_reported_decode_serves_only_where_no_token_was_seen() -> None:
    timings = EngineTimings(prefill_ns=50 * MS, decode_ns=120 * MS, sources={"decode": "reported(d)"})
    streamed = whole().close(at(320), OutcomeKind.COMPLETED, summary=stream(), timings=timings)
    assert streamed.decode_ns == 200 * MS
    body = whole(client_first_token=None).close(
        at(320), OutcomeKind.COMPLETED, summary=stream(None, None, ended_at=at(310)), timings=timings
    )
    assert body.decode_ns == 120 * MS
    assert body.stage_sources["decode"] == "reported(d)"
    assert (body.unattributed_ns, body.response_ns) == (126 * MS, 5 * MS)
    assert body.ttft_ns is None


def test_client_blocked_time_is_response_wherever_it_fell() -> None:
    book = whole()
    book.client_blocked(at(150), at(190))
    book.client_blocked(at(180), at(200))
    book.client_blocked(at(305), at(312))
    record = book.close(at(320), OutcomeKind.COMPLETED, summary=stream(client_blocked=[(at(160), at(170))]))
    stages = in_ms(record)
    assert (stages["decode"], stages["postprocess"], stages["response"]) == (150, 5, 60)
    assert record.client_blocked_ns == 57 * MS
    assert record.stage_sources["response"].startswith("measured")
    assert broken_invariants(record) == []


def test_the_probes_vantage() -> None:
    book = ledger(vantage="client", connect_start=1, connect_end=3, sent=4, headers=20)
    record = book.close(at(400), OutcomeKind.COMPLETED, summary=stream(ended_at=at(310)), timings=VLLM, sample_rate=1)
    assert in_ms(record) == {
        "ingress": 4, "queue": 30, "prefill": 50, "decode": 200, "postprocess": 100, "unattributed": 16,
    }  # fmt: skip
    assert (record.ttft_ns, record.queue_gateway_ns, record.response_ns) == (100 * MS, None, None)
    assert record.keep_reason == "sampled"
    assert record.keep_weight == 1


@pytest.mark.parametrize(
    ("stamps", "summary", "stage"),
    [
        ({}, None, "ingress"),
        ({"queued": 1}, None, "queue"),
        ({"queued": 1, "admitted": 2}, None, "ingress"),
        ({"queued": 1, "admitted": 2, "sent": 3}, None, "prefill"),
        ({"sent": 3}, stream(first=9, last=9, done=False, finish_reason=""), "decode"),
        ({"sent": 3}, stream(first=9, last=9, done=False), "postprocess"),
        ({"sent": 3, "upstream_end": 20}, stream(first=9, last=9), "response"),
        ({"sent": 3, "upstream_end": 20}, stream(first=None, last=None), "response"),
    ],
)
def test_the_stage_in_which_it_died(stamps: dict[str, int], summary: StreamSummary | None, stage: str) -> None:
    record = ledger(**stamps).close(at(30), OutcomeKind.CANCELLED, Reason.CLIENT_DISCONNECT, summary=summary)
    assert record.died_in == stage
    assert broken_invariants(record) == []
    assert record.e2e_ns == 30 * MS


def test_a_timeout_while_encoding_and_one_while_prefilling_are_told_apart() -> None:
    def timed_out(*passages: tuple[str, float], summary: StreamSummary | None = None) -> RequestRecord:
        book = ledger(queued=1, admitted=2, sent=3)
        for stage, ms in passages:
            book.passage(stage, at(ms))
        return book.close(
            at(503), OutcomeKind.TIMED_OUT, Reason.FIRST_TOKEN_TIMEOUT, budget="first_token", summary=summary
        )

    encoding = timed_out(("queue", 3), ("encode", 53))
    assert encoding.died_in == "encode"
    assert (encoding.queue_engine_ns, encoding.encode_ns, encoding.prefill_ns) == (50 * MS, 450 * MS, None)
    prefilling = timed_out(("queue", 3), ("encode", 53), ("prefill", 203))
    assert prefilling.died_in == "prefill"
    assert (prefilling.encode_ns, prefilling.prefill_ns) == (150 * MS, 300 * MS)
    queued = timed_out(("queue", 3))
    assert (queued.died_in, queued.queue_engine_ns, queued.unattributed_ns) == ("queue", 500 * MS, None)
    frames = timed_out(summary=StreamSummary(origin_at=at(0), first_progress_at=at(103)))
    assert (frames.died_in, frames.prefill_ns, frames.unattributed_ns) == ("prefill", 400 * MS, 100 * MS)
    assert frames.stage_sources["prefill"] == "measured(progress frame)"
    for record in (encoding, prefilling, queued, frames):
        assert broken_invariants(record) == []


def test_a_report_wins_over_passages() -> None:
    book = whole(passages=[Passage("queue", at(14)), Passage("prefill", at(60), "measured(status line)")])
    timings = EngineTimings(prefill_ns=38 * MS, sources={"prefill": "reported(timings.prompt_ms)"})
    record = book.close(at(320), OutcomeKind.COMPLETED, summary=stream(), timings=timings)
    assert (record.queue_engine_ns, record.prefill_ns, record.unattributed_ns) == (46 * MS, 38 * MS, 2 * MS)


def test_a_stamp_out_of_order_is_moved_and_told() -> None:
    record = whole(admitted=1).close(at(320), OutcomeKind.COMPLETED, summary=stream())
    assert record.queue_gateway_ns == 0
    assert broken_invariants(record) == []
    late = whole(upstream_end=250).close(at(320), OutcomeKind.COMPLETED, summary=stream())
    assert late.stage_sources["response"] == "measured(stamp out of order)"


def test_ttft_needs_a_token_that_the_client_was_given() -> None:
    unseen = whole(client_first_token=None).close(
        at(105), OutcomeKind.CANCELLED, Reason.CLIENT_DISCONNECT, summary=stream(done=False, finish_reason="")
    )
    assert unseen.ttft_ns is None
    assert unseen.ttft_upstream_ns == 86 * MS
    role_first = whole(client_first_token=None, client_first_write=60)
    assert role_first.close(at(320), OutcomeKind.COMPLETED, summary=stream()).ttft_ns == 100 * MS
    held = whole(client_first_token=None, client_first_write=120)
    assert held.close(at(320), OutcomeKind.COMPLETED, summary=stream()).ttft_ns == 120 * MS


def test_a_request_that_never_saw_a_token_is_slow_by_its_wait() -> None:
    waited = ledger(sent=1).close(at(900), OutcomeKind.CANCELLED, Reason.CLIENT_DISCONNECT)
    assert waited.slow == ["ttft"]
    refused = ledger().close(at(900), OutcomeKind.REJECTED, Reason.QUEUE_FULL)
    assert refused.slow == []
    body = ledger(sent=1, stream=False).close(at(900), OutcomeKind.COMPLETED)
    assert body.slow == []


def test_usage_replaces_the_estimate_and_says_so() -> None:
    book = whole(prompt_tokens_source="estimate")
    book.prompt_tokens = 90
    estimate = book.close(at(320), OutcomeKind.COMPLETED, summary=stream())
    assert (estimate.prompt_tokens, estimate.prompt_tokens_source) == (90, "estimate")
    counted = book.close(at(320), OutcomeKind.COMPLETED, summary=stream(prompt_tokens=101))
    assert (counted.prompt_tokens, counted.prompt_tokens_source) == (101, "usage")


def test_engine_states_and_errors_go_into_the_record() -> None:
    book = whole()
    book.at_admission = EngineState(at_ns=1, running=3, waiting=2, kv_usage=0.5)
    book.at_first_token = EngineState(at_ns=book.sent, running=4)
    failed = book.close(
        at(320),
        OutcomeKind.FAILED,
        Reason.ENGINE_CRASH,
        summary=stream(done=False, finish_reason="", fault=EngineFault("x" * 900, code=500)),
    )
    assert (failed.running_at_admission, failed.waiting_at_admission, failed.kv_usage_at_admission) == (3, 2, 0.5)
    assert (failed.running_at_first_token, failed.waiting_at_first_token, failed.batch_size) == (4, None, 4)
    book.at_first_token = EngineState(at_ns=book.sent - 1, running=4)
    older = book.close(at(320), OutcomeKind.COMPLETED)
    assert (older.running_at_first_token, older.batch_size) == (4, None), "a scrape from before it was sent"
    assert len(failed.error) == 300
    assert failed.keep_reason == "failed"
    named = book.close(at(320), OutcomeKind.FAILED, Reason.STREAM_CUT, error="the engine closed")
    assert named.error == "the engine closed"


stamp = st.none() | st.integers(-50, 500)
sometimes = st.none() | st.integers(-20, 600)


@given(data=st.data())
def test_stages_always_balance(data: st.DataObject) -> None:
    """Any stamps, missing or out of order, any reports, any blocked time: never negative, never unbalanced."""
    draw = data.draw
    names = ("parsed", "queued", "admitted", "connect_start", "connect_end", "upload_start", "sent", "headers",
             "upstream_end", "client_first_write", "client_first_token", "client_last_write")  # fmt: skip
    intervals = st.lists(st.tuples(st.integers(-50, 500), st.integers(-50, 500)), max_size=4)
    book = RequestLedger(
        request_id="r",
        start_unix_ns=0,
        received=draw(st.integers(-10, 100)),
        vantage=draw(st.sampled_from(["gateway", "client"])),
        stream=draw(st.booleans()),
        **{name: draw(stamp) for name in names},
    )
    for start, stop in draw(intervals):
        book.client_blocked(start, stop)
    for stage, when in draw(
        st.lists(
            st.tuples(st.sampled_from(["queue", "preprocess", "encode", "prefill"]), st.integers(-50, 500)), max_size=4
        )
    ):
        book.passage(stage, when)
    timings = EngineTimings(
        queue_ns=draw(sometimes),
        preprocess_ns=draw(sometimes),
        encode_ns=draw(sometimes),
        prefill_ns=draw(sometimes),
        decode_ns=draw(sometimes),
    )
    summary = draw(
        st.none()
        | st.builds(
            StreamSummary,
            origin_at=st.just(0),
            first_token_at=stamp,
            last_token_at=stamp,
            first_progress_at=stamp,
            ended_at=stamp,
            done=st.booleans(),
            finish_reason=st.sampled_from(["", "stop"]),
            client_blocked=intervals,
        )
    )
    reason = draw(st.sampled_from(list(Reason)))
    record = book.close(
        draw(st.integers(-50, 600)),
        REASON_KIND[reason],
        reason,
        summary=summary,
        timings=draw(st.sampled_from([timings, NO_TIMINGS])),
    )
    assert broken_invariants(record) == []
    assert sum(record.stages().values()) == record.e2e_ns >= 0
    assert min(record.stages().values()) >= 0
    assert (record.queue_gateway_ns or 0) >= 0
    assert (record.queue_engine_ns or 0) >= 0
    assert 0 <= record.client_blocked_ns <= record.e2e_ns
    for value in (record.ttft_ns, record.headers_ns, record.connect_ns, record.ttft_upstream_ns):
        assert value is None or value >= 0


def test_no_token_reaches_the_client_before_the_first_one_did() -> None:
    """The status line is held for the first event: the only token of an answer leaves a moment after it was read."""
    one = stream(first=100, last=100, first_content_at=at(100))
    record = whole(client_first_token=100.4).close(at(320), OutcomeKind.COMPLETED, summary=one)
    assert record.ttft_ns == record.e2e_last_token_ns == record.ttft_content_ns == round(100.4 * MS)


def test_an_upload_is_ingress_again_behind_the_wait_in_the_lane() -> None:
    """Head and form at 2, lane until 12, connected at 14, the body upstream until 64, the first token at 100."""
    book = whole(upload_start=14, sent=64)
    record = book.close(at(320), OutcomeKind.COMPLETED, summary=stream())
    stages = in_ms(record)
    assert stages["ingress"] == 2 + 50
    assert stages["queue"] == 10 + 2  # the lane, and connecting
    assert sum(stages.values()) == pytest.approx(315)
    assert record.ttft_upstream_ns == 36 * MS


def test_a_slow_upload_is_no_slow_answer() -> None:
    """TTFT 1,001 ms, of which 940 were the client's upload; without an upload the same stamps are slow."""
    late = {"sent": 954, "headers": 960, "client_first_token": 1001, "upstream_end": 1210, "client_last_write": 1215}
    for upload_start, slow in ((14, []), (None, ["ttft"])):
        book = whole(**late) if upload_start is None else whole(**late, upload_start=upload_start)
        record = book.close(at(1220), OutcomeKind.COMPLETED, summary=stream(1000, 1200))
        assert record.slow == slow
        assert record.ttft_ns == 1001 * MS
