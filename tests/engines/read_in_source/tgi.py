"""TGI 3.3.6-dev0: what its router's source says that it answers."""

from __future__ import annotations

INFO = b"""{"model_id":"acme/model-7b","model_sha":null,"model_pipeline_tag":"text-generation",
"max_concurrent_requests":128,"max_best_of":2,"max_stop_sequences":4,"max_input_tokens":1024,"max_total_tokens":2048,
"validation_workers":2,"max_client_batch_size":4,"router":"text-generation-router","version":"3.3.6-dev0","sha":null,
"docker_label":null}"""
OLD_INFO = b"""{"model_id":"acme/model-7b","model_dtype":"torch.float16","model_device_type":"cuda",
"max_concurrent_requests":128,"max_input_length":1024,"max_total_tokens":2048,"router":"text-generation-router",
"version":"1.4.0"}"""

TIMING_HEADERS = {
    "x-compute-type": "cpu",
    "x-compute-time": "0.912",
    "x-total-time": "912",
    "x-validation-time": "12",
    "x-queue-time": "300",
    "x-inference-time": "600",
    "x-time-per-token": "60",
    "x-prompt-tokens": "7",
    "x-generated-tokens": "10",
}
STREAM_HEADERS = {"x-compute-type": "cpu", "x-compute-characters": "31", "x-accel-buffering": "no"}

OVERLOADED = (429, b'{"error":"Model is overloaded","error_type":"overloaded"}')
_LONG = "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000"
_MUCH = (
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. "
    "Given: 1000 `inputs` tokens and 2000 `max_new_tokens`"
)
TOO_LONG = (422, b'{"error":"%b","error_type":"validation"}' % _LONG.encode())
TOO_MUCH = (422, b'{"error":"%b","error_type":"validation"}' % _MUCH.encode())
BAD = (422, b'{"error":"Input validation error: `temperature` must be strictly positive","error_type":"validation"}')
TEMPLATE = (422, b'{"error":"Template error: template not found","error_type":"template_error"}')
GENERATION = (424, b'{"error":"Request failed during generation: CUDA out of memory","error_type":"generation"}')
INCOMPLETE = (500, b'{"error":"Incomplete generation","error_type":"incomplete_generation"}')


def openai_event(message: str) -> bytes:
    """An error inside an OpenAI stream: always "422", whatever it is, and `[DONE]` after it."""
    return b'data: {"error":{"message":"%b","http_status_code":422}}\n\ndata: [DONE]\n\n' % message.encode()


METRICS = """# TYPE tgi_queue_size gauge
tgi_queue_size 3
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 5
# TYPE tgi_batch_current_max_tokens gauge
tgi_batch_current_max_tokens 4096
# TYPE tgi_request_count counter
tgi_request_count 40
# TYPE tgi_request_success counter
tgi_request_success 31
# TYPE tgi_request_failure counter
tgi_request_failure{err="overloaded"} 6
tgi_request_failure{err="validation"} 3
# TYPE tgi_request_queue_duration histogram
tgi_request_queue_duration_bucket{le="0.00015"} 2
tgi_request_queue_duration_bucket{le="+Inf"} 31
tgi_request_queue_duration_sum 1.5
tgi_request_queue_duration_count 31
# TYPE tgi_request_input_length histogram
tgi_request_input_length_bucket{le="+Inf"} 31
tgi_request_input_length_sum 310
tgi_request_input_length_count 31
# TYPE tgi_request_generated_tokens histogram
tgi_request_generated_tokens_bucket{le="+Inf"} 31
tgi_request_generated_tokens_sum 620
tgi_request_generated_tokens_count 31
# TYPE tgi_batch_forward_duration histogram
tgi_batch_forward_duration_bucket{method="prefill",le="+Inf"} 9
tgi_batch_forward_duration_sum{method="prefill"} 0.9
tgi_batch_forward_duration_count{method="prefill"} 9
"""

_FIRST = b'{"index":1,"token":{"id":1,"text":"Deep","logprob":-0.2,"special":false},"generated_text":null}'
_SECOND = b'{"index":2,"token":{"id":2,"text":" learning","logprob":-0.1,"special":false},"generated_text":null}'
_LAST = (
    b'{"index":3,"token":{"id":0,"text":"</s>","logprob":-0.1,"special":true},"generated_text":"Deep learning",'
    b'"details":{"finish_reason":"eos_token","generated_tokens":3,"seed":null,"input_length":5}}'
)
GENERATE_STREAM = [b"data: %b\n\n" % frame for frame in (_FIRST, _SECOND, _LAST)]
STREAM_ERROR = b'data: {"error":"Request failed during generation: out of memory","error_type":"generation"}\n\n'
