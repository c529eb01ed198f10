"""Results of SGLang's load generator: several runs a file, an end that waits for [DONE], no start times."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tailrace.analyze.arms import as_arm
from tailrace.analyze.bench_summary import summarise_run
from tailrace.analyze.compare_summaries import compare_any
from tailrace.diagnose.readers.foreign import Foreign
from tailrace.model.errors import InputError
from tests.conftest import shared_path
from tests.diagnose.foreign_results import aggregate_of, read, run_of, sglang, without_requests, write


def test_its_end_has_the_done_marker_in_it_and_tpot_has_not(tmp_path: Path) -> None:
    run = run_of(write(tmp_path, sglang()))
    first = run.records[0]
    assert (first.ttft_ns, first.e2e_last_token_ns, first.e2e_ns) == (100_000_000, 180_000_000, 400_000_000)
    # Theirs would be (400 - 100) / 2 = 150 ms; the tokens came 40 ms apart.
    assert first.tpot_ns == 40_000_000
    assert summarise_run(run).metrics["e2e_ms"].mean == pytest.approx(450.0)
    assert {"start_times", "from_schedule", "client_health"} <= set(run.header.absent)


def test_each_line_is_a_run(tmp_path: Path) -> None:
    path = write(tmp_path, "".join(json.dumps(sglang(max_concurrency=n)) + "\n" for n in (1, 8, 64)))
    assert read(f"{path}#1").foreign is Foreign.SGLANG
    with pytest.raises(InputError, match=r"holds 3 runs: #1 \(1 at once.*Name one of them"):
        read(path)
    assert run_of(f"{path}#3").header.arrival.concurrency == 64


def test_gaps_that_were_shared_among_tokens_are_no_gaps(tmp_path: Path) -> None:
    run = run_of(write(tmp_path, sglang(accept_length=2.5)))
    first = run.records[0]
    assert (first.timeline, first.chunk_gap_max_ns, first.e2e_last_token_ns) == (None, None, 180_000_000)
    assert "chunk_gap_ms" in run.header.absent
    assert run.header.granularity == "mean"
    made = aggregate_of(write(tmp_path, without_requests(sglang(accept_length=2.5))))
    assert "chunk_gap_ms" in made.header.absent
    assert made.theirs["itl"]["p99"] == 60.0


def test_an_answer_without_a_token_is_no_fast_answer(tmp_path: Path) -> None:
    """TTFT 0 and a length that was asked for: what a refused prompt looks like there."""
    source = read(write(tmp_path, sglang(ttfts=[0.0, 0.08], itls=[[], [0.04]], output_lens=[4220, 2])))
    assert source.run is not None
    assert source.run.records[0].ttft_ns is None
    assert source.run.records[0].tpot_ns is None
    assert any("without a first token" in note for note in source.notes)


def test_the_summary_puts_only_what_is_ours_under_our_names(tmp_path: Path) -> None:
    made = aggregate_of(write(tmp_path, without_requests(sglang())))
    assert made.summary.metrics["e2e_ms"].p99 == 499.0
    assert made.summary.metrics["chunk_gap_ms"].p99 == 60.0
    assert made.summary.metrics["tpot_ms"].n == 0
    assert made.theirs == {"tpot": {"mean": 70.0}}


@pytest.mark.needs("shared")
def test_the_captured_metrics() -> None:
    made = aggregate_of(shared_path() / "data/bench_samples/sglang/calculate_metrics_output.json")
    assert (made.summary.n, made.summary.tokens_per_s) == (4, pytest.approx(72.28, abs=0.01))
    assert made.summary.metrics["ttft_ms"].p50 == pytest.approx(134.8466, abs=1e-3)


def test_unknown_start_times_are_no_arrivals(tmp_path: Path) -> None:
    """Two runs without start times are not "the same arrivals", and their requests are blocked by their order."""
    rng = np.random.default_rng(1)
    runs = []
    for name in ("a", "b"):
        ttfts = (0.1 + rng.exponential(0.02, 200)).tolist()
        saved = sglang(
            ttfts=ttfts, itls=[[0.02] * 3] * 200, output_lens=[4] * 200, input_lens=[9] * 200,
            latencies=[one + 0.07 for one in ttfts], errors=[""] * 200, duration=50.0,
        )  # fmt: skip
        runs.append(run_of(write(tmp_path, saved, name)))
    arm = as_arm(runs[0], "A")
    assert np.ptp(arm.at_s) == pytest.approx(50.0, rel=0.01)
    result = compare_any(*runs)
    assert result.same_work["arrivals"] is False
    assert any("was sent" in text or "were sent is unknown" in text for text in result.same_work["differs"])
    assert result.verdict != "regressed"
