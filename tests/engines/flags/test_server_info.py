"""The finer options in a dump of a running engine: shapes captured from vLLM 0.32.0 on a CPU, shortened."""

import json

from tailrace.engines.flags.server_info import read_scheduler

CAPTURED = {
    "vllm_config": {
        "model_config": {"model": "tiny", "enforce_eager": True},
        "scheduler_config": {
            "max_num_batched_tokens": 2048,
            "max_num_seqs": 8,
            "long_prefill_token_threshold": 0,
            "max_num_queued_reqs": 6,
            "max_num_queued_tokens": None,
            "stream_interval": 1,
            "policy": "fcfs",
        },
        "device_config": {"device": "cpu"},
    },
    "system_env": {"is_cuda_available": "False", "nvidia_gpu_models": None},
}


def values(path, said):
    return {key: fact.value for key, fact in read_scheduler(path, json.dumps(said).encode()).items()}


def test_what_developer_mode_tells_of_the_scheduler():
    facts = read_scheduler("/server_info?config_format=json", json.dumps(CAPTURED).encode())
    assert {key: fact.value for key, fact in facts.items()} == {
        "long_prefill_token_threshold": 0,
        "max_queued": 6,
        "stream_interval": 1,
        "enforce_eager": True,
        "device": "cpu",
    }
    assert facts["max_queued"].source == "/server_info: scheduler_config.max_num_queued_reqs"


def test_no_bound_is_a_fact_too():
    said = {"vllm_config": {"scheduler_config": {"max_num_queued_reqs": None}}}
    assert values("/server_info", said) == {"max_queued": 0}
    assert values("/server_info", {"vllm_config": {"scheduler_config": {}}}) == {}


def test_the_card_that_the_driver_lists():
    said = {
        **CAPTURED,
        "system_env": {"nvidia_gpu_models": "GPU 0: NVIDIA A100-SXM4-80GB\nGPU 1: NVIDIA A100-SXM4-80GB"},
    }
    assert values("/server_info", said)["gpu"] == "NVIDIA A100-SXM4-80GB"


def test_read_in_source_sglang_tells_its_arguments():
    said = {"schedule_policy": "lpm", "allow_auto_truncate": True, "stream_interval": 2, "api_key": "k"}
    assert values("/get_server_info", said) == {"allow_auto_truncate": True, "stream_interval": 2}


def test_other_pages_and_nonsense_give_nothing():
    assert read_scheduler("/v1/models", b"{}") == {}
    assert read_scheduler("/server_info", b"\xff") == {}
    assert read_scheduler("/server_info", b'{"vllm_config": "text"}') == {}
