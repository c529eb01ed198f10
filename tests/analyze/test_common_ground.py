"""Comparing what different tools tell: like with like, and no verdict out of a difference of definitions."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from tailrace.analyze.absent import without_absent
from tailrace.analyze.aggregate import Aggregate
from tailrace.analyze.bench_summary import summarise_run
from tailrace.analyze.common_ground import on_common_ground
from tailrace.analyze.compare_summaries import compare_any
from tailrace.model.measurement import BenchSummary, ClientHealth, MetricSummary, Verdict
from tailrace.store.run_file import Arrival, Run, RunHeader, RunTrailer
from tests.analyze.tables import request

N = 300


def ours(seed: int = 0, *, done_ms: float = 0.0, **header: Any) -> Run:
    """A run of 300 requests; each answer's last byte comes `done_ms` after its last token."""
    rng = np.random.default_rng(seed)
    records = []
    for i in range(N):
        gaps = (20 * rng.lognormal(0, 0.1, 20)).tolist()
        gaps[5] += 400.0 if i % 10 == 0 else 0.0
        record = request(
            i, at_ms=i * 100, prefill_ms=100 + rng.exponential(20), gaps_ms=gaps, vantage="client", lane="default",
            run_offset_ns=i * 100_000_000, prompt_tokens_source="usage",
        )  # fmt: skip
        late = round(done_ms * 1e6)
        sources = {**record.stage_sources, "postprocess": "measured"}
        records.append(
            msgspec.structs.replace(record, e2e_ns=record.e2e_ns + late, postprocess_ns=late, stage_sources=sources)
        )
    return Run(path=f"{seed}", header=RunHeader(**header), records=records, trailer=RunTrailer(n=N, duration_s=30.0))


def test_two_runs_of_ours_stay_as_they_are() -> None:
    a, b = ours(), ours(1)
    assert on_common_ground([a], [b]) == ([a], [b], [])


def test_another_end_is_no_regression() -> None:
    """A's tool stops at the last token; B is ours, and its server sends [DONE] 500 ms later."""
    a = ours(0, source="vllm", granularity="chunk", absent=["e2e_ms", "client_health"])
    b = ours(1, done_ms=500)
    result = compare_any(a, b)
    assert result.verdict is not Verdict.REGRESSED
    assert abs(result.metrics["e2e_ms.p50"].delta_pct or 99) < 3
    assert any("E2E ends with the last token in both" in text for text in result.checks)
    assert any("Nobody watched the client" in text for text in result.checks)
    # The same without what A's file says of itself: the end would have been the verdict.
    assert compare_any(ours(0), b).verdict is Verdict.REGRESSED


def test_a_mean_for_each_stream_is_not_compared_with_stalls() -> None:
    """A has no gaps, so that its longest wait would be its TTFT: 100 ms against B's stalls of 400."""
    a = ours(0, source="guidellm", granularity="mean", absent=["chunk_gap_ms", "itl_ms", "longest_wait_ms"])
    bare = [
        msgspec.structs.replace(record, timeline=None, chunk_gap_max_ns=None, chunk_gap_count=0) for record in a.records
    ]
    a = msgspec.structs.replace(a, records=bare)
    result = compare_any(a, ours(1))
    assert result.verdict is not Verdict.REGRESSED
    assert not any("gap" in name for name in result.metrics)
    assert any("Gaps and stalls cannot be compared" in text for text in result.checks)


def test_other_counters_of_tokens_are_named() -> None:
    a = ours(0, source="vllm", granularity="chunk", absent=["e2e_ms"])
    a = msgspec.structs.replace(
        a, records=[msgspec.structs.replace(record, prompt_tokens_source="tokenizer") for record in a.records]
    )
    assert any("tokenizer in A, usage in B" in text for text in compare_any(a, ours(1)).checks)


def test_a_summary_leaves_out_what_its_source_does_not_tell() -> None:
    run = ours(0, source="vllm", absent=["e2e_ms", "client_health"])
    summary = summarise_run(run)
    assert summary.metrics["e2e_ms"] == MetricSummary(n=0, reason="the results of vllm do not tell it")
    assert summary.metrics["e2e_last_token_ms"].n == N
    assert without_absent(summary, RunHeader()) is summary


def told(*, n: int = 1000, source: str = "vllm", **metrics: MetricSummary) -> Aggregate:
    return Aggregate(
        path="summary.json",
        header=RunHeader(source=source, granularity="aggregate", arrival=Arrival(kind="closed", concurrency=8)),
        summary=BenchSummary(
            run="summary.json", n=n, requests_per_s=9.0, tokens_per_s=90.0, goodput_per_s=0.0, errors={"unknown": 2},
            client=ClientHealth(), metrics=dict(metrics),
        ),
    )  # fmt: skip


def test_percentiles_alone_are_compared_without_a_verdict() -> None:
    a = told(ttft_ms=MetricSummary(n=1000, p50=100.0, p99=900.0), tpot_ms=MetricSummary(n=0, mean=20.0))
    b = told(ttft_ms=MetricSummary(n=900, p50=110.0, p95=300.0), e2e_ms=MetricSummary(n=900, p99=5.0), source="aiperf")
    result = compare_any(a, b)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert set(result.metrics) == {"ttft_ms.p50"}
    delta = result.metrics["ttft_ms.p50"]
    assert (delta.delta_pct, delta.ci_pct, delta.n_a, delta.n_b) == (10.0, [None, None], 1000, 900)
    assert "A and B holds percentiles only" in result.refused[0]
    text = " ".join(result.checks)
    assert "Compared: ttft p50." in text
    assert "no interval" in text
    assert "tpot (not in B)" in text
    assert "e2e (not in A)" in text
    assert "Failed in A: unknown 2 of 1000" in text
    assert result.same_work["same"] is None
    assert any("measured by vllm in A and aiperf in B" in one for one in result.same_work["differs"])


def test_a_run_beside_percentiles_gives_its_own() -> None:
    result = compare_any(told(ttft_ms=MetricSummary(n=1000, p50=100.0, p99=900.0)), ours())
    assert set(result.metrics) == {"ttft_ms.p50", "ttft_ms.p99"}
    assert result.metrics["ttft_ms.p50"].b == pytest.approx(114, abs=5)
    # Three hundred requests support no p99 of ours: it is given beside theirs, with what it rests on.
    assert result.metrics["ttft_ms.p99"].b == pytest.approx(190, abs=20)
    assert any("Few of the 300 requests lie beyond p99 (500 support the p99)" in text for text in result.checks)
    assert "A holds percentiles only" in result.summary


def test_a_percentile_of_few_requests_says_so() -> None:
    metric = MetricSummary(n=40, p50=100.0, p99=900.0)
    assert any(
        "500 support the p99" in text
        for text in compare_any(told(n=40, ttft_ms=metric), told(n=40, ttft_ms=metric)).checks
    )
    assert not any("support" in text for text in compare_any(told(ttft_ms=metric), told(ttft_ms=metric)).checks)


def test_nothing_in_common_is_said() -> None:
    a, b = told(ttft_ms=MetricSummary(n=9, p50=1.0)), told(e2e_ms=MetricSummary(n=9, p50=1.0))
    assert compare_any(a, b).checks[0] == "No statistic is in both."
