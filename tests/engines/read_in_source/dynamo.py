"""Dynamo's front end: names in its source of 2026."""

from __future__ import annotations

METRICS = """# TYPE dynamo_frontend_queued_requests gauge
dynamo_frontend_queued_requests{model="acme"} 9
# TYPE dynamo_frontend_inflight_requests gauge
dynamo_frontend_inflight_requests{model="acme"} 12
# TYPE dynamo_frontend_router_queue_pending_requests gauge
dynamo_frontend_router_queue_pending_requests{worker_type="decode"} 2
# TYPE dynamo_frontend_output_tokens_total counter
dynamo_frontend_output_tokens_total{model="acme"} 500
# TYPE dynamo_frontend_model_context_length gauge
dynamo_frontend_model_context_length{model="acme"} 8192
# TYPE dynamo_frontend_model_max_num_seqs gauge
dynamo_frontend_model_max_num_seqs{model="acme"} 256
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 3
"""
