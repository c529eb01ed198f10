"""vLLM's metrics. Versions looked at: 0.6.6, 0.8.5, 0.11.0, 0.16.0, 0.22.0 (names in the wheels), 0.32.0 (a scrape)."""

from __future__ import annotations

from typing import Final

from tailrace.engines.metric_names.table import MetricNames, read_names

_COUNTED: Final = """
[state of the scheduler]
engine_sleep_state gauge 0.16.0 - : whether the engine sleeps, by state
num_preemptions_total counter 0.6.6 - : preemptions; counted when the preempted request resumes
num_requests_running gauge 0.6.6 - : requests in the running batch
num_requests_swapped gauge 0.6.6 0.8.5 : preempted requests whose KV blocks lie in host memory (V0)
num_requests_waiting gauge 0.6.6 - : requests waiting for the scheduler, preempted ones included (V1)
num_requests_waiting_by_reason gauge 0.22.0 - : waiting requests by reason: capacity, deferred
[KV and prefix cache]
cache_config_info gauge 0.6.6 - : the KV cache's configuration, in labels
cpu_cache_usage_perc gauge 0.6.6 0.8.5 : share of host KV blocks in use (V0)
cpu_prefix_cache_hit_rate gauge 0.6.6 0.8.5 : share of prompt tokens found in host memory (V0)
external_prefix_cache_hits_total counter 0.16.0 - : prompt tokens found in a cache that instances share
external_prefix_cache_queries_total counter 0.16.0 - : prompt tokens looked up in a cache that instances share
gpu_cache_usage_perc gauge 0.6.6 0.11.0 : share of KV blocks in use, old name
gpu_prefix_cache_hit_rate gauge 0.6.6 0.8.5 : share of prompt tokens found in the prefix cache
gpu_prefix_cache_hits_total counter 0.8.5 0.11.0 : prompt tokens found in the prefix cache, old name
gpu_prefix_cache_queries_total counter 0.8.5 0.11.0 : prompt tokens looked up in it, old name
kv_block_idle_before_evict_seconds histogram 0.16.0 - : KV block unused before its eviction
kv_block_lifetime_seconds histogram 0.16.0 - : KV block from allocation to eviction (sampled, --kv-cache-metrics)
kv_block_reuse_gap_seconds histogram 0.16.0 - : time between two uses of a KV block
kv_cache_usage_perc gauge 0.11.0 - : share of KV blocks in use, 0..1
mm_cache_hits_total counter 0.16.0 - : images and sounds found in the multi-modal cache
mm_cache_queries_total counter 0.16.0 - : images and sounds looked up in the multi-modal cache
prefix_cache_hits_total counter 0.11.0 - : prompt tokens found in the prefix cache
prefix_cache_queries_total counter 0.11.0 - : prompt tokens looked up in the prefix cache
[tokens and batches]
avg_generation_throughput_toks_per_s gauge 0.6.6 0.6.6 : output tokens per second over the last interval (V0)
avg_prompt_throughput_toks_per_s gauge 0.6.6 0.6.6 : prompt tokens per second over the last interval (V0)
generation_tokens_total counter 0.6.6 - : tokens given out
iteration_tokens_total histogram 0.6.6 - : tokens in one step: a histogram in spite of its name
prompt_tokens_by_source_total counter 0.16.0 - : prompt tokens by source: computed, cached here, fetched
prompt_tokens_cached_by_source_total counter 0.32.0 - : cached prompt tokens by tier: device, host, disk, peer
prompt_tokens_cached_total counter 0.16.0 - : cached prompt tokens
prompt_tokens_recomputed_total counter 0.16.0 0.16.0 : cached tokens computed again because a logit was needed
prompt_tokens_total counter 0.6.6 - : prompt tokens, cached ones included
tokens_total counter 0.6.6 0.6.6 : prompt and output tokens (V0)
[times of requests]
e2e_request_latency_seconds histogram 0.6.6 - : arrival to last token; buckets begin at 0.3 s
inter_token_latency_seconds histogram 0.11.0 - : gap between two tokens, one value a step
model_execute_time_milliseconds histogram 0.6.6 0.8.5 : time in the model and in sampling (V0, detailed traces)
model_forward_time_milliseconds histogram 0.6.6 0.8.5 : time in the model's forward pass (V0, detailed traces)
request_decode_time_seconds histogram 0.6.6 - : first to last token; buckets begin at 0.3 s
request_inference_time_seconds histogram 0.6.6 - : first scheduled to last token; buckets begin at 0.3 s
request_prefill_time_seconds histogram 0.6.6 - : first scheduled to first token; buckets begin at 0.3 s
request_queue_time_seconds histogram 0.6.6 - : queued to first scheduled; buckets begin at 0.3 s
request_time_per_output_token_seconds histogram 0.11.0 - : mean gap of one request
time_in_queue_requests histogram 0.6.6 0.8.5 : the queue time of V0, in seconds in spite of its name
time_per_output_token_seconds histogram 0.6.6 0.11.0 : gap between two tokens, old name
time_to_first_token_seconds histogram 0.6.6 - : arrival to first token, queue included
[ended and refused requests]
admission_rejections_total counter 0.32.0 - : requests refused by a queue limit, by reason
corrupted_requests_total counter 0.16.0 - : requests with NaNs in their logits
request_generation_tokens histogram 0.6.6 - : output length of ended requests
request_max_num_generation_tokens histogram 0.6.6 - : longest output over the sequences of one request
request_num_preemptions histogram 0.32.0 - : preemptions of one request
request_params_max_tokens histogram 0.6.6 - : max_tokens asked for
request_params_n histogram 0.6.6 - : n asked for
request_prefill_kv_computed_tokens histogram 0.16.0 - : prompt tokens computed, cached ones excluded
request_prompt_tokens histogram 0.6.6 - : prompt length of ended requests
request_success_total counter 0.6.6 - : ended requests by finish reason; aborted ones stay 0
[speculative decoding: tokens drafted and accepted]
spec_decode_draft_acceptance_rate gauge 0.6.6 0.8.5
spec_decode_efficiency gauge 0.6.6 0.8.5
spec_decode_num_accepted_tokens_per_pos_total counter 0.8.5 -
spec_decode_num_accepted_tokens_total counter 0.6.6 -
spec_decode_num_draft_tokens_total counter 0.6.6 -
spec_decode_num_drafts_total counter 0.8.5 -
spec_decode_num_emitted_tokens_total counter 0.6.6 -
[adapters, realtime sessions, estimated work]
estimated_flops_per_gpu_total counter 0.22.0 - : floating point operations, estimated (--enable-mfu-metrics)
estimated_read_bytes_per_gpu_total counter 0.22.0 - : bytes read from the card's memory, estimated
estimated_write_bytes_per_gpu_total counter 0.22.0 - : bytes written to the card's memory, estimated
lora_requests_info gauge 0.6.6 - : LoRA adapters in use, in labels
websocket_connection_duration_seconds histogram 0.22.0 - : length of realtime sessions
websocket_connections_active gauge 0.22.0 - : open realtime sessions
websocket_connections_total counter 0.22.0 - : realtime sessions opened
"""

_OPTIONAL: Final = """
[text by diffusion]
diffusion_num_canvas_positions any 0.32.0 -
diffusion_num_committed_tokens any 0.32.0 -
diffusion_num_denoising_steps any 0.32.0 -
[KV connector 3FS]
hf3fs_load_duration_seconds any 0.32.0 -
hf3fs_num_failed_load any 0.32.0 -
hf3fs_num_failed_save any 0.32.0 -
hf3fs_save_duration_seconds any 0.32.0 -
[KV of sparse attention in host memory]
hisparse_cache_hits any 0.32.0 -
hisparse_cache_misses any 0.32.0 -
hisparse_host_block_idle_before_evict_seconds any 0.32.0 -
hisparse_host_block_lifetime_seconds any 0.32.0 -
hisparse_host_block_reuse_gap_seconds any 0.32.0 -
hisparse_host_cache_usage_perc any 0.32.0 -
hisparse_host_to_device_bytes any 0.32.0 -
hisparse_pending_page_transfers any 0.32.0 -
[KV offloading to host memory and disk]
kv_offload_allocation_failure any 0.32.0 -
kv_offload_cpu_allocation_size any 0.32.0 -
kv_offload_cpu_cache_read_usage_perc any 0.32.0 -
kv_offload_cpu_cache_usage_perc any 0.32.0 -
kv_offload_cpu_cache_write_usage_perc any 0.32.0 -
kv_offload_load_bytes any 0.32.0 -
kv_offload_load_size any 0.32.0 -
kv_offload_load_time any 0.32.0 -
kv_offload_lookup_async_delay_seconds any 0.32.0 -
kv_offload_lookup_sync_delay_seconds any 0.32.0 -
kv_offload_size any 0.32.0 -
kv_offload_store_bytes any 0.32.0 -
kv_offload_store_size any 0.32.0 -
kv_offload_store_time any 0.32.0 -
kv_offload_stores_skipped any 0.32.0 -
kv_offload_tiering_active_cascade_jobs any 0.32.0 -
kv_offload_tiering_active_promotion_jobs any 0.32.0 -
kv_offload_tiering_backpressure_blocks_dropped any 0.32.0 -
kv_offload_tiering_backpressure_store_latency_ema any 0.32.0 -
kv_offload_tiering_backpressure_stores_dropped any 0.32.0 -
kv_offload_tiering_cascade_job_failures any 0.32.0 -
kv_offload_tiering_chunk_hits any 0.32.0 -
kv_offload_tiering_chunk_queries any 0.32.0 -
kv_offload_tiering_lookup_async_delay_seconds any 0.32.0 -
kv_offload_tiering_lookup_sync_delay_seconds any 0.32.0 -
kv_offload_tiering_primary_read_usage_perc any 0.32.0 -
kv_offload_tiering_primary_write_usage_perc any 0.32.0 -
kv_offload_tiering_promotion_allocation_failures any 0.32.0 -
kv_offload_tiering_promotion_job_failures any 0.32.0 -
kv_offload_tiering_read_bytes any 0.32.0 -
kv_offload_tiering_read_time any 0.32.0 -
kv_offload_tiering_write_bytes any 0.32.0 -
kv_offload_tiering_write_time any 0.32.0 -
kv_offload_total_bytes any 0.32.0 -
kv_offload_total_time any 0.32.0 -
[KV connector Mooncake]
mooncake_store_operation_bytes_total any 0.32.0 -
mooncake_store_operation_failed_keys_total any 0.32.0 -
mooncake_store_operation_keys_total any 0.32.0 -
mooncake_store_operation_time_seconds any 0.32.0 -
mooncake_store_operation_total any 0.32.0 -
[KV connector NIXL]
nixl_bytes_transferred any 0.32.0 -
nixl_num_descriptors any 0.32.0 -
nixl_num_failed_notifications any 0.32.0 -
nixl_num_failed_transfers any 0.32.0 -
nixl_num_kv_expired_reqs any 0.32.0 -
nixl_num_notifications_after_expiry any 0.32.0 -
nixl_post_time_seconds any 0.32.0 -
nixl_xfer_time_seconds any 0.32.0 -
[KV offloading, simple]
simple_kv_offload_info any 0.32.0 -
simple_kv_offload_load_blocks_total any 0.32.0 -
simple_kv_offload_pending_store_blocks any 0.32.0 -
simple_kv_offload_save_outcomes_total any 0.32.0 -
simple_kv_offload_used_blocks any 0.32.0 -
[sleep mode]
sleep_mode_operation_duration_seconds any 0.32.0 -
sleep_mode_operations_in_flight any 0.32.0 -
[weight updates in reinforcement learning]
rl_weight_update_operation_duration_seconds any 0.32.0 -
rl_weight_update_operations_in_flight any 0.32.0 -
[other]
num_requests_kv_fetch_by_stage any 0.32.0 - : waiting requests by the stage of their KV load
tool_call_parser_invocations_total any 0.32.0 - : answers that a tool-call parser read
watermark_requests any 0.32.0 - : ended requests by watermark status
"""
"""Names in the source of 0.32.0 that show up only with the part that they belong to."""

VLLM_METRICS: Final = MetricNames(read_names("vllm:", _COUNTED) + read_names("vllm:", _OPTIONAL))
