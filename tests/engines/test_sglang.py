"""SGLang 0.5.23, from the names and messages of its source."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace.engines.base import TimingFacts
from tailrace.engines.prometheus_text import Histogram
from tailrace.engines.registry import adapter, detect
from tailrace.measure.meter import StreamMeter
from tailrace.model.outcome import OutcomeKind, Reason
from tests.engines.replay import CHAT, MS, S
from tests.measure.shared import sample_text
from tests.measure.transcripts import DONE, chunk, delta, wire

SGLANG = adapter("sglang")
MESSAGES = [
    ("The request queue is full.", OutcomeKind.REJECTED, Reason.QUEUE_FULL, "queue"),
    ("The request is aborted by a higher priority request.", OutcomeKind.REJECTED, Reason.EVICTED_BY_PRIORITY, "queue"),
    ("Request waiting timeout reached.", OutcomeKind.TIMED_OUT, Reason.ENGINE_QUEUE_TIMEOUT, "queue"),
    ("Request running timeout reached.", OutcomeKind.TIMED_OUT, Reason.ENGINE_RUN_TIMEOUT, "prefill"),
    ("Using priority is disabled for this server. Remove it.", OutcomeKind.REJECTED, Reason.BAD_REQUEST, "ingress"),
]


def ending_of(*events: Any, path: str = CHAT) -> Any:
    meter = StreamMeter(SGLANG.dialect(path), origin_ns=0)
    for at, event in enumerate(events, 1):
        meter.feed(wire(event), at)
    meter.end(99, clean=True)
    return SGLANG.judge(meter.summary())


@pytest.mark.parametrize(("message", "outcome", "reason", "stage"), MESSAGES)
def test_sglang_abort_shapes(message: str, outcome: OutcomeKind, reason: Reason, stage: str) -> None:
    flat = {"object": "error", "message": message, "type": "503", "param": None, "code": 503}
    framed = {"error": {**flat, "type": "SERVICE_UNAVAILABLE"}}
    said = {"type": "abort", "status_code": 503, "message": message}
    shapes = [
        SGLANG.error(503, json.dumps(flat).encode(), path=CHAT),
        ending_of((None, json.dumps(framed)), DONE),
        ending_of((None, chunk([{"delta": {}, "finish_reason": said}])), DONE),
        ending_of((None, json.dumps({"text": "", "meta_info": {"finish_reason": said}})), DONE, path="/generate"),
    ]
    for ending in shapes:
        assert (ending.outcome, ending.reason, ending.stage) == (outcome, reason, stage)


def test_a_running_timeout_after_text_died_in_decode() -> None:
    framed = {"error": {"message": "Request running timeout reached.", "code": 503}}
    ending = ending_of((None, delta(content="x")), (None, json.dumps(framed)), DONE)
    assert (ending.reason, ending.stage, ending.retry_other) == (Reason.ENGINE_RUN_TIMEOUT, "decode", False)


def test_a_bare_abort_has_lost_its_reason() -> None:
    early = ending_of((None, delta("abort")), DONE)
    assert (early.outcome, early.reason, early.stage) == (OutcomeKind.FAILED, Reason.ENGINE_ABORT_UNKNOWN, "prefill")
    assert early.retry_other
    late = ending_of((None, delta(content="x")), (None, delta("abort")), DONE)
    assert (late.reason, late.stage, late.retry_other) == (Reason.ENGINE_ABORT_UNKNOWN, "decode", False)


def test_native_frames_hold_the_whole_text_so_far() -> None:
    def frame(text: str, n: int, finish: Any = None) -> tuple[None, str]:
        meta = {"id": "rid-1", "finish_reason": finish, "prompt_tokens": 7, "completion_tokens": n, "cached_tokens": 5}
        return None, json.dumps({"text": text, "meta_info": meta})

    meter = StreamMeter(SGLANG.dialect("/generate"), origin_ns=0)
    for at, event in enumerate([frame("a", 1), frame("a b", 2), frame("a b c d", 4, {"type": "length"}), DONE], 1):
        meter.feed(wire(event), at * 10)
    meter.end(50, clean=True)
    got = meter.summary()
    assert (got.output_tokens, got.output_tokens_source, got.finish_reason) == (4, "usage", "length")
    assert (got.prompt_tokens, got.cached_tokens, got.response_id) == (7, 5, "rid-1")
    assert got.timeline is not None
    assert got.timeline.tokens[:3] == [1, 1, 2]
    assert SGLANG.judge(got).outcome is OutcomeKind.COMPLETED


def test_meta_info_timings() -> None:
    meta = {
        "queue_time": 0.5,
        "forward_entry_time": 1700000000.25,
        "prefill_finished_time": 1700000000.5,
        "num_retractions": 2,
        "cached_tokens": 9,
    }
    body = chunk([{"delta": {}, "finish_reason": "stop", "meta_info": meta}])
    meaning = SGLANG.dialect(CHAT).read(None, body.encode())
    got = SGLANG.timings(TimingFacts(sent=0, first_token=S, end=2 * S), meaning.timings)
    assert (got.queue_ns, got.prefill_ns) == (500 * MS, 250 * MS)
    assert (got.preemptions, got.cached_tokens) == (2, 9)
    assert got.sources["queue"] == "reported(meta_info.queue_time)"


def test_stamps_are_subtracted_within_one_process_only() -> None:
    meta = {
        "_field": "meta_info",
        "request_received_ts": 1700000000.0,
        "api_server_dispatch_finish_ts": 1700000000.004,
        "forward_entry_time": 1700000000.25,
        "prefill_finished_time": 1700000000.5,
    }
    got = SGLANG.timings(TimingFacts(sent=0, end=S), meta)
    assert got.preprocess_ns == pytest.approx(4 * MS, abs=1000), "both stamps are the API server's"
    assert got.sources["preprocess"] == "reported(meta_info.api_server_dispatch_finish_ts - request_received_ts)"
    assert got.queue_ns is None, "dispatch and forward entry are stamps of two processes"


@pytest.mark.parametrize("value", [None, "soon", True, 0, -1.0, 1600000000.0, 1e30])
def test_stamps_out_of_order_say_nothing(value: object) -> None:
    meta = {"_field": "meta_info", "forward_entry_time": 1700000000.25, "prefill_finished_time": value}
    assert SGLANG.timings(TimingFacts(sent=0, end=S), meta).prefill_ns is None


def test_sglang_prefill_attribute_includes_queue() -> None:
    alone = SGLANG.span_timings({"gen_ai.latency.time_in_model_prefill": 0.9})
    assert alone.prefill_ns is None
    both = {"gen_ai.latency.time_in_model_prefill": 0.9, "gen_ai.latency.time_in_queue": 0.6}
    assert SGLANG.span_timings(both).prefill_ns == 300 * MS


@pytest.mark.needs("shared")
def test_signals_are_names_that_exist() -> None:
    table = [line.split("\t") for line in sample_text("sglang/metric_names_0.5.23.tsv").splitlines()]
    known = {row[0] for row in table if row[0].startswith("sglang:")}
    for signal, aliases in SGLANG.signals.items():
        for alias in aliases:
            assert alias.name.removesuffix("_sum") in known, signal
    assert detect({"server": "uvicorn"}, known).name == "sglang"


def test_state_takes_the_fullest_cache_and_the_sum_of_requests() -> None:
    text = """
sglang:num_running_reqs{tp_rank="0"} 3
sglang:num_running_reqs{tp_rank="1"} 4
sglang:token_usage{tp_rank="0"} 0.25
sglang:token_usage{tp_rank="1"} 0.75
"""
    state = SGLANG.parse_metrics(text, 1)
    assert (state.running, state.waiting, state.kv_usage) == (7, None, 0.75)


@pytest.mark.needs("shared")
def test_sglang_500ms_slo_not_readable() -> None:
    families = json.loads(sample_text("sglang/default_buckets_0.5.23.json"))["buckets"]
    bounds = [float(bound) for bound in families["time_to_first_token_seconds"]]
    histogram = Histogram(bounds, [float(index + 1) for index in range(len(bounds))], 10.0, float(len(bounds)))
    assert histogram.share_at_most(0.5) is None
    assert histogram.share_at_most(0.4) is not None


def test_priority_sign_higher_goes_first() -> None:
    assert SGLANG.priority(0) > SGLANG.priority(1)


def test_our_id_goes_into_the_body() -> None:
    assert SGLANG.id_field == "rid"
    assert SGLANG.takes_id(CHAT)
    assert SGLANG.takes_id("/generate")
    assert not SGLANG.takes_id("/v1/embeddings")
