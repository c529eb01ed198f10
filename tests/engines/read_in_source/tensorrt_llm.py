"""TensorRT-LLM's `trtllm-serve`: names and labels in its source of 2026."""

from __future__ import annotations

MODELS = b'{"object":"list","data":[{"id":"acme","object":"model","created":1,"owned_by":"tensorrt_llm"}]}'
VERSION = b'{"version":"1.2.0rc4"}'
_LONG = b"The sum of prompt length (9000) and max_tokens (10) exceeds max_seq_len: the prompt is too long"
TOO_LONG = (400, b'{"object":"error","message":"%b","type":"BadRequestError","param":null,"code":400}' % _LONG)
METRICS = """# TYPE trtllm_num_requests_running gauge
trtllm_num_requests_running{model_name="acme",engine_type="trtllm"} 4.0
# TYPE trtllm_num_requests_waiting gauge
trtllm_num_requests_waiting{model_name="acme",engine_type="trtllm"} 2.0
# TYPE trtllm_kv_cache_utilization gauge
trtllm_kv_cache_utilization{model_name="acme",engine_type="trtllm"} 0.25
# TYPE trtllm_kv_cache_max_blocks gauge
trtllm_kv_cache_max_blocks{model_name="acme",engine_type="trtllm"} 4096.0
# TYPE trtllm_kv_cache_tokens_per_block gauge
trtllm_kv_cache_tokens_per_block{model_name="acme",engine_type="trtllm"} 32.0
# TYPE trtllm_max_batch_size_static gauge
trtllm_max_batch_size_static{model_name="acme",engine_type="trtllm"} 64.0
# TYPE trtllm_prompt_tokens_total counter
trtllm_prompt_tokens_total{model_name="acme",engine_type="trtllm"} 900.0
# TYPE trtllm_generation_tokens_total counter
trtllm_generation_tokens_total{model_name="acme",engine_type="trtllm"} 300.0
# TYPE trtllm_request_queue_time_seconds histogram
trtllm_request_queue_time_seconds_bucket{le="0.3",model_name="acme",engine_type="trtllm"} 9.0
trtllm_request_queue_time_seconds_bucket{le="+Inf",model_name="acme",engine_type="trtllm"} 9.0
trtllm_request_queue_time_seconds_sum{model_name="acme",engine_type="trtllm"} 0.5
trtllm_request_queue_time_seconds_count{model_name="acme",engine_type="trtllm"} 9.0
# TYPE trtllm_model_config_info gauge
trtllm_model_config_info{model_name="acme",engine_type="trtllm",model="acme/7b",dtype="bfloat16",quantization="FP8"} 1.0
# TYPE trtllm_parallel_config_info gauge
trtllm_parallel_config_info{model_name="acme",engine_type="trtllm",tp_size="2",pp_size="1"} 1.0
# TYPE trtllm_kv_cache_config_info gauge
trtllm_kv_cache_config_info{model_name="acme",engine_type="trtllm",page_size="32",enable_block_reuse="True"} 1.0
"""
