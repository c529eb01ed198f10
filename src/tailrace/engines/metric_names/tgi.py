"""TGI's metrics: names in the source of 3.3.6-dev0 (commit db931fc), not run. It has no time to the first token."""

from __future__ import annotations

from typing import Final

from tailrace.engines.metric_names.table import MetricNames, read_names

_NAMES: Final = """
[requests]
request_count counter : requests that came
request_success counter : answered requests
request_failure counter : failed ones by `err`: overloaded, validation, generation, incomplete, dropped, template
request_duration histogram : arrival to last token (s)
request_validation_duration histogram : tokenising and checking (s)
request_queue_duration histogram : wait in the queue (s)
request_inference_duration histogram : prefill and decode together (s)
request_mean_time_per_token_duration histogram : inference divided by the tokens, so the prefill is spread over them (s)
request_input_length histogram : prompt tokens
request_max_new_tokens histogram : tokens asked for
request_generated_tokens histogram : tokens given out
request_skipped_tokens histogram : tokens that speculation saved
queue_size gauge : requests that wait
[batches]
batch_current_size gauge : requests in the running batch
batch_current_max_tokens gauge : tokens that the running batch may grow to
batch_max_total_tokens gauge : size of the KV cache (tokens)
batch_total_tokens gauge : tokens of the running batch
batch_next_size histogram : requests in a new batch
batch_inference_count counter : steps by method: prefill, decode
batch_inference_success counter : steps that succeeded
batch_inference_failure counter : steps that failed
batch_inference_duration histogram : a step (s)
batch_forward_duration histogram : the model in a step (s)
batch_decode_duration histogram : choosing tokens in a step (s)
batch_filter_duration histogram : taking ended requests out (s)
batch_concat counter : batches joined, by reason
batch_concat_duration histogram : joining (s)
"""

TGI_METRICS: Final = MetricNames(read_names("tgi_", _NAMES))
