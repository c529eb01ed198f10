"""Captured vLLM 0.32: streams, timings, errors, metrics under six versions' names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace.engines.base import TimingFacts
from tailrace.engines.prometheus_text import parse_scrape
from tailrace.engines.registry import adapter, detect
from tailrace.measure.meter import summarise_body
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.timeline import EventKind
from tests.engines.replay import CHAT, MS, completed, ns, record_of, replay
from tests.measure.shared import sample_text, vllm_case

VLLM = adapter("vllm")
shared = pytest.mark.needs("shared")


@shared
def test_role_frame_is_not_first_token() -> None:
    case = vllm_case("stream_continuous_usage")
    got = replay(VLLM, case["chunks"])
    assert got.ttft_ns == ns(0.0319)
    assert got.first_event_at == ns(0.0318)
    assert completed(VLLM, got)


@shared
def test_empty_content_token_counts() -> None:
    got = replay(VLLM, vllm_case("stream_continuous_usage")["chunks"])
    assert (got.output_tokens, got.output_tokens_source, got.token_events) == (6, "usage", 5)
    assert got.chunk_gap_count == 4
    assert got.tpot_ns == round(ns(0.0464 - 0.0319) / 5)
    # The gap over the silent token is one whole gap, not two.
    assert got.chunk_gap_max_ns == ns(0.0422 - 0.0349)
    assert got.timeline is not None
    counted = [n for n, kind in zip(got.timeline.tokens, got.timeline.kind, strict=True) if kind != EventKind.USAGE]
    assert sum(n for n in counted if n > 0) == 6


@shared
def test_include_usage_alone_gives_the_total_only() -> None:
    got = replay(VLLM, vllm_case("stream_include_usage")["chunks"])
    assert (got.output_tokens, got.output_tokens_source, got.cached_tokens) == (6, "usage", 0)
    assert got.response_id == "chatcmpl-my-req-0002"


@shared
def test_vllm_metrics_ttft_is_prefill() -> None:
    got = replay(VLLM, vllm_case("stream_keep_alive_while_queued")["chunks"])
    record = record_of(VLLM, got, headers=ns(0.0025))
    assert record.queue_engine_ns == round(3093.822146000093 * MS)
    assert record.prefill_ns == round(2.921183000125893 * MS)
    assert record.stage_sources["prefill"] == "reported(metrics.time_to_first_token_ms)"
    assert record.stage_sources["queue.engine"] == "reported(metrics.queue_time_ms)"
    assert record.unattributed_ns == ns(3.1016) - record.queue_engine_ns - record.prefill_ns


@shared
def test_keep_alive_comment_does_not_feed_first_token_timer() -> None:
    case = vllm_case("stream_keep_alive_while_queued")
    got = replay(VLLM, case["chunks"])
    assert got.comments == 3
    assert got.first_event_at == got.ttft_ns == ns(3.1016)


@shared
def test_headers_at_once_say_nothing_about_the_queue() -> None:
    got = replay(VLLM, vllm_case("stream_no_client_id")["chunks"])
    facts = TimingFacts(sent=0, headers=ns(0.003), first_token=got.first_token_at, end=ns(0.0121))
    assert VLLM.timings(facts, None).queue_ns is None
    assert VLLM.passages(0, ns(0.003)) == []


@shared
def test_error_inside_200_is_a_rejection() -> None:
    ending = VLLM.judge(replay(VLLM, vllm_case("stream_rejected_inside_200")["chunks"]))
    assert (ending.outcome, ending.reason, ending.stage) == (OutcomeKind.REJECTED, Reason.QUEUE_FULL, "queue")
    assert ending.http_status == 503
    assert ending.retry_other


@shared
def test_error_then_done_is_failed() -> None:
    got = replay(VLLM, vllm_case("engine_core_killed_mid_stream")["chunks"])
    assert got.done, "[DONE] came all the same"
    ending = VLLM.judge(got)
    assert (ending.outcome, ending.reason, ending.stage) == (OutcomeKind.FAILED, Reason.ENGINE_CRASH, "decode")
    assert not ending.retry_other, "text had reached the client"
    record = record_of(VLLM, got, headers=ns(0.0021))
    assert record.died_in == "decode"
    assert record.error.startswith("EngineCore encountered an issue")


@shared
@pytest.mark.parametrize(
    ("case", "outcome", "reason", "stage"),
    [
        ("stream_rejected_503", OutcomeKind.REJECTED, Reason.QUEUE_FULL, "queue"),
        ("nonstream_rejected_503", OutcomeKind.REJECTED, Reason.QUEUE_FULL, "queue"),
        ("error_prompt_too_long", OutcomeKind.REJECTED, Reason.INPUT_TOO_LONG, "preprocess"),
        ("error_max_tokens", OutcomeKind.REJECTED, Reason.INPUT_TOO_LONG, "preprocess"),
        ("error_unknown_model", OutcomeKind.REJECTED, Reason.UNKNOWN_MODEL, "ingress"),
        ("error_priority_type", OutcomeKind.REJECTED, Reason.BAD_REQUEST, "ingress"),
    ],
)
def test_captured_errors(case: str, outcome: OutcomeKind, reason: Reason, stage: str) -> None:
    sample = vllm_case(case)
    status = int(sample["status"].split()[1])
    body = "".join(chunk["data"] for chunk in sample["chunks"]).encode()
    ending = VLLM.error(status, body, path=CHAT)
    assert (ending.outcome, ending.reason, ending.stage) == (outcome, reason, stage)


@shared
def test_whole_answer_with_its_timings() -> None:
    case = vllm_case("nonstream")
    body = "".join(chunk["data"] for chunk in case["chunks"]).encode()
    meaning = VLLM.dialect(CHAT).read_body(body)
    got = summarise_body(meaning, origin_ns=0, now=ns(0.0149))
    assert (got.output_tokens, got.prompt_tokens, got.finish_reason) == (3, 11, "length")
    record = record_of(VLLM, got, headers=ns(0.0148), stream=False)
    assert record.outcome is OutcomeKind.COMPLETED
    assert record.prefill_ns is not None
    assert record.decode_ns is not None
    assert record.stage_sources["decode"] == "reported(metrics.generation_time_ms)"
    assert record.ttft_ns is None


def test_a_lying_metrics_object_is_not_believed() -> None:
    facts = TimingFacts(sent=0, first_token=10 * MS, end=20 * MS)
    for bad in ("3", None, True, -1, float("nan"), 1e300):
        said: dict[str, Any] = {"_field": "metrics", "queue_time_ms": bad}
        assert VLLM.timings(facts, said).queue_ns is None
    assert VLLM.timings(facts, {"_field": "timings", "queue_time_ms": 3}).queue_ns is None


@shared
@pytest.mark.parametrize("version", ["0.6.6", "0.8.5", "0.11.0", "0.16.0", "0.22.0", "0.32.0"])
def test_alias_first_present_wins(version: str) -> None:
    names = json.loads(sample_text("vllm/metric_names_by_version.json"))[version]["metric_names"]
    names = [name if isinstance(name, str) else name["name"] for name in names]
    histograms = {"vllm:request_queue_time_seconds"}
    lines = [f"{name}{'_sum' if name in histograms else ''} {index + 1}" for index, name in enumerate(names)]
    state = VLLM.parse_metrics("\n".join(lines), 7)
    assert state.at_ns == 7
    assert set(state.names.values()) <= {line.split()[0] for line in lines}
    for signal in (
        "running",
        "waiting",
        "kv_usage",
        "preemptions_total",
        "prompt_tokens_total",
        "generation_tokens_total",
    ):
        assert getattr(state, signal) is not None, signal
    kv = "vllm:kv_cache_usage_perc" if "vllm:kv_cache_usage_perc" in names else "vllm:gpu_cache_usage_perc"
    assert state.names["kv_usage"] == kv
    has_prefix = any("prefix_cache_hits" in name and "external" not in name for name in names)
    assert (state.prefix_hit_tokens_total is not None) == has_prefix, "absent is not 0"


@shared
def test_a_real_scrape() -> None:
    text = sample_text("vllm/metrics_0.32.0.prom")
    state = VLLM.parse_metrics(text, 1)
    assert (state.running, state.waiting) == (0, 0)
    assert state.queue_seconds_total is not None
    assert state.names["prefix_hit_tokens_total"] == "vllm:prefix_cache_hits_total"
    found = detect({"server": "uvicorn"}, parse_scrape(text).names)
    assert (found.name, found.confidence) == ("vllm", 3)


@shared
def test_created_series_dropped() -> None:
    text = sample_text("vllm/metrics_0.32.0.prom")
    assert "_created" in text
    assert not [name for name in parse_scrape(text).names if name.endswith("_created")]


@shared
def test_iteration_tokens_total_is_histogram() -> None:
    scrape = parse_scrape(sample_text("vllm/metrics_0.32.0.prom"))
    assert scrape.type_of("vllm:iteration_tokens_total") == "histogram"
    histogram = scrape.histogram("vllm:iteration_tokens_total")
    assert histogram is not None
    assert histogram.count > 0
    assert histogram.mean == pytest.approx(histogram.sum / histogram.count)


@shared
def test_buckets_below_300ms_refused() -> None:
    scrape = parse_scrape(sample_text("vllm/metrics_0.32.0.prom"))
    queue = scrape.histogram("vllm:request_queue_time_seconds")
    assert queue is not None
    assert queue.bounds[0] == 0.3
    assert queue.quantile(0.01) is None
    assert queue.quantile_range(0.01) == (0.0, 0.3)
    assert queue.mean is not None, "sum / count stays readable"


def test_priority_sign_lower_goes_first() -> None:
    assert VLLM.priority(0) < VLLM.priority(1)


def test_version_answer() -> None:
    assert VLLM.version(b'{"version": "0.32.0"}') == "0.32.0"
    assert VLLM.version(b"<html>") == ""


def test_its_span_attributes() -> None:
    got = VLLM.span_timings(
        {
            "gen_ai.latency.time_in_queue": 0.5,
            "gen_ai.latency.time_in_model_prefill": 0.25,
            "gen_ai.latency.time_in_model_decode": 1.0,
        }
    )
    assert (got.queue_ns, got.prefill_ns, got.decode_ns) == (500 * MS, 250 * MS, 1000 * MS)
