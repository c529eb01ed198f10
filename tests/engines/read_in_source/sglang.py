"""SGLang 0.5.23: what its source says that `/server_info` and `meta_info` hold."""

from __future__ import annotations

MODELS = b'{"object":"list","data":[{"id":"acme/7b","object":"model","owned_by":"sglang","root":"acme/7b"}]}'
SERVER_INFO = b"""{"model_path":"acme/7b","dtype":"auto","quantization":null,"kv_cache_dtype":"fp8_e5m2",
"context_length":8192,"max_running_requests":64,"max_queued_requests":null,"chunked_prefill_size":-1,
"max_prefill_tokens":16384,"schedule_policy":"fcfs","mem_fraction_static":0.85,"tp_size":2,"pp_size":1,"dp_size":1,
"page_size":1,"disable_radix_cache":true,"device":"cuda","attention_backend":"fa3","speculative_algorithm":null,
"max_total_num_tokens":443520,"max_req_input_len":8186,"internal_states":[{"last_gen_throughput":0.0}],
"version":"0.5.23"}"""
