"""Small results in the forms of other load generators, with numbers that can be checked by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tailrace.analyze.aggregate import Aggregate
from tailrace.diagnose.readers.source import Source, read_source
from tailrace.export.jsonl import from_public_json
from tailrace.store.run_file import Run


def write(folder: Path, value: Any, name: str = "result.txt") -> Path:
    """A name that says nothing: content alone tells what a file is."""
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def read(path: Path | str, **options: Any) -> Source:
    return read_source(str(path), lambda line, place: from_public_json(line, place=place), **options)


def run_of(path: Path | str, **options: Any) -> Run:
    source = read(path, **options)
    assert source.run is not None
    return source.run


def aggregate_of(path: Path | str) -> Aggregate:
    source = read(path)
    assert source.aggregate is not None
    assert source.table is None
    return source.aggregate


def vllm(**changed: Any) -> dict[str, Any]:
    """Two requests of 4/s: a stream of three tokens, and a failure."""
    return {
        "date": "20261129-113503",
        "endpoint_type": "openai",
        "backend": "openai",
        "model_id": "m",
        "num_prompts": 2,
        "request_rate": 4.0,
        "burstiness": 1.0,
        "max_concurrency": None,
        "duration": 2.0,
        "completed": 1,
        "failed": 1,
        "request_goodput": 0.5,
        "input_lens": [10, 20],
        "output_lens": [3, 0],
        "ttfts": [0.1, 0.0],
        "itls": [[0.02, 0.2], []],
        "latencies": [0.32, 0.0],
        "start_times": [100.5, 100.0],
        "queue_times": [0.25, 0.0],
        "errors": ["", "boom"],
        **changed,
    }


def sglang(**changed: Any) -> dict[str, Any]:
    return {
        "tag": None,
        "backend": "sglang",
        "dataset_name": "random",
        "request_rate": "inf",
        "max_concurrency": 2,
        "sharegpt_output_len": None,
        "duration": 2.0,
        "completed": 2,
        "accept_length": None,
        "mean_e2e_latency_ms": 450.0,
        "median_e2e_latency_ms": 450.0,
        "p99_e2e_latency_ms": 499.0,
        "mean_ttft_ms": 90.0,
        "mean_tpot_ms": 70.0,
        "mean_itl_ms": 40.0,
        "p99_itl_ms": 60.0,
        "input_lens": [10, 20],
        "output_lens": [3, 2],
        "ttfts": [0.1, 0.08],
        "itls": [[0.02, 0.06], [0.04]],
        "latencies": [0.4, 0.5],
        "errors": ["", ""],
        **changed,
    }


def without_requests(saved: dict[str, Any]) -> dict[str, Any]:
    lists = ("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "errors")
    return {key: value for key, value in saved.items() if key not in lists}


def guidellm_request(number: int, **changed: Any) -> dict[str, Any]:
    start = 1_700_000_000.0 + number
    return {
        "response_id": f"chatcmpl-{number}",
        "info": {"timings": {"request_start": start, "last_token_iteration": start + 0.5}, "error": None},
        "request_start_time": start,
        "request_latency": 0.6,
        "request_dispatch_delay": 0.05,
        "time_to_first_token_ms": 100.0,
        "time_to_first_output_token_ms": 120.0,
        "inter_token_latency_ms": 40.0,
        "time_per_output_token_ms": 45.5,
        "prompt_tokens": 20,
        "output_tokens": 11,
        **changed,
    }


def guidellm(*requests: dict[str, Any], strategy: dict[str, Any] | None = None, **changed: Any) -> dict[str, Any]:
    kept = list(requests) or [guidellm_request(0), guidellm_request(1)]
    benchmark = {
        "config": {
            "strategy": strategy or {"type_": "concurrent", "streams": 2},
            "backend": {"target": "http://h:8000", "model": "m"},
        },
        "start_time": 1_700_000_000.0,
        "duration": 2.0,
        "metrics": {"request_totals": {"successful": len(kept), "errored": 0, "incomplete": 0}},
        "requests": {"successful": kept, "errored": [], "incomplete": []},
    }
    return {"metadata": {"version": 2, "guidellm_version": "0.8.1"}, "benchmarks": [benchmark], **changed}


def aiperf_line(number: int = 0, **changed: Any) -> dict[str, Any]:
    start = 1_795_951_052_485_341_983 + number * 10**9
    return {
        "metadata": {
            "x_request_id": f"id-{number}",
            "credit_issued_ns": start - 1_000_000,
            "request_start_ns": start,
            "request_end_ns": start + 300_000_000,
            "benchmark_phase": "profiling",
            "was_cancelled": False,
        },
        "metrics": {
            "time_to_first_token": {"value": 100.0, "unit": "ms"},
            "time_to_first_output_token": {"value": 150.0, "unit": "ms"},
            "inter_chunk_latency": {"value": [50.0, 150.0], "unit": "ms"},
            "inter_token_latency": {"value": 100.0, "unit": "ms"},
            "request_latency": {"value": 300.0, "unit": "ms"},
            "output_sequence_length": {"value": 3, "unit": "tokens"},
            "usage_completion_tokens": {"value": 5, "unit": "tokens"},
            "input_sequence_length": {"value": 20, "unit": "tokens"},
            **changed.pop("metrics", {}),
        },
        **changed,
    }


def genai_bench(**changed: Any) -> dict[str, Any]:
    row = {"ttft": 0.1, "tpot": 0.02, "e2e_latency": 1.0, "num_input_tokens": 5, "num_output_tokens": 10}
    failed = {"ttft": None, "e2e_latency": None, "error_code": 429, "error_message": "slow down"}
    return {
        "aggregated_metrics": {
            "scenario": "D(100,100)",
            "num_concurrency": 4,
            "num_requests": 2,
            "num_completed_requests": 1,
            "run_duration": 3.0,
            "requests_per_minute": 20.0,
            "mean_output_throughput_tokens_per_s": 3.3,
            "error_codes_frequency": {"429": 1},
            "stats": {
                "ttft": {"mean": 0.1, "p50": 0.1, "p99": 0.1},
                "tpot": {"mean": 0.02},
                "e2e_latency": {"mean": 1.0, "p50": 1.0},
            },
        },
        "individual_request_metrics": [row, failed],
        **changed,
    }


def llmperf(**changed: Any) -> list[dict[str, Any]]:
    done = {
        "error_code": None,
        "error_msg": "",
        "inter_token_latency_s": 0.05,
        "ttft_s": 0.1,
        "end_to_end_latency_s": 0.6,
        "number_input_tokens": 100,
        "number_output_tokens": 10,
        **changed,
    }
    lost = {
        "error_code": -1,
        "error_msg": "Read timed out.",
        "inter_token_latency_s": 0,
        "ttft_s": 0,
        "end_to_end_latency_s": 0,
        "number_output_tokens": 0,
    }
    return [done, lost]


LLMPERF_SUMMARY: dict[str, Any] = {
    "version": "2023-08-31",
    "model": "m",
    "mean_input_tokens": 550,
    "stddev_input_tokens": 150,
    "num_concurrent_requests": 4,
    "results_ttft_s_mean": 0.2,
    "results_ttft_s_quantiles_p50": 0.19,
    "results_ttft_s_quantiles_p99": 0.9,
    "results_end_to_end_latency_s_mean": 2.0,
    "results_inter_token_latency_s_mean": 0.03,
    "results_num_completed_requests": 100,
    "results_number_errors": 2,
    "results_num_completed_requests_per_min": 120,
    "results_mean_output_throughput_token_per_s": 300.0,
}

INFERENCE_PERF_SUMMARY: dict[str, Any] = {
    "load_summary": {"count": 110, "requested_rate": 10.0, "schedule_delay": {"mean": 0.5, "p99": 2.5}},
    "successes": {
        "count": 100,
        "latency": {
            "request_latency": {"mean": 1.0, "median": 0.9, "p99": 2.0, "p99.9": 3.0},
            "time_to_first_token": {"mean": 0.1, "median": 0.09},
            "time_per_output_token": {"mean": 0.01},
            "inter_token_latency": {"mean": 0.01, "median": 0.0},
            "normalized_time_per_output_token": {"mean": 0.02},
        },
        "throughput": {"requests_per_sec": 9.0, "output_tokens_per_sec": 900.0},
    },
    "failures": {"count": 10, "by_label": {"429 - Rate Limit": {"count": 7}, "Timeout": {"count": 3}}},
}
