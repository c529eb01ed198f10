"""Results of GuideLLM: a mean for each stream under the name of a gap, stamps of decades, two versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.analyze.bench_summary import summarise_run
from tailrace.diagnose.readers.foreign import Foreign
from tailrace.diagnose.readers.guidellm import _Request, _start
from tailrace.model.errors import InputError
from tests.conftest import shared_path
from tests.diagnose.foreign_results import aggregate_of, guidellm, guidellm_request, read, run_of, write

POISSON = {"type_": "poisson", "rate": 5.0}


def test_its_itl_is_our_tpot_and_no_gap_is_made_of_it(tmp_path: Path) -> None:
    run = run_of(write(tmp_path, guidellm()))
    first = run.records[0]
    assert (first.ttft_ns, first.ttft_content_ns, first.tpot_ns) == (100_000_000, 120_000_000, 40_000_000)
    # 100 + 10 x 40 ms; in seconds there, milliseconds beside it.
    assert (first.e2e_last_token_ns, first.e2e_ns) == (500_000_000, 600_000_000)
    assert first.timeline is None
    assert run.header.granularity == "mean"
    metrics = summarise_run(run).metrics
    for name in ("chunk_gap_ms", "itl_ms", "longest_wait_ms"):
        assert name in run.header.absent
        assert metrics[name].n == 0
    assert metrics["tpot_ms"].n == 2, "one value a request, not n - 1 of them"


def test_late_sends_count_in_an_open_loop_only(tmp_path: Path) -> None:
    run = run_of(write(tmp_path, guidellm(strategy=POISSON)))
    assert [one.intended_to_sent_ns for one in run.records] == [50_000_000, 50_000_000]
    # Stamps of the wall clock as a float of seconds: good to a quarter of a microsecond.
    assert [one.run_offset_ns for one in run.records] == pytest.approx([0, 10**9], abs=300)
    assert summarise_run(run).from_schedule["ttft_ms"].mean == pytest.approx(150.0)
    assert run_of(write(tmp_path, guidellm())).records[0].intended_to_sent_ns is None


@pytest.mark.parametrize("ttft", [0.0, -1_715_507_074_412.1, 1_715_507_074_412.1, None])
def test_missing_stamps_are_left_out_and_counted(tmp_path: Path, ttft: float | None) -> None:
    source = read(write(tmp_path, guidellm(guidellm_request(0, time_to_first_token_ms=ttft), guidellm_request(1))))
    assert source.run is not None
    assert source.run.records[0].ttft_ns is None
    assert summarise_run(source.run).metrics["ttft_ms"].n == 1
    assert any("1 times to the first token" in note for note in source.notes) == (ttft is not None)


def test_groups_are_outcomes(tmp_path: Path) -> None:
    saved = guidellm()
    lost = guidellm_request(2, time_to_first_token_ms=None, output_tokens=None)
    lost["info"]["error"] = "429 Too Many Requests"
    saved["benchmarks"][0]["requests"] |= {"errored": [lost], "incomplete": [guidellm_request(3)]}
    run = run_of(write(tmp_path, saved))
    assert [str(record.reason) for record in run.records] == ["", "", "rate_limited", "operator"]
    assert summarise_run(run).metrics["e2e_ms"].n == 2, "only what succeeded is in a percentile"


def test_a_sample_of_the_requests_says_so(tmp_path: Path) -> None:
    saved = guidellm()
    saved["benchmarks"][0]["metrics"]["request_totals"]["successful"] = 500
    assert any("2 of 500" in note for note in read(write(tmp_path, saved)).notes)


def test_several_benchmarks_are_several_runs(tmp_path: Path) -> None:
    saved = guidellm()
    saved["benchmarks"] += guidellm(strategy=POISSON)["benchmarks"]
    path = write(tmp_path, saved)
    with pytest.raises(InputError, match="holds 2 runs"):
        read(path)
    assert run_of(f"{path}#2").header.arrival.rate == 5.0


@pytest.mark.parametrize("version", [1, 3])
def test_another_version_is_refused_with_a_remedy(tmp_path: Path, version: int) -> None:
    with pytest.raises(InputError, match=f"metadata.version is {version}; version 2 is read") as caught:
        read(write(tmp_path, guidellm(metadata={"version": version})))
    assert "Write it again with GuideLLM" in caught.value.remedy


def test_only_percentiles_and_what_is_none_of_them(tmp_path: Path) -> None:
    saved = guidellm()
    del saved["benchmarks"][0]["requests"]
    saved["benchmarks"][0]["metrics"] |= {
        "request_latency": {"successful": {"mean": 1.5, "count": 9, "percentiles": {"p50": 1.4, "p999": 9.0}}},
        "time_to_first_token_ms": {"successful": {"mean": -1_715_507_074_412.1, "max": 89_488.2, "count": 9}},
        "inter_token_latency_ms": {"successful": {"mean": 20.0, "count": 441, "percentiles": {"p99": 27.5}}},
    }
    path = write(tmp_path, saved)
    made = aggregate_of(path)
    metrics = made.summary.metrics
    assert (metrics["e2e_ms"].p50, metrics["e2e_ms"].p999, metrics["e2e_ms"].p99) == (1400.0, 9000.0, None)
    assert (metrics["ttft_ms"].mean, metrics["ttft_ms"].max) == (None, 89_488.2)
    assert metrics["tpot_ms"].n == 0
    assert made.theirs["inter_token_latency_ms"]["p99"] == 27.5
    assert any("negative or of an epoch" in note for note in read(path).notes)


@pytest.mark.needs("shared")
def test_the_captured_result() -> None:
    source = read(shared_path() / "data/bench_samples/guidellm/benchmarks.json")
    assert source.foreign is Foreign.GUIDELLM
    assert source.run is not None
    records = source.run.records
    assert [record.request_id for record in records] == ["chatcmpl-0", "chatcmpl-1", "chatcmpl-2"]
    assert [round((record.ttft_ns or 0) / 1e6, 3) for record in records] == [107.380, 170.846, 170.611]
    assert [round((record.tpot_ns or 0) / 1e6, 3) for record in records] == [20.331, 23.779, 19.798]
    assert source.run.header.conditions.tool == "guidellm 0.8.1"


@pytest.mark.needs("shared")
def test_the_pasted_summary_of_missing_stamps() -> None:
    made = aggregate_of(shared_path() / "data/cases/inputs/MT-07.guidellm.json")
    assert made.summary.metrics["ttft_ms"].mean is None
    assert made.summary.metrics["ttft_ms"].max == 89_488.18


def test_a_start_that_no_clock_can_show_is_a_missing_stamp():
    assert _start(_Request(request_start_time=1e300)) is None
    assert _start(_Request(request_start_time=1.7e9)) == 1.7e9
