"""Captured llama.cpp: header time as queue, timings, progress frames, errors, the native route."""

from __future__ import annotations

import re

import pytest

from tailrace.engines.base import TimingFacts
from tailrace.engines.registry import adapter, detect
from tailrace.measure.meter import StreamMeter, summarise_body
from tailrace.measure.strip import FrameStripper
from tailrace.measure.summary import StreamSummary
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.timeline import EventKind
from tests.engines.replay import CHAT, MS, completed, ns, record_of, replay
from tests.measure.shared import llamacpp_case, sample_text

LLAMA = adapter("llamacpp")
shared = pytest.mark.needs("shared")


def play(body: bytes, *, step_ms: int = 30, path: str = CHAT) -> StreamSummary:
    """One event every `step_ms`: the capture has no stamps."""
    chunks = [
        {"t": (index + 1) * step_ms / 1000, "data": event + "\n\n"}
        for index, event in enumerate(body.decode().split("\n\n"))
        if event
    ]
    return replay(LLAMA, chunks, path)


@shared
def test_timings_of_the_last_frame() -> None:
    got = play(llamacpp_case("POST /v1/chat/completions stream=true"))
    assert completed(LLAMA, got)
    assert (got.token_events, got.output_tokens, got.output_tokens_source) == (6, 6, "chunks")
    record = record_of(LLAMA, got, headers=ns(0.010))
    assert record.queue_engine_ns == ns(0.010)
    assert record.stage_sources["queue.engine"] == "measured(status line)"
    # 60 ms to the first token less 10 ms of queue: the reported 193.166 ms cannot have happened here.
    assert record.prefill_ns == ns(0.050)
    assert record.stage_sources["prefill"] == "reported(timings.prompt_ms; clamped from 193.166 ms)"
    assert record.cached_tokens == 24


@shared
def test_usage_frame_carries_the_timings() -> None:
    got = play(llamacpp_case("+ stream_options.include_usage"))
    assert (got.output_tokens, got.output_tokens_source, got.prompt_tokens, got.cached_tokens) == (3, "usage", 36, 35)
    assert got.timings is not None
    assert got.timings["prompt_ms"] == 28.129


@shared
def test_timings_on_every_frame_do_not_change_the_tokens() -> None:
    got = play(llamacpp_case("+ timings_per_token"))
    assert (got.token_events, got.ttft_ns) == (3, ns(0.060))
    assert got.timings is not None
    assert got.timings["predicted_n"] == 3


@shared
def test_return_progress_frames_stripped_and_not_text() -> None:
    body = llamacpp_case("+ return_progress")
    got = play(body)
    assert got.first_progress_at == ns(0.030)
    assert got.token_events == 0, "the one token it made has no text"
    assert completed(LLAMA, got)
    meter = StreamMeter(LLAMA.dialect(CHAT), origin_ns=0, cut=frozenset({EventKind.PROGRESS}))
    out = FrameStripper(meter).feed(body, 1)
    assert b"prompt_progress" not in out
    assert out.count(b"data: ") == body.count(b"data: ") - 3
    assert out.startswith(b'data: {"choices"')


@shared
def test_llamacpp_queue_from_header_time() -> None:
    """Ten requests on eight slots: header time equals first token - prompt_ms, for the two that queued too."""
    text = sample_text("llamacpp/slots_metrics_disconnect.txt")
    rows = re.findall(r"^\d+ \(([\d., ]+)\) implied queue ms (\d+)$", text, re.MULTILINE)
    assert len(rows) == 10
    for row, implied in rows:
        header, _, first, end, prompt_ms, predicted_ms = (float(value) for value in row.split(","))
        facts = TimingFacts(sent=0, headers=ns(header), first_token=ns(first), end=ns(end))
        said = {"_field": "timings", "prompt_ms": prompt_ms, "predicted_ms": predicted_ms}
        got = LLAMA.timings(facts, said)
        assert got.queue_ns is not None
        assert got.queue_ns / MS == pytest.approx(float(implied), rel=0.02, abs=5)
        assert got.prefill_ns == round(prompt_ms * MS)


def test_no_status_line_means_queued() -> None:
    waiting = LLAMA.passages(100, None)
    assert [(passage.stage, passage.at_ns) for passage in waiting] == [("queue", 100)]
    begun = LLAMA.passages(100, 900)
    assert [(passage.stage, passage.at_ns) for passage in begun] == [("queue", 100), ("prefill", 900)]


@shared
def test_whole_answer_infers_its_queue() -> None:
    meaning = LLAMA.dialect(CHAT).read_body(llamacpp_case("non-stream chat"))
    got = summarise_body(meaning, origin_ns=0, now=ns(0.5))
    record = record_of(LLAMA, got, headers=ns(0.5), stream=False)
    assert record.prefill_ns == round(15.621 * MS)
    assert record.decode_ns == round(52.314 * MS)
    assert record.queue_engine_ns == ns(0.5) - record.prefill_ns - record.decode_ns
    assert record.stage_sources["queue.engine"].startswith("inferred(")


@shared
def test_native_completion() -> None:
    body = llamacpp_case("/completion (native) stream")
    got = play(body, path="/completion")
    assert (got.token_events, got.output_tokens, got.output_tokens_source) == (3, 3, "usage")
    assert got.prompt_tokens == 4
    assert completed(LLAMA, got)


@shared
@pytest.mark.parametrize(
    ("status", "words", "outcome", "reason", "stage"),
    [
        (400, "exceed_context_size_error", OutcomeKind.REJECTED, Reason.INPUT_TOO_LONG, "preprocess"),
        (400, "parse_error", OutcomeKind.REJECTED, Reason.BAD_REQUEST, "ingress"),
        (400, "'messages' is required", OutcomeKind.REJECTED, Reason.BAD_REQUEST, "ingress"),
        (404, "File Not Found", OutcomeKind.REJECTED, Reason.BAD_REQUEST, "ingress"),
    ],
)
def test_captured_errors(status: int, words: str, outcome: OutcomeKind, reason: Reason, stage: str) -> None:
    lines = sample_text("llamacpp/sse_and_errors.txt").splitlines()
    body = next(line for line in lines if line.startswith('{"error"') and words in line)
    ending = LLAMA.error(status, body.encode(), path=CHAT)
    assert (ending.outcome, ending.reason, ending.stage) == (outcome, reason, stage)


@shared
def test_metrics_and_detection() -> None:
    text = sample_text("llamacpp/slots_metrics_disconnect.txt")
    scrape = text.partition("### /metrics while processing\n")[2].partition("\n\n")[0]
    state = LLAMA.parse_metrics(scrape, 3)
    assert (state.running, state.waiting, state.generation_tokens_total) == (2, 0, 999)
    assert state.kv_usage is None
    assert state.preemptions_total is None
    assert detect({"Server": "llama.cpp"}).name == "llamacpp"
    assert detect({}, ["llamacpp:requests_processing"]).name == "llamacpp"


def test_progress_is_asked_for_in_streams_only_and_taken_out() -> None:
    asked = LLAMA.additions(CHAT, {"stream": True})
    assert asked.body == {"stream_options": {"include_usage": True}, "return_progress": True}
    assert asked.cut == {EventKind.USAGE, EventKind.PROGRESS}
    assert not LLAMA.additions(CHAT, {"stream": False})
    theirs = LLAMA.additions(CHAT, {"stream": True, "return_progress": True, "stream_options": {"include_usage": True}})
    assert not theirs
    assert theirs.cut == frozenset()
    assert "return_progress" not in LLAMA.additions("/v1/completions", {"stream": True}).body
