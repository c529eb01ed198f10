"""Results of vLLM's own load generator: read, and set right where their names mislead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailrace.analyze.bench_summary import summarise_run
from tailrace.diagnose.readers.foreign import Foreign
from tailrace.diagnose.readers.source import Kind, kind_of
from tailrace.model.errors import InputError
from tailrace.model.record import broken_invariants
from tests.conftest import shared_path
from tests.diagnose.foreign_results import aggregate_of, read, run_of, vllm, without_requests, write

CAPTURED = "data/engine_samples/vllm/bench_serve_0.32.0.json"
CHAT = {"endpoint_type": "openai-chat", "backend": "openai-chat"}
ROLES = {**CHAT, "itls": [[0.00001, 0.02, 0.00002, 0.2], []], "latencies": [0.4, 0.05]}
"""Five frames for three tokens: the first one and another carried none."""


def made(tmp_path: Path, **changed: Any) -> Path:
    return write(tmp_path, vllm(**changed))


@pytest.mark.needs("shared")
def test_bench_import_drops_fake_zero_itl() -> None:
    path = shared_path() / CAPTURED
    assert kind_of(path) is Kind.LOAD_TOOL
    source = read(path)
    assert source.table is not None
    assert source.foreign is Foreign.VLLM
    assert len(source.table) == 40
    assert any("42 inter-token times are below 0.1 ms and were dropped" in note for note in source.notes)
    saved = json.loads(path.read_text())
    # 42 are no gaps; of the others, those from the role frame to the first token belong to the TTFT.
    held_back = sum(itls[0] >= 1e-4 for itls in saved["itls"])
    assert int(source.table.column("chunk_gap_count").sum()) == 1275 - 42 - held_back
    assert source.table.ms("chunk_gap_p50").min() > 0.1
    assert np.allclose(
        source.table.ms("ttft"),
        [(t + itls[0]) * 1e3 for t, itls in zip(saved["ttfts"], saved["itls"], strict=True)],
        atol=1e-5,
    )
    # What was dropped is in no timeline either: both tell the same gaps.
    rows = zip(source.table.timelines, source.table.column("chunk_gap_count"), strict=True)
    assert all(line is not None and len(line.at_ns) - 1 == gaps for line, gaps in rows)


@pytest.mark.needs("shared")
def test_a_captured_result_gives_its_own_numbers_back() -> None:
    folder = shared_path() / "data/bench_samples/vllm"
    run = run_of(folder / "bench_serve_real.json")
    saved = json.loads((folder / "bench_serve_real.json").read_text())
    summary = summarise_run(run)
    assert (summary.n, sum(record.output_tokens or 0 for record in run.records)) == (40, 1280)
    assert summary.metrics["e2e_last_token_ms"].mean == pytest.approx(saved["mean_e2el_ms"], abs=1e-3)
    assert summary.metrics["tpot_ms"].mean == pytest.approx(saved["mean_tpot_ms"], abs=0.01)
    assert summary.requests_per_s == pytest.approx(saved["request_throughput"])
    assert summary.tokens_per_s == pytest.approx(saved["output_throughput"])
    stream = next(record for record in run.records if record.request_id == "vllm-bench-0")
    assert stream.e2e_last_token_ns == pytest.approx(1_244_799_000, abs=1000)
    assert (run.header.arrival.kind, run.header.arrival.rate, run.header.arrival.concurrency) == ("poisson", 4.0, 8)


@pytest.mark.needs("shared")
def test_a_server_without_role_frames_has_the_first_token_first() -> None:
    """29 gaps for 30 tokens: every frame carried a token, and nothing may be added to the TTFT."""
    run = run_of(shared_path() / "data/bench_samples/vllm/functions_on_mock.json")
    assert [round((record.ttft_ns or 0) / 1e6, 1) for record in run.records] == [109.8, 168.4, 170.9, 157.2]
    assert run.header.arrival.kind == "closed"
    assert run.header.arrival.concurrency == 2


def test_what_a_request_looks_like(tmp_path: Path) -> None:
    first, failed = run_of(made(tmp_path)).records
    assert (first.ttft_ns, first.chunk_gap_count, first.chunk_gap_max_ns) == (100_000_000, 2, 200_000_000)
    assert first.e2e_last_token_ns == first.e2e_ns == 320_000_000 == sum(first.stages().values())
    assert first.tpot_ns == 110_000_000
    assert first.tokens_per_s == pytest.approx(3 / 0.32)
    assert (failed.outcome, failed.error, failed.died_in, failed.ttft_ns) == ("failed", "boom", "prefill", None)
    assert [broken_invariants(record) for record in (first, failed)] == [[], []]


def test_the_wait_for_a_slot_is_a_late_send(tmp_path: Path) -> None:
    """`queue_times` of an open loop: latency from the schedule is theirs plus the latency from the send."""
    run = run_of(made(tmp_path))
    first, failed = run.records
    assert (first.intended_to_sent_ns, first.run_offset_ns, failed.run_offset_ns) == (250_000_000, 250_000_000, 0)
    assert summarise_run(run).from_schedule["ttft_ms"].mean == pytest.approx(350.0)
    closed = run_of(made(tmp_path, request_rate="inf", max_concurrency=1))
    assert closed.records[0].intended_to_sent_ns is None
    assert "from_schedule" in closed.header.absent


def test_role_frames_belong_to_the_ttft(tmp_path: Path) -> None:
    source = read(made(tmp_path, **ROLES))
    assert source.run is not None
    first = source.run.records[0]
    # The frame of 20 us is gone, and the gap behind it begins with the read.
    assert (first.ttft_ns, first.chunk_gap_count, first.chunk_gap_max_ns) == (100_010_000, 2, 200_020_000)
    assert first.e2e_ns == 400_000_000 == sum(first.stages().values())
    assert any("2 inter-token times" in note for note in source.notes)
    assert any("role frame" in note for note in source.notes)


def test_its_end_is_the_last_token_and_e2e_is_absent(tmp_path: Path) -> None:
    run = run_of(made(tmp_path))
    summary = summarise_run(run)
    assert {"e2e_ms", "client_health"} <= set(run.header.absent)
    assert summary.metrics["e2e_ms"].n == 0
    assert "postprocess_ms" not in summary.metrics, "from the last token to an end that nobody knows"
    assert "vllm" in (summary.metrics["e2e_ms"].reason or "")
    assert summary.metrics["e2e_last_token_ms"].mean == pytest.approx(320.0)


def test_frames_are_not_tokens(tmp_path: Path) -> None:
    """Three frames for seven tokens (speculation): TPOT by tokens, gaps by frames, no ITL, and nothing made up."""
    run = run_of(made(tmp_path, output_lens=[7, 0]))
    metrics = summarise_run(run).metrics
    assert metrics["tpot_ms"].mean == pytest.approx(220 / 6)
    assert (metrics["chunk_gap_ms"].n, metrics["chunk_gap_ms"].max) == (2, pytest.approx(200.0))
    assert metrics["itl_ms"].n == 0


@pytest.mark.parametrize("missing", [0.0, -1.5, 1.7e9, float("nan"), float("inf")])
def test_zeros_and_negatives_are_missing_stamps(tmp_path: Path, missing: float) -> None:
    source = read(made(tmp_path, ttfts=[missing, 0.0]))
    assert source.run is not None
    first = source.run.records[0]
    assert (first.ttft_ns, first.tpot_ns, first.timeline, first.e2e_ns) == (None, None, None, 320_000_000)
    assert any("without a first token" in note for note in source.notes)
    assert summarise_run(source.run).metrics["ttft_ms"].n == 0


def test_a_gap_that_is_none_takes_the_timeline_with_it(tmp_path: Path) -> None:
    source = read(made(tmp_path, itls=[[0.02, -0.2], []]))
    assert source.run is not None
    first = source.run.records[0]
    assert (first.ttft_ns, first.timeline, first.e2e_last_token_ns) == (100_000_000, None, 320_000_000)
    assert any("no duration" in note for note in source.notes)


@pytest.mark.parametrize(
    ("rate", "burst", "limit", "kind"),
    [("inf", 1.0, None, "closed"), (4.0, 1.0, 8, "poisson"), (4.0, 0.5, None, "gamma"), (4.0, "inf", None, "constant")],
)
def test_how_it_was_loaded(tmp_path: Path, rate: Any, burst: Any, limit: Any, kind: str) -> None:
    arrival = run_of(made(tmp_path, request_rate=rate, burstiness=burst, max_concurrency=limit)).header.arrival
    assert arrival.kind == kind
    assert arrival.concurrency == (limit or (2 if kind == "closed" else None))


def test_appended_results_are_several_runs(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps(vllm(request_rate=1.0)) + "\n" + json.dumps(vllm(request_rate=9.0)))
    with pytest.raises(InputError, match=r"holds 2 runs: #1 \(1 requests/s, n = 2\); #2 \(9 requests/s"):
        read(path)
    assert run_of(f"{path}#2").header.arrival.rate == 9.0
    with pytest.raises(InputError, match="there is no #3"):
        read(f"{path}#3")


def test_without_requests_there_are_only_its_percentiles(tmp_path: Path) -> None:
    told = {"p99_ttft_ms": 900.0, "median_ttft_ms": 100.0, "mean_tpot_ms": 20.0, "p95_itl_ms": 70.0, "p99_e2el_ms": 5e3}
    made = aggregate_of(write(tmp_path, {**without_requests(vllm(completed=1000, failed=3)), **told}))
    metrics = made.summary.metrics
    assert (metrics["ttft_ms"].p50, metrics["ttft_ms"].p99, metrics["ttft_ms"].p95) == (100.0, 900.0, None)
    assert (metrics["ttft_ms"].n, made.summary.n, made.summary.errors) == (1000, 1003, {"unknown": 3})
    assert metrics["e2e_last_token_ms"].p99 == 5000.0
    assert metrics["chunk_gap_ms"].p95 == 70.0
    assert "how many" in (metrics["chunk_gap_ms"].reason or "")
    assert {"e2e_ms", "itl_ms", "requests"} <= set(made.header.absent)
    assert all(one.p99_ci is None for one in metrics.values())


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"ttfts": []}, "neither requests nor percentiles"),
        ({"itls": [[]]}, "itls: not as many entries"),
        ({"itls": 7}, r"is no result of vllm bench: .*\$.itls"),
        ({"output_lens": ["many", 1]}, r"\$.output_lens\[0\]"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        read(made(tmp_path, **{"completed": 0, **changed}))
    assert caught.value.remedy
    assert str(tmp_path) in caught.value.place
