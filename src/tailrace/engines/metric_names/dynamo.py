"""The metrics of Dynamo's front end: names in its source of 2026, not run."""

from __future__ import annotations

from typing import Final

from tailrace.engines.metric_names.table import MetricNames, read_names

_FRONT: Final = """
[the front end]
requests_total counter : requests by status
queued_requests gauge : requests without a first token: prefill included
inflight_requests gauge : requests at the engines
disconnected_clients gauge : clients that left
request_duration_seconds histogram : arrival to last token
input_sequence_tokens histogram : prompt tokens
output_sequence_tokens histogram : tokens given out
output_tokens_total counter : tokens given out, while they come
cached_tokens histogram : prompt tokens found in the prefix cache
kv_hit_rate histogram : share of the prompt that the router expects in a cache
time_to_first_token_seconds histogram : arrival to first token
inter_token_latency_seconds histogram : gap between two tokens
tokenizer_latency_ms histogram : tokenising and detokenising (ms)
tokenize_seconds any : tokenising
template_seconds any : filling the template
detokenize_total_us any : detokenising (us)
stage_duration_seconds any : time by stage: preprocess, route, dispatch
event_loop_delay_seconds any : lag of the front end's loop
event_loop_stall_total any : stalls of the front end's loop
model_total_kv_blocks gauge : KV blocks of a worker
model_max_num_seqs gauge : requests in one step at most
model_max_num_batched_tokens gauge : tokens in one step at most
model_context_length gauge : longest request (tokens)
model_kv_cache_block_size gauge : tokens in one KV block
model_migration_limit gauge : how often a request may be moved to another worker
model_migration_total counter : requests moved to another worker
worker_active_decode_blocks gauge : KV blocks in use
worker_active_prefill_tokens gauge : prompt tokens that wait or run
worker_last_time_to_first_token_seconds gauge
worker_last_input_sequence_tokens gauge
worker_last_inter_token_latency_seconds gauge
router_queue_pending_requests gauge : requests that the router holds back
"""
_PLANE: Final = """
[between front end and workers]
request_plane_queue_seconds any : wait between front end and worker
request_plane_roundtrip_ttft_seconds any : time to the first answer of a worker, by hop
"""

DYNAMO_METRICS: Final = MetricNames(read_names("dynamo_frontend_", _FRONT) + read_names("dynamo_", _PLANE))
