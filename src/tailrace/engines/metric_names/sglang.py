"""SGLang's metrics: names of 0.5.23, read in its wheel. The engine exports them with `--enable-metrics` only."""

from __future__ import annotations

from typing import Final

from tailrace.engines.metric_names.table import MetricNames, read_names

_NAMES: Final = """
[state of the scheduler and the KV pool]
cache_hit_rate gauge : share of prompt tokens found in the prefix cache, last batch
context_len gauge : longest request (tokens)
decode_sum_seq_lens gauge
gen_throughput gauge : output tokens per second
kv_available_tokens gauge : KV tokens free
kv_cache_memory_usage_gb gauge
kv_evictable_tokens gauge
kv_used_tokens gauge : KV tokens in use
max_running_requests_under_SLO gauge
max_total_num_tokens gauge : size of the KV pool (tokens)
max_total_num_tokens_swa gauge
new_token_ratio gauge
num_pages gauge
num_paused_reqs gauge
num_queue_reqs gauge : requests waiting for the scheduler
num_running_reqs gauge : requests in the running batch
num_used_tokens gauge
page_size gauge : tokens in one KV page
token_usage gauge : share of KV tokens in use, 0..1
utilization gauge
[ended, aborted and retracted requests]
num_aborted_requests_total counter : aborted requests; no label tells why
num_requests_total counter : requests ended
num_retracted_input_tokens_total counter
num_retracted_output_tokens_total counter
num_retracted_reqs gauge : requests retracted in the last step
num_retracted_requests_total counter : retractions, which are preemptions
[tokens]
cached_tokens_total counter : prompt tokens found in the prefix cache
generation_tokens_histogram histogram
generation_tokens_total counter : tokens given out
prefill_effective_tokens_total counter
prompt_tokens_histogram histogram
prompt_tokens_total counter : prompt tokens, cached ones included
realtime_tokens_total counter
uncached_prompt_tokens_histogram histogram
[times of requests]
e2e_request_latency_seconds histogram : arrival to last token
inter_token_latency_seconds histogram : gap between two tokens, smeared over the tokens of a chunk
per_stage_req_latency_seconds histogram : time by stage: tokenize, prefill_forward, decode_loop, ...
queue_time_seconds histogram : wait in the scheduler's queue
request_time_per_output_token_seconds histogram : mean gap of one request
time_to_first_token_seconds histogram : arrival to first token; no bucket edge between 0.4 and 0.6 s
[data-parallel attention]
dp_attention_pairs_total counter
dp_attention_steps_total counter
dp_attention_sync_wait_seconds histogram
dp_attention_token_imbalance_ratio histogram
dp_attention_tokens_total counter
dp_cooperation_forward_execution_seconds_total counter
dp_cooperation_realtime_tokens_total counter
[the encoder of images and sounds]
encoder_cache_entries gauge
encoder_cache_evictions_total counter
encoder_cache_hit_files_total counter
encoder_cache_hit_tokens_total counter
encoder_cache_size_mb gauge
encoder_cache_total_files_total counter
encoder_cache_total_tokens_total counter
encoder_dp_pending_requests gauge
encoder_mm_items_per_batch histogram
encoder_mm_items_per_request histogram
encoder_model_forward_seconds histogram
encoder_preprocess_seconds histogram
encoder_queue_wait_seconds histogram
encoder_request_e2e_latency_seconds histogram
encoder_requests_received_total counter
encoder_requests_total counter
encoder_transfer_seconds histogram
[structured output]
grammar_compilation_time_seconds histogram
grammar_ebnf_size histogram
grammar_schema_count histogram
grammar_tree_traversal_time_avg histogram
grammar_tree_traversal_time_max histogram
num_grammar_aborted_total counter
num_grammar_cache_hit_total counter
num_grammar_queue_reqs gauge
num_grammar_timeout_total counter
num_grammar_total counter
num_so_requests_total counter
[HTTP server]
http_requests_active gauge
http_requests_total counter
http_responses_total counter
[KV of hybrid models]
full_token_usage gauge
mamba_available_tokens gauge
mamba_evictable_tokens gauge
mamba_usage gauge
mamba_used_tokens gauge
swa_available_tokens gauge
swa_evictable_tokens gauge
swa_token_usage gauge
swa_used_tokens gauge
[KV in host memory and storage]
backup_bandwidth histogram
backup_pgs histogram
backuped_tokens_total counter
evicted_tokens_total counter
eviction_duration_seconds histogram
hicache_backup_bytes_total counter
hicache_backup_dropped_tokens_total counter
hicache_backup_duration_seconds histogram
hicache_backup_tokens_total counter
hicache_dropped_tokens_total counter
hicache_host_mamba_total_states gauge
hicache_host_mamba_used_states gauge
hicache_host_total_tokens gauge
hicache_host_used_tokens gauge
hicache_prefetch_aux_alloc_failed_tokens_total counter
load_back_bytes_total counter
load_back_duration_seconds histogram
load_back_tokens_total counter
prefetch_bandwidth histogram
prefetch_pgs histogram
prefetched_tokens_total counter
storage_prefetch_deferred_tokens_total counter
storage_prefetch_hit_tokens_total counter
storage_prefetch_unfulfilled_tokens_total counter
[LoRA adapters]
lora_pool_slots_total gauge
lora_pool_slots_used gauge
lora_pool_utilization gauge
[mixture of experts]
eplb_balancedness summary
eplb_gpu_physical_count histogram
[other]
func_latency_seconds histogram
get_loads_duration_seconds histogram
num_streaming_sessions gauge
num_unique_running_routing_keys gauge
prefill_delayer_outcomes_total counter
prefill_delayer_wait_forward_passes histogram
prefill_delayer_wait_seconds histogram
streaming_session_held_tokens gauge
[prefill and decode on different servers]
decode_deferred_kv_release_seconds histogram
decode_deferred_kv_release_total counter
failed_session_recoveries_total counter
kv_transfer_alloc_ms histogram
kv_transfer_bootstrap_ms histogram
kv_transfer_latency_ms histogram
kv_transfer_speed_gb_s histogram
kv_transfer_total_mb histogram
num_bootstrap_failed_reqs_total counter
num_decode_deferred_kv_release_reqs gauge
num_decode_host_receive_queue_reqs gauge
num_decode_host_receive_reqs_total counter
num_decode_prealloc_queue_reqs gauge
num_decode_transfer_queue_reqs gauge
num_prefill_bootstrap_queue_reqs gauge
num_prefill_inflight_queue_reqs gauge
num_prefill_retries_total counter
num_transfer_failed_reqs_total counter
pending_prealloc_token_usage gauge
prealloc_full_token_usage gauge
prealloc_swa_token_usage gauge
[routing keys]
routing_key_all_req_count gaugehistogram
routing_key_running_req_count gaugehistogram
routing_keys_active gauge
[the scheduler's loop]
scheduler_idle_seconds_total counter
scheduler_process_cpu_seconds_total counter
scheduler_stage_seconds_total counter
[speculative decoding]
spec_accept_length gauge
spec_accept_rate gauge
spec_block_accept_length gauge
spec_cap_length gauge
spec_num_draft_tokens gauge
spec_num_steps gauge
spec_verify_calls_total counter
[start-up]
graph_memory_usage_gb gauge
startup_available_gpu_memory_gb gauge
startup_cuda_graph_time_seconds gauge
startup_latency_breakdown_seconds_max gauge
startup_time_seconds gauge
weight_load_duration_seconds gauge
weight_memory_usage_gb gauge
[use of the card and the processor]
cuda_graph_passes_total counter
estimated_flops_per_gpu_total counter
estimated_read_bytes_per_gpu_total counter
estimated_write_bytes_per_gpu_total counter
forward_execution_seconds_total counter
fwd_occupancy gauge
is_cuda_graph gauge
process_cpu_seconds_total counter
"""

SGLANG_METRICS: Final = MetricNames(read_names("sglang:", _NAMES))
