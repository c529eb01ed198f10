"""Results of LLMPerf: a mean that has the TTFT in it, zeros for failures."""

from __future__ import annotations

from pathlib import Path

from tailrace.analyze.bench_summary import summarise_run
from tests.diagnose.foreign_results import LLMPERF_SUMMARY, aggregate_of, llmperf, read, run_of, write


def test_the_last_token_comes_back_from_the_mean(tmp_path: Path) -> None:
    run = run_of(write(tmp_path, llmperf()))
    done, lost = run.records
    # 10 tokens x 50 ms; theirs is 50 ms "between tokens", from the first to the last they came 44.4 ms apart.
    assert (done.ttft_ns, done.e2e_last_token_ns, done.e2e_ns) == (100_000_000, 500_000_000, 600_000_000)
    assert done.tpot_ns == 44_444_444
    assert (lost.ttft_ns, lost.e2e_last_token_ns, str(lost.reason)) == (None, None, "total_timeout")
    assert summarise_run(run).metrics["ttft_ms"].n == 1
    assert {"chunk_gap_ms", "itl_ms", "longest_wait_ms", "start_times"} <= set(run.header.absent)


def test_a_mean_that_cannot_be_is_left_out(tmp_path: Path) -> None:
    source = read(write(tmp_path, llmperf(inter_token_latency_s=0.5)))
    assert source.run is not None
    assert (source.run.records[0].e2e_last_token_ns, source.run.records[0].tpot_ns) == (None, None)
    assert any("does not fit" in note for note in source.notes)


def test_the_summary_has_its_itl_under_its_own_name(tmp_path: Path) -> None:
    made = aggregate_of(write(tmp_path, LLMPERF_SUMMARY))
    assert (made.summary.n, made.summary.requests_per_s, made.summary.tokens_per_s) == (102, 2.0, 300.0)
    assert (made.summary.metrics["ttft_ms"].p99, made.summary.metrics["ttft_ms"].p95) == (900.0, None)
    assert made.theirs == {"inter_token_latency": {"mean": 30.0}}
    assert made.header.arrival.concurrency == 4
