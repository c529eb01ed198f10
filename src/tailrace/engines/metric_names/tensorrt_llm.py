"""TensorRT-LLM's metrics (`trtllm-serve`, `/prometheus/metrics`): names in its source of 2026, not run."""

from __future__ import annotations

from typing import Final

from tailrace.engines.metric_names.table import MetricNames, read_names

_NAMES: Final = """
[requests]
request_success_total counter : ended requests by finish reason
request_error_total counter : errors by HTTP status
e2e_request_latency_seconds histogram : arrival to last token; buckets begin at 0.3 s
time_to_first_token_seconds histogram : arrival to first token
time_per_output_token_seconds histogram : mean gap of one request
request_queue_time_seconds histogram : arrival to first scheduled; buckets begin at 0.3 s
request_prefill_time_seconds histogram : first scheduled to first token
request_decode_time_seconds histogram : first to last token; buckets begin at 0.3 s
request_inference_time_seconds histogram : first scheduled to last token; buckets begin at 0.3 s
prompt_tokens_total counter : prompt tokens
generation_tokens_total counter : tokens given out
prompt_cached_tokens_total counter : prompt tokens found in the KV cache
prompt_cache_hit_tokens_total counter : the same by level of the cache
prompt_cached_tokens_per_request histogram : the same by request
prefill_perplexity histogram
generation_perplexity histogram
[state of the scheduler]
num_requests_running gauge : active requests
num_requests_waiting gauge : queued requests
num_requests_completed_total counter : requests ended
max_num_active_requests gauge : requests that may be active
num_context_requests gauge : requests in prefill in the last step
num_generation_requests gauge : requests in decode in the last step
num_paused_requests gauge : requests paused, which are preempted
num_scheduled_requests gauge : requests of the last step
scheduled_batch_size any : requests of a step
total_context_tokens gauge : prompt tokens of the last step
avg_decoded_tokens_per_iter gauge : tokens given out a step
iteration_latency_seconds gauge : the last step (s)
prefill_batch_occupancy gauge : share of places taken by requests in prefill
prefill_batch_tokens histogram : prompt tokens of a step
max_batch_size_static gauge : requests in one step at most, as started
max_batch_size_runtime gauge : the same, as it is now
max_num_tokens_runtime gauge : tokens in one step at most
[KV cache]
kv_cache_hit_rate gauge : share of blocks found
kv_cache_utilization gauge : share of KV blocks in use, 0..1
kv_cache_host_utilization gauge
kv_cache_iter_reuse_rate gauge
kv_cache_reused_blocks counter
kv_cache_missed_blocks counter
kv_cache_iter_reused_blocks counter
kv_cache_iter_full_reused_blocks counter
kv_cache_iter_partial_reused_blocks counter
kv_cache_iter_missed_blocks counter
kv_cache_gen_alloc_blocks_total counter
kv_cache_onboard_bytes_total counter
kv_cache_offload_bytes_total counter
kv_cache_disk_prefetch_blocks_total counter
kv_cache_intra_device_copy_bytes_total counter
kv_cache_max_blocks gauge
kv_cache_free_blocks gauge
kv_cache_used_blocks gauge
kv_cache_tokens_per_block gauge
[memory]
gpu_memory_usage_bytes gauge
cpu_memory_usage_bytes gauge
pinned_memory_usage_bytes gauge
[speculative decoding]
spec_decode_num_draft_tokens_total counter
spec_decode_num_accepted_tokens_total counter
spec_decode_drafted_tokens_total counter
spec_decode_accepted_tokens_total counter
spec_decode_acceptance_length gauge
spec_decode_draft_overhead gauge
[configuration, in labels]
model_config_info gauge : model, dtype, quantization, gpu_type
parallel_config_info gauge : tp_size, pp_size
speculative_config_info gauge : method, draft model
kv_cache_config_info gauge : page_size, enable_block_reuse
"""

TENSORRT_LLM_METRICS: Final = MetricNames(read_names("trtllm_", _NAMES))
