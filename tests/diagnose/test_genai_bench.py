"""Results of genai-bench: seconds or milliseconds, and sometimes fewer requests than it counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.analyze.bench_summary import summarise_run
from tests.conftest import shared_path
from tests.diagnose.foreign_results import aggregate_of, genai_bench, read, run_of, write


def test_requests_without_gaps_or_a_last_token(tmp_path: Path) -> None:
    run = run_of(write(tmp_path, genai_bench()))
    done, lost = run.records
    assert (done.ttft_ns, done.e2e_ns, done.tpot_ns, done.e2e_last_token_ns) == (100_000_000, 10**9, None, None)
    assert (str(lost.reason), lost.http_status, lost.error) == ("rate_limited", 429, "slow down")
    metrics = summarise_run(run).metrics
    assert (metrics["ttft_ms"].n, metrics["e2e_ms"].n, metrics["tpot_ms"].n) == (1, 1, 0)
    assert run.header.arrival.concurrency == 4


def test_the_unit_is_the_file_s_own(tmp_path: Path) -> None:
    saved = genai_bench(_time_unit="ms")
    saved["individual_request_metrics"][0] |= {"ttft": 100.0, "e2e_latency": 1000.0}
    assert run_of(write(tmp_path, saved)).records[0].ttft_ns == 100_000_000


def test_a_part_of_the_requests_does_not_pass_for_the_whole(tmp_path: Path) -> None:
    saved = genai_bench()
    saved["aggregated_metrics"]["num_requests"] = 32
    path = write(tmp_path, saved)
    made = aggregate_of(path)
    assert made.summary.metrics["ttft_ms"].p50 == 100.0
    assert made.theirs["tpot"]["mean"] == 20.0
    assert made.summary.errors == {"rate_limited": 1}
    assert any("2 of 32" in note for note in read(path).notes)


@pytest.mark.needs("shared")
def test_the_captured_result() -> None:
    made = aggregate_of(shared_path() / "data/bench_samples/genai-bench/mock_run_data.json")
    assert (made.summary.n, made.summary.metrics["ttft_ms"].p99) == (32, pytest.approx(472.346, abs=1e-3))
