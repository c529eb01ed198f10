"""TensorRT-LLM and Dynamo by the names in their source."""

from __future__ import annotations

from tailrace.engines.base import Basis
from tailrace.engines.prometheus_text import parse_scrape
from tailrace.engines.registry import adapter, detect, recognise
from tailrace.model.outcome import Reason
from tests.engines.read_in_source import dynamo, tensorrt_llm
from tests.engines.replay import CHAT

TRT = adapter("trtllm")
DYNAMO = adapter("dynamo")


def test_they_say_that_they_were_never_run() -> None:
    assert TRT.basis is DYNAMO.basis is Basis.READ_IN_SOURCE


def test_its_draining_endpoints_are_never_asked() -> None:
    asked = (TRT.metrics_path, TRT.version_path, *TRT.asked_once(), TRT.statistics_path)
    assert TRT.metrics_path == "/prometheus/metrics"
    assert not {"/metrics", "/perf_metrics"} & set(asked)


def test_state_facts_and_detection() -> None:
    state = TRT.parse_metrics(tensorrt_llm.METRICS, 1)
    assert (state.running, state.waiting, state.kv_usage) == (4, 2, 0.25)
    assert (state.prompt_tokens_total, state.generation_tokens_total, state.queue_seconds_total) == (900, 300, 0.5)
    scrape = parse_scrape(tensorrt_llm.METRICS)
    assert detect({"server": "uvicorn"}, scrape.names).name == "tensorrt_llm"
    facts = TRT.read_info_metrics(scrape)
    assert {key: fact.value for key, fact in facts.items()} == {
        "model": "acme/7b",
        "dtype": "bfloat16",
        "quantization": "FP8",
        "tensor_parallel": 2,
        "pipeline_parallel": 1,
        "block_size": 32,
        "prefix_caching": True,
        "num_gpu_blocks": 4096,
        "max_num_seqs": 64,
    }
    assert facts["dtype"].source == "trtllm_model_config_info: dtype"


def test_the_owner_of_its_model_gives_it_away() -> None:
    hit = recognise("/v1/models", tensorrt_llm.MODELS)
    assert hit is not None
    assert hit.name == "tensorrt_llm"
    assert TRT.version(tensorrt_llm.VERSION) == "1.2.0rc4"


def test_its_flat_errors() -> None:
    assert TRT.error(*tensorrt_llm.TOO_LONG, path=CHAT).reason is Reason.INPUT_TOO_LONG


def test_dynamos_queue_that_includes_prefill_is_no_queue() -> None:
    state = DYNAMO.parse_metrics(dynamo.METRICS, 1)
    assert (state.running, state.waiting) == (12, 2), "not the 9 of queued_requests, which counts those in prefill"
    scrape = parse_scrape(dynamo.METRICS)
    assert detect({}, scrape.names).name == "dynamo", "though an engine's names are among its own"
    assert {key: fact.value for key, fact in DYNAMO.read_info_metrics(scrape).items()} == {
        "max_num_seqs": 256,
        "max_model_len": 8192,
    }
