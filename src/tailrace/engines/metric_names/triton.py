"""Triton's metrics: a scrape of 2.51, and what later versions and other builds are documented to add."""

from __future__ import annotations

from typing import Final

from tailrace.engines.metric_names.table import MetricNames, read_names

_NAMES: Final = """
[requests of a model]
inference_request_success counter : answered requests; cancelled streams count as these
inference_request_failure counter : failed requests by reason; a queue timeout is REJECTED, a full queue is not counted
inference_count counter : inferences, each element of a batch counted
inference_exec_count counter : executions: inferences divided by these is the mean batch
inference_pending_request_count gauge : requests that wait for an execution
inference_request_duration_us counter : time of requests (us); for streams only until `execute()` returns
inference_queue_duration_us counter : wait in the queue (us)
inference_compute_input_duration_us counter : reading inputs (us)
inference_compute_infer_duration_us counter : computing (us); means nothing for streams
inference_compute_output_duration_us counter : writing outputs (us)
inference_request_summary_us summary : the same as quantiles, opt-in
inference_queue_summary_us summary : the same as quantiles, opt-in
inference_compute_input_summary_us summary : the same as quantiles, opt-in
inference_compute_infer_summary_us summary : the same as quantiles, opt-in
inference_compute_output_summary_us summary : the same as quantiles, opt-in
inference_first_response_histogram_ms histogram : time to the first response (ms); later than 2.51, opt-in
inference_load_ratio gauge : use of the model's rate limiter
model_load_duration_secs gauge : time to load the model (s); later than 2.51
[response cache]
cache_util gauge
cache_num_entries gauge
cache_num_hits gauge
cache_num_misses gauge
cache_num_lookups gauge
cache_num_evictions gauge
cache_lookup_duration gauge
cache_insertion_duration gauge
cache_num_hits_per_model counter
cache_num_misses_per_model counter
cache_hit_duration_per_model counter
cache_miss_duration_per_model counter
[host]
cpu_utilization gauge
cpu_memory_total_bytes gauge
cpu_memory_used_bytes gauge
pinned_memory_pool_total_bytes gauge
pinned_memory_pool_used_bytes gauge
[card]
gpu_utilization gauge
gpu_memory_total_bytes gauge
gpu_memory_used_bytes gauge
gpu_power_usage gauge
gpu_power_limit gauge
energy_consumption counter
[TensorRT-LLM inside Triton; read in its documentation, not run]
trt_llm_request_metrics gauge
trt_llm_runtime_memory_metrics gauge
trt_llm_kv_cache_block_metrics gauge
trt_llm_inflight_batcher_metrics gauge
trt_llm_general_metrics gauge
trt_llm_disaggregated_serving_metrics gauge
trt_llm_v1_metrics gauge
llm_input_token_len histogram
llm_output_token_len histogram
"""

TRITON_METRICS: Final = MetricNames(read_names("nv_", _NAMES))
