"""What engines count, under one noun each, with the names by which their versions say it.

The first name *present in this scrape* wins and is shown beside the number. Names carry their engine (`vllm:`, `nv_`),
so one table serves all of them, also where the engine was not recognised; an adapter's own signals are about this
moment, these are about a window of time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tailrace.engines.signals import Alias, names


class Counter(msgspec.Struct, frozen=True):
    """Something that is counted."""

    aliases: Sequence[Alias]
    unit: str
    by: str = ""
    """A label by whose values it is told apart: the reason."""
    only: Mapping[str, str] = {}
    """Label -> value that a label set must have."""


class Timing(msgspec.Struct, frozen=True):
    """A duration whose distribution is kept."""

    aliases: Sequence[Alias]
    """Histograms; `scale` makes seconds of them."""
    family: str = ""
    """vLLM's name of its buckets, for `--custom-histogram-buckets`."""
    option: str = ""
    """SGLang's option for its buckets."""
    means: str = ""
    """What it is, where the noun does not say it."""


class Ratio(msgspec.Struct, frozen=True):
    """A mean that two counters give: no distribution, so no quantile."""

    sums: Sequence[Alias]
    """`scale` makes seconds of them."""
    counts: Sequence[Alias]
    of: str
    """What was counted: `requests`, `tokens`."""
    summaries: Sequence[Alias] = ()
    """Summaries of the same, where the engine was told to keep some."""


COUNTERS: Final[Mapping[str, Counter]] = {
    "prompt_tokens": Counter(
        names(
            "vllm:prompt_tokens_total",
            "vllm:prompt_tokens",
            "sglang:prompt_tokens_total",
            "llamacpp:prompt_tokens_total",
            "tgi_request_input_length_sum",
            "trtllm_prompt_tokens_total",
            "dynamo_frontend_input_sequence_tokens_sum",
        ),
        "tokens",
    ),
    "generation_tokens": Counter(
        names(
            "vllm:generation_tokens_total",
            "vllm:generation_tokens",
            "sglang:generation_tokens_total",
            "llamacpp:tokens_predicted_total",
            "tgi_request_generated_tokens_sum",
            "trtllm_generation_tokens_total",
            "dynamo_frontend_output_tokens_total",
        ),
        "tokens",
    ),
    "prefix_queried": Counter(
        names(
            "vllm:prefix_cache_queries_total",
            "vllm:prefix_cache_queries",
            "vllm:gpu_prefix_cache_queries_total",
            "vllm:gpu_prefix_cache_queries",
            "sglang:prompt_tokens_total",
        ),
        "tokens",
    ),
    # llama.cpp's prompt tokens are those that were computed: the ones found in the cache come on top.
    "prefix_missed": Counter(names("llamacpp:prompt_tokens_total"), "tokens"),
    "prefix_found": Counter(
        names(
            "vllm:prefix_cache_hits_total",
            "vllm:prefix_cache_hits",
            "vllm:gpu_prefix_cache_hits_total",
            "vllm:gpu_prefix_cache_hits",
            "sglang:cached_tokens_total",
            "llamacpp:prompt_tokens_cached_total",
        ),
        "tokens",
    ),
    "preemptions": Counter(
        names("vllm:num_preemptions_total", "vllm:num_preemptions", "sglang:num_retracted_requests_total"),
        "preemptions",
    ),
    "steps": Counter(
        names(
            "vllm:iteration_tokens_total_count",
            "llamacpp:n_decode_total",
            "nv_inference_exec_count",
            "tgi_batch_forward_duration_count",
        ),
        "steps",
    ),
    "computed_tokens": Counter(names("sglang:realtime_tokens_total"), "tokens", by="mode"),
    "finished": Counter(
        names(
            "vllm:request_success_total",
            "vllm:request_success",
            "sglang:num_requests_total",
            "nv_inference_request_success",
            "tgi_request_success",
            "trtllm_request_success_total",
        ),
        "requests",
        by="finished_reason",
    ),
    "aborted": Counter(
        (*names("vllm:request_success_total", "vllm:request_success"), Alias("sglang:num_aborted_requests_total")),
        "requests",
        only={"finished_reason": "abort"},
    ),
    "rejected": Counter(
        names("vllm:admission_rejections_total", "vllm:admission_rejections"),
        "requests",
        by="reason",
    ),
    "failed": Counter(names("nv_inference_request_failure", "tgi_request_failure"), "requests", by="reason"),
}
"""Noun -> counter."""

STEPWISE: Final = frozenset(
    {
        "vllm:generation_tokens_total",
        "vllm:generation_tokens",
        "vllm:iteration_tokens_total_count",
        "llamacpp:n_decode_total",
        "sglang:realtime_tokens_total",
        "tgi_batch_forward_duration_count",
    }
)
"""What moves with every step of a working engine. Most counters move when a request ends, SGLang's and llama.cpp's
tokens too: one long answer alone would look like a stand-still by them."""

TIMINGS: Final[Mapping[str, Timing]] = {
    "queue": Timing(
        names(
            "vllm:request_queue_time_seconds",
            "vllm:time_in_queue_requests",
            "sglang:queue_time_seconds",
            "tgi_request_queue_duration",
            "trtllm_request_queue_time_seconds",
        ),
        family="request_latency",
    ),
    "prefill": Timing(
        names("vllm:request_prefill_time_seconds", "trtllm_request_prefill_time_seconds"), family="request_latency"
    ),
    "decode": Timing(
        names("vllm:request_decode_time_seconds", "trtllm_request_decode_time_seconds"), family="request_latency"
    ),
    "inference": Timing(
        names(
            "vllm:request_inference_time_seconds",
            "tgi_request_inference_duration",
            "trtllm_request_inference_time_seconds",
        ),
        family="request_latency",
    ),
    "ttft": Timing(
        (
            *names(
                "vllm:time_to_first_token_seconds",
                "sglang:time_to_first_token_seconds",
                "trtllm_time_to_first_token_seconds",
                "dynamo_frontend_time_to_first_token_seconds",
            ),
            Alias("nv_inference_first_response_histogram_ms", 1e-3),
        ),
        family="time_to_first_token",
        option="--bucket-time-to-first-token",
        means="arrival at the engine -> first token",
    ),
    "itl": Timing(
        names(
            "vllm:inter_token_latency_seconds",
            "vllm:time_per_output_token_seconds",
            "sglang:inter_token_latency_seconds",
            "dynamo_frontend_inter_token_latency_seconds",
        ),
        family="inter_token_latency",
        option="--bucket-inter-token-latency",
        means="one value a step (vLLM), or a step's time shared among its tokens (SGLang): stalls are smeared",
    ),
    "tpot": Timing(
        names(
            "vllm:request_time_per_output_token_seconds",
            "sglang:request_time_per_output_token_seconds",
            "trtllm_time_per_output_token_seconds",
        ),
        family="inter_token_latency",
        option="--bucket-inter-token-latency",
        means="one value a request; TGI's time per token is none, it spreads the prefill over the tokens",
    ),
    "e2e": Timing(
        names(
            "vllm:e2e_request_latency_seconds",
            "sglang:e2e_request_latency_seconds",
            "trtllm_e2e_request_latency_seconds",
            "dynamo_frontend_request_duration_seconds",
            "tgi_request_duration",
        ),
        family="request_latency",
        option="--bucket-e2e-request-latency",
        means="finished requests only: one whose client left is not in it",
    ),
}
"""Noun -> histogram of a duration (seconds)."""

RATIOS: Final[Mapping[str, Ratio]] = {
    "queue": Ratio(
        names("nv_inference_queue_duration_us", scale=1e-6),
        names("nv_inference_request_success"),
        "requests",
        names("nv_inference_queue_summary_us", scale=1e-6),
    ),
    "prefill_token": Ratio(names("llamacpp:prompt_seconds_total"), names("llamacpp:prompt_tokens_total"), "tokens"),
    "decode_token": Ratio(
        names("llamacpp:tokens_predicted_seconds_total"), names("llamacpp:tokens_predicted_total"), "tokens"
    ),
}
"""Noun -> mean of a duration where an engine keeps no histogram. Triton's compute times are not among them: of a model
that streams they end when its `execute()` returns, long before the last token."""

STARTED_AND_COUNTED: Final = (
    "process_start_time_seconds",
    *("vllm:", "sglang:", "llamacpp:", "nv_inference_", "tgi_", "trtllm_", "dynamo_frontend_"),
)
"""How the names begin that a reading needs."""
