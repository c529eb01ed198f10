"""Whose result a file is, told by its keys (never by its name), and the reader of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final

from tailrace.diagnose.readers.aiperf import read_aiperf_aggregate, read_aiperf_requests
from tailrace.diagnose.readers.bench_console import TITLE, read_bench_console
from tailrace.diagnose.readers.genai_bench import read_genai_bench
from tailrace.diagnose.readers.genai_perf import read_genai_perf_aggregate, read_genai_perf_streams
from tailrace.diagnose.readers.guidellm import read_guidellm
from tailrace.diagnose.readers.imported import Imported
from tailrace.diagnose.readers.inference_perf import read_inference_perf_aggregate, read_inference_perf_requests
from tailrace.diagnose.readers.llmperf import read_llmperf_aggregate, read_llmperf_requests
from tailrace.diagnose.readers.sglang_bench import read_sglang_bench
from tailrace.diagnose.readers.vllm_bench import read_vllm_bench

__all__ = ["HEAD_BYTES", "Foreign", "foreign_of", "read_foreign"]

HEAD_BYTES: Final = 1 << 16
"""So much of a file is looked at: settings with long prompts may stand before the keys that tell."""


class Foreign(StrEnum):
    """A form that another load tool writes."""

    VLLM = "vllm bench"
    SGLANG = "sglang bench"
    CONSOLE = "printed benchmark"
    GUIDELLM = "guidellm"
    AIPERF = "aiperf requests"
    AIPERF_SUMMARY = "aiperf summary"
    GENAI_PERF = "genai-perf streams"
    GENAI_PERF_SUMMARY = "genai-perf summary"
    INFERENCE_PERF = "inference-perf requests"
    INFERENCE_PERF_SUMMARY = "inference-perf summary"
    LLMPERF = "llmperf requests"
    LLMPERF_SUMMARY = "llmperf summary"
    GENAI_BENCH = "genai-bench"


READERS: Final[dict[Foreign, Callable[[Path], Imported]]] = {
    Foreign.VLLM: read_vllm_bench,
    Foreign.SGLANG: read_sglang_bench,
    Foreign.CONSOLE: read_bench_console,
    Foreign.GUIDELLM: read_guidellm,
    Foreign.AIPERF: read_aiperf_requests,
    Foreign.AIPERF_SUMMARY: read_aiperf_aggregate,
    Foreign.GENAI_PERF: read_genai_perf_streams,
    Foreign.GENAI_PERF_SUMMARY: read_genai_perf_aggregate,
    Foreign.INFERENCE_PERF: read_inference_perf_requests,
    Foreign.INFERENCE_PERF_SUMMARY: read_inference_perf_aggregate,
    Foreign.LLMPERF: read_llmperf_requests,
    Foreign.LLMPERF_SUMMARY: read_llmperf_aggregate,
    Foreign.GENAI_BENCH: read_genai_bench,
}

_KEY: Final = re.compile(rb'"([\w.]{1,60})"\s*:')
_OBJECT, _LIST = b"{", b"["
_MARKS: Final[tuple[tuple[Foreign, bytes, tuple[frozenset[str], ...]], ...]] = (
    # In this order: the keys of the later ones may stand in files of the earlier ones.
    (Foreign.GUIDELLM, _OBJECT, (
        frozenset({"guidellm_version"}),
        frozenset({"benchmarks", "time_to_first_token_ms"}),
        frozenset({"benchmarks", "request_latency"}),
        frozenset({"benchmarks", "scheduler_metrics"}),
        frozenset({"benchmarks", "scheduler_state"}),
    )),
    (Foreign.AIPERF, _OBJECT, (
        frozenset({"metadata", "request_start_ns"}),
        frozenset({"metadata", "credit_issued_ns"}),
        frozenset({"metadata", "benchmark_phase"}),
    )),
    (Foreign.AIPERF_SUMMARY, _OBJECT, (
        frozenset({"aiperf_version"}),
        frozenset({"schema_version", "request_throughput", "unit"}),
    )),
    (Foreign.GENAI_PERF, _OBJECT, (
        frozenset({"experiments", "response_timestamps"}),
        frozenset({"experiments", "service_kind"}),
        frozenset({"experiments", "request_inputs"}),
    )),
    (Foreign.GENAI_PERF_SUMMARY, _OBJECT, (
        frozenset({"request_throughput", "request_latency", "unit"}),
        frozenset({"time_to_first_token", "request_latency", "unit"}),
    )),
    (Foreign.INFERENCE_PERF_SUMMARY, _OBJECT, (
        frozenset({"load_summary"}),
        frozenset({"successes", "failures"}),
    )),
    (Foreign.INFERENCE_PERF, _LIST, (frozenset({"start_time", "end_time"}),)),
    (Foreign.LLMPERF, _LIST, (
        frozenset({"inter_token_latency_s"}),
        frozenset({"ttft_s", "end_to_end_latency_s"}),
    )),
    (Foreign.LLMPERF_SUMMARY, _OBJECT, (
        frozenset({"results_ttft_s_mean"}),
        frozenset({"results_inter_token_latency_s_mean"}),
        frozenset({"mean_input_tokens", "stddev_input_tokens"}),
    )),
    (Foreign.GENAI_BENCH, _OBJECT, (frozenset({"aggregated_metrics"}), frozenset({"individual_request_metrics"}))),
    (Foreign.SGLANG, _OBJECT, (
        frozenset({"sharegpt_output_len"}),
        frozenset({"mean_e2e_latency_ms"}),
        frozenset({"total_output_retokenized"}),
        frozenset({"total_output_tokens_retokenized"}),
    )),
    (Foreign.VLLM, _OBJECT, (
        frozenset({"endpoint_type"}),
        frozenset({"request_goodput"}),
        frozenset({"total_token_throughput"}),
        frozenset({"ttfts", "itls"}),
        frozenset({"mean_ttft_ms", "mean_tpot_ms"}),
        frozenset({"tokenizer_id", "num_prompts"}),
    )),
)  # fmt: skip


def foreign_of(head: bytes) -> Foreign | None:
    """Whose result begins with `head` (blank and byte-order mark stripped); `None` for none of them."""
    opening = head[:1]
    if opening in (_OBJECT, _LIST):
        keys = {key.decode("ascii", "replace") for key in _KEY.findall(head)}
        for foreign, first, sets in _MARKS:
            if opening == first and any(marks <= keys for marks in sets):
                return foreign
        return None
    return Foreign.CONSOLE if TITLE.encode() in head else None


def read_foreign(path: Path, foreign: Foreign, *, allow_partial: bool = False) -> Imported:
    """Read it. InputError with place and remedy where it is not what it seems, or is cut."""
    if foreign is Foreign.AIPERF:
        return read_aiperf_requests(path, allow_partial=allow_partial)
    return READERS[foreign](path)
