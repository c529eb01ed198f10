"""Results of inference-perf: frames with their bytes, token times without them, and summaries in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.analyze.bench_summary import summarise_run
from tailrace.model.errors import InputError
from tests.conftest import shared_path
from tests.diagnose.foreign_results import INFERENCE_PERF_SUMMARY, aggregate_of, read, run_of, write


def chunk(delta: str) -> str:
    return 'data: {"choices":[{"index":0,"delta":{' + delta + "}}]}"


def request(start: float = 1848.25, **info: Any) -> dict[str, Any]:
    return {
        "start_time": start,
        "end_time": start + 1.0,
        "request": "x" * 9000,
        "response": "y",
        "info": {"input_tokens": 12, **info},
        "error": None,
    }


def test_frames_are_read_by_their_bytes(tmp_path: Path) -> None:
    """Its own TTFT would be that of the answer, 0.5 s; reasoning began at 0.2 s."""
    response = {
        "output_tokens": 3,
        "server_usage": {"completion_tokens": 7, "prompt_tokens": 12},
        "response_chunks": [
            chunk('"role":"assistant","content":""'), chunk('"reasoning_content":"hm"'), chunk('"content":"a"'),
            "data: [DONE]",
        ],
        "chunk_times": [1848.26, 1848.45, 1848.75, 1849.2],
        "output_token_times": [1848.75],
    }  # fmt: skip
    run = run_of(write(tmp_path, [request(response_metrics=response)]))
    (record,) = run.records
    assert (record.ttft_ns, record.ttft_content_ns) == (pytest.approx(2e8, abs=9), pytest.approx(5e8, abs=9))
    assert record.timeline is not None
    assert len(record.timeline.at_ns) == 4
    assert (record.output_tokens, record.output_tokens_source) == (7, "usage")
    assert record.e2e_ns == 10**9
    assert run.header.granularity == "event"


def test_without_bytes_frames_are_the_distinct_times_of_tokens(tmp_path: Path) -> None:
    times = [1848.45, 1848.65, 1848.65, 1848.65, 1848.95]
    run = run_of(write(tmp_path, [request(output_tokens=5, output_token_times=times)]))
    (record,) = run.records
    assert record.timeline is not None
    assert record.timeline.tokens == [1, 3, 1]
    metrics = summarise_run(run).metrics
    assert metrics["chunk_gap_ms"].max == pytest.approx(300, abs=1e-3)
    # Ours shares the gap among the tokens that it brought; theirs had two zeros there.
    assert (metrics["itl_ms"].n, metrics["itl_ms"].min) == (4, pytest.approx(200 / 3, abs=1e-3))
    assert record.tpot_ns == pytest.approx(125e6, abs=9)


def test_failures_have_their_reason_and_no_times(tmp_path: Path) -> None:
    lost = request() | {"error": {"error_type": "HTTP Error 429", "error_msg": "Too Many Requests"}}
    run = run_of(write(tmp_path, [request(output_tokens=1, output_token_times=[1848.5]), lost]))
    assert [str(record.reason) for record in run.records] == ["", "rate_limited"]
    assert run.records[1].ttft_ns is None


def test_a_summary_is_in_seconds_and_says_when_sends_were_late(tmp_path: Path) -> None:
    made = aggregate_of(write(tmp_path, INFERENCE_PERF_SUMMARY))
    metrics = made.summary.metrics
    assert (metrics["ttft_ms"].p50, metrics["e2e_ms"].p999) == (90.0, 3000.0)
    assert (made.summary.n, made.summary.errors) == (110, {"rate_limited": 7, "total_timeout": 3})
    assert (metrics["itl_ms"].n, metrics["chunk_gap_ms"].n) == (0, 0)
    assert made.theirs["inter_token_latency"]["p50"] == 0.0
    assert any("2,500 ms after their time" in note for note in made.header.notes)
    assert made.header.arrival.kind == "unknown", "what it calls constant draws exponential gaps"


@pytest.mark.needs("shared")
def test_the_captured_summaries() -> None:
    folder = shared_path() / "data/bench_samples/inference-perf"
    made = aggregate_of(folder / "stage_1_lifecycle_metrics.json")
    assert (made.summary.n, made.header.arrival.rate) == (1089, 18.16)
    with pytest.raises(InputError, match="engine's own metrics"):
        read(folder / "stage_1_prometheus_metrics.json")
