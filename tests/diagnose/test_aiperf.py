"""Results of AIPerf: requests line by line, and its summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailrace.analyze.bench_summary import summarise_run
from tailrace.diagnose.readers.foreign import Foreign
from tailrace.model.errors import InputError
from tests.conftest import shared_path
from tests.diagnose.foreign_results import aggregate_of, aiperf_line, read, run_of, write


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_a_stream_is_rebuilt_from_its_gaps(tmp_path: Path) -> None:
    run = run_of(write(tmp_path, lines(aiperf_line(0), aiperf_line(1))))
    first, second = run.records
    assert first.timeline is not None
    assert first.timeline.at_ns == [100_000_000, 150_000_000, 300_000_000]
    assert (first.ttft_content_ns, first.e2e_last_token_ns, first.output_tokens) == (150_000_000, 300_000_000, 5)
    assert first.tpot_ns == 50_000_000, "by the server's five tokens, not by the tokenizer's three"
    # Nanoseconds of the wall clock survive: a float would lose 256 of them.
    assert second.start_unix_ns - first.start_unix_ns == 10**9
    assert first.start_unix_ns == 1_795_951_052_485_341_983
    assert {"e2e_ms", "from_schedule"} <= set(run.header.absent)


def test_units_are_read_not_assumed(tmp_path: Path) -> None:
    metrics = {
        "time_to_first_token": {"value": 0.1, "unit": "sec"},
        "inter_chunk_latency": {"value": [50_000.0, 150_000.0], "unit": "us"},
        "request_latency": {"value": 300_000_000, "unit": "ns"},
    }
    first = run_of(write(tmp_path, lines(aiperf_line(0, metrics=metrics)))).records[0]
    assert (first.ttft_ns, first.chunk_gap_max_ns, first.e2e_last_token_ns) == (100_000_000, 150_000_000, 300_000_000)


def test_warm_up_and_failures_are_in_no_percentile(tmp_path: Path) -> None:
    warm, cut, limited = aiperf_line(0), aiperf_line(2), aiperf_line(3)
    warm["metadata"]["benchmark_phase"] = "warmup"
    cut["metadata"]["was_cancelled"] = True
    limited |= {"error": {"code": 429, "type": "TooManyRequests", "message": "slow down"}, "metrics": {}}
    run = run_of(write(tmp_path, lines(warm, aiperf_line(1), cut, limited)))
    summary = summarise_run(run)
    assert (summary.n, summary.metrics["ttft_ms"].n) == (3, 1)
    assert summary.errors == {"client_disconnect": 1, "rate_limited": 1}


def test_a_cut_line_names_its_number(tmp_path: Path) -> None:
    whole = lines(aiperf_line(0), aiperf_line(1))
    path = write(tmp_path, whole[:-40])
    with pytest.raises(InputError, match=r"result.txt:2: is cut") as caught:
        read(path)
    assert caught.value.remedy
    source = read(path, allow_partial=True)
    assert source.run is not None
    assert len(source.run.records) == 1
    assert any("before line 2" in note for note in source.notes)


def test_foreign_lines_are_refused_where_they_stand(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"result.txt:2: is no result of AIPerf: .*metadata"):
        read(write(tmp_path, lines(aiperf_line(0)) + '{"request_id": "r"}\n'))


@pytest.mark.needs("shared")
def test_the_captured_requests() -> None:
    source = read(shared_path() / "data/bench_samples/aiperf/profile_export.jsonl")
    assert source.foreign is Foreign.AIPERF
    assert source.run is not None
    records = source.run.records
    assert [round((record.ttft_ns or 0) / 1e6, 3) for record in records] == [110.744, 191.041]
    assert [round((record.e2e_last_token_ns or 0) / 1e6, 3) for record in records] == [1123.205, 1351.172]
    assert [record.chunk_gap_count for record in records] == [49, 49]
    for record in records:
        assert record.timeline is not None
        assert record.timeline.at_ns[-1] == pytest.approx(record.e2e_last_token_ns, abs=100)


@pytest.mark.needs("shared")
def test_the_captured_summary() -> None:
    made = aggregate_of(shared_path() / "data/bench_samples/aiperf/profile_export_aiperf.json")
    metrics = made.summary.metrics
    assert (metrics["chunk_gap_ms"].n, metrics["chunk_gap_ms"].p99) == (147, pytest.approx(38.833, abs=1e-3))
    assert metrics["tpot_ms"].p50 == pytest.approx(20.662, abs=1e-3)
    assert (metrics["e2e_last_token_ms"].n, metrics["e2e_ms"].n) == (3, 0)
    assert metrics["ttft_ms"].p999 is None, "it is not in the file, and is not interpolated"
    assert (made.header.conditions.command or "").startswith("aiperf profile")
    assert made.header.arrival.concurrency == 1
