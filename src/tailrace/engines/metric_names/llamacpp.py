"""llama.cpp's metrics: a scrape of b0 as of 2026.10, and the names of older builds. It has no histograms, no labels."""

from __future__ import annotations

from typing import Final

from tailrace.engines.metric_names.table import MetricNames, read_names

_NAMES: Final = """
[slots]
requests_processing gauge : slots that work
requests_deferred gauge : requests that wait for a slot, those of clients that left included
n_busy_slots_per_decode gauge : mean batch over the life of the process
kv_cache_usage_ratio gauge : share of KV cells in use, 0..1; older builds only
kv_cache_tokens gauge : KV cells in use; older builds only
n_tokens_max counter : longest sequence so far; a maximum that is typed a counter
n_past_max counter : the same under its old name
[tokens and times]
prompt_tokens_total counter : prompt tokens computed, cached ones excluded
prompt_tokens_cached_total counter : prompt tokens found in a slot's cache
prompt_seconds_total counter : time in prefill (s)
tokens_predicted_total counter : tokens given out
tokens_predicted_seconds_total counter : time in decode (s)
n_decode_total counter : calls of the model
prompt_tokens_seconds gauge : mean prompt tokens per second over the life of the process
predicted_tokens_seconds gauge : mean output tokens per second over the life of the process
[speculative decoding: tokens drafted and accepted]
spec_decode_num_draft_tokens_total counter
spec_decode_num_accepted_tokens_total counter
spec_decode_num_drafts_total counter
"""

LLAMACPP_METRICS: Final = MetricNames(read_names("llamacpp:", _NAMES))
