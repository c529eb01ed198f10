"""Captured Triton 2.51: streams without an end marker, one status for two reasons, a 200 that is an error."""

from __future__ import annotations

import json

import pytest

from tailrace.engines.base import EngineAdapter, TimingFacts
from tailrace.engines.prometheus_text import parse_scrape
from tailrace.engines.registry import adapter, detect
from tailrace.measure.meter import StreamMeter, summarise_body
from tailrace.model.outcome import OutcomeKind, Reason
from tests.engines.replay import S
from tests.measure.shared import sample_text

TRITON = adapter("triton")
PATH = "/v2/models/stream_tok/generate_stream"
shared = pytest.mark.needs("shared")


def section(title: str) -> str:
    text = sample_text("triton/http_samples.txt")
    part = next(part for part in text.split("### ") if part.startswith(title))
    return part.partition("\n\n")[2]


@shared
def test_end_without_done_is_ok_when_clean() -> None:
    body = section("POST generate_stream, 4 tokens")
    for clean, outcome in ((True, OutcomeKind.COMPLETED), (False, OutcomeKind.FAILED)):
        meter = StreamMeter(TRITON.dialect(PATH), origin_ns=0)
        for at, event in enumerate(body.strip().split("\n\n"), 1):
            meter.feed(event.encode() + b"\n\n", at * 30)
        meter.end(150, clean=clean)
        got = meter.summary()
        assert (got.token_events, got.ttft_ns, got.response_id) == (4, 30, "req-43")
        assert TRITON.judge(got).outcome is outcome


def test_an_empty_stream_is_cut_even_when_clean() -> None:
    meter = StreamMeter(TRITON.dialect(PATH), origin_ns=0)
    meter.end(1, clean=True)
    ending = TRITON.judge(meter.summary())
    assert (ending.reason, ending.stage) == (Reason.STREAM_CUT, "prefill")


def test_done_missing_is_stream_cut_elsewhere() -> None:
    plain = adapter("openai_compatible")
    meter = StreamMeter(plain.dialect("/v1/chat/completions"), origin_ns=0)
    meter.feed(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n', 1)
    meter.end(2, clean=True)
    ending = plain.judge(meter.summary())
    assert (ending.outcome, ending.reason, ending.stage) == (OutcomeKind.FAILED, Reason.STREAM_CUT, "decode")


def test_triton_same_503_two_reasons() -> None:
    full = TRITON.error(503, b'{"error":"[request id: r1] Exceeds maximum queue size"}', path=PATH)
    assert (full.outcome, full.reason, full.stage) == (OutcomeKind.REJECTED, Reason.QUEUE_FULL, "queue")
    late = TRITON.error(503, b'{"error":"Request timeout expired"}', path=PATH)
    assert (late.outcome, late.reason, late.stage) == (OutcomeKind.TIMED_OUT, Reason.ENGINE_QUEUE_TIMEOUT, "queue")


@shared
def test_triton_200_error_body() -> None:
    body = section("POST generate on decoupled model, 3 tokens").strip().encode()
    meaning = TRITON.dialect("/v2/models/stream_tok/generate").read_body(body)
    ending = TRITON.judge(summarise_body(meaning, origin_ns=0, now=5))
    assert (ending.outcome, ending.reason, ending.stage) == (OutcomeKind.FAILED, Reason.ENGINE_ERROR, "decode")
    assert not ending.retry_other


@shared
def test_whole_answer() -> None:
    body = section("POST generate (non-stream) on decoupled model, 1 token").strip().encode()
    got = summarise_body(TRITON.dialect(PATH).read_body(body), origin_ns=0, now=5)
    assert TRITON.judge(got).outcome is OutcomeKind.COMPLETED


@shared
def test_bad_shape_is_a_bad_request() -> None:
    body = section("POST infer bad shape").strip().encode()
    assert TRITON.error(400, body, path=PATH).reason is Reason.BAD_REQUEST


def test_triton_stream_durations_ignored() -> None:
    facts = TimingFacts(sent=0, first_token=S, end=2 * S)
    got = TRITON.timings(facts, {"_field": "metrics", "queue_time_ms": 5, "time_to_first_token_ms": 9})
    assert (got.queue_ns, got.prefill_ns, got.decode_ns) == (None, None, None)


@shared
def test_metrics_in_microseconds_become_seconds() -> None:
    text = sample_text("triton/metrics_2.51.0.prom")
    state = TRITON.parse_metrics(text, 1)
    assert state.waiting == 0
    assert state.running is None
    assert state.queue_seconds_total == pytest.approx((71282 + 1128128) / 1e6)
    found = detect({}, parse_scrape(text).names)
    assert found.name == "triton"


def test_priority_one_is_the_highest() -> None:
    assert TRITON.priority(0) == 1
    assert TRITON.priority(1) == 2


def test_our_id_goes_into_the_body_of_its_own_routes() -> None:
    assert TRITON.id_field == "id"
    assert TRITON.takes_id(PATH)
    assert not TRITON.takes_id("/v2/models/{model}/infer"), "tensors may follow its JSON at a stated length"
    assert not TRITON.takes_id("/v1/chat/completions")


@pytest.mark.parametrize(
    ("body", "timeout"),
    [
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1.50]}]}', 250_000),
        (b'{"parameters":{},"inputs":[]}', 250_000),
        (b'{"parameters":{"timeout":900000,"priority":2},"inputs":[]}', 250_000),
        (b'{"parameters":{"timeout":100},"inputs":[]}', 100),
        (b'{"parameters":{"timeout":0},"inputs":[]}', 250_000),
    ],
)
def test_a_deadline_goes_into_the_request_and_only_shortens(body: bytes, timeout: int) -> None:
    out = json.loads(TRITON.with_deadline("/v2/models/{model}/infer", body, 250 * 1_000_000))
    assert out["parameters"]["timeout"] == timeout
    was = json.loads(body)
    assert out["inputs"] == was["inputs"]
    assert {**was.get("parameters", {}), "timeout": timeout} == out["parameters"]


@pytest.mark.parametrize("body", [b'{"inputs":[]}\0\1binary', b"[]", b'{"parameters":3}', b""])
def test_a_body_that_cannot_be_changed_stays(body: bytes) -> None:
    assert TRITON.with_deadline("/v2/models/{model}/infer", body, 1) == body
    whole = b'{"text_input":"a"}'
    assert TRITON.with_deadline("/v2/models/{model}/generate", whole, 10**9) == whole
    assert EngineAdapter().with_deadline("/v1/chat/completions", whole, 10**9) == whole
