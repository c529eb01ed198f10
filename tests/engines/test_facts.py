"""Facts: what each engine tells of itself, with the place that says so; captured, live-shaped or read in source."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.engines.facts import CONFIGURATION, FACTS, Fact, agreed_facts, merge_facts, plain_value
from tailrace.engines.prometheus_text import parse_scrape
from tailrace.engines.registry import ADAPTERS, TELLING_PATHS, adapter, recognise
from tailrace.engines.vllm_facts import read_config_text
from tests.engines.read_in_source import sglang
from tests.measure.shared import sample_text

shared = pytest.mark.needs("shared")

LLAMA_PROPS = b"""{"default_generation_settings":{"params":{"n_predict":-1,"speculative.types":"none"},"n_ctx":1024},
"total_slots":4,"model_alias":"smollm2-135m","model_ftype":"Q4_1","model_path":"SmolLM2-135M-Instruct.Q4_1.gguf",
"endpoint_slots":true,"chat_template":"...","build_info":"b0-unknown","is_sleeping":false}"""
LLAMA_MODELS = b"""{"object":"list","data":[{"id":"smollm2-135m","object":"model","owned_by":"llamacpp","meta":{"n_ctx":
1024,"n_ctx_train":8192,"n_params":134515008,"size":96576768,"ftype":"Q4_1"}}]}"""
VLLM_MODELS = b"""{"object":"list","data":[{"id":"tiny","object":"model","created":1,"owned_by":"vllm","root":
"models/tiny","parent":null,"max_model_len":4096}]}"""
VLLM_DUMP = b"""{"vllm_config":{"model_config":{"model":"models/tiny","dtype":"torch.bfloat16","quantization":null,
"max_model_len":4096},"cache_config":{"cache_dtype":"auto","block_size":128,"enable_prefix_caching":true},
"parallel_config":{"tensor_parallel_size":2,"pipeline_parallel_size":1,"data_parallel_size":1},
"scheduler_config":{"max_num_seqs":128,"max_num_batched_tokens":2048,"enable_chunked_prefill":true,"policy":"fcfs"}},
"vllm_env":{},"system_env":{}}"""


def values(facts: dict[str, Fact]) -> dict[str, Any]:
    return {key: fact.value for key, fact in facts.items()}


@shared
def test_vllms_info_metric_with_its_labels_as_sources() -> None:
    facts = adapter("vllm").read_info_metrics(parse_scrape(sample_text("vllm/metrics_0.32.0.prom")))
    assert values(facts) == {
        "block_size": 128,
        "num_gpu_blocks": 16384,
        "kv_tokens": 2097152,
        "kv_max_concurrency": 512.0,
        "kv_bytes": 1073741824,
        "prefix_caching": True,
        "kv_dtype": "auto",
        "gpu_memory_utilization": 0.92,
    }
    assert facts["kv_dtype"].source == "vllm:cache_config_info: cache_dtype"


@shared
def test_vllms_configuration_in_its_start_up_log() -> None:
    line = next(
        line for line in sample_text("vllm/server_log_0.32.0.txt").splitlines() if "with config: model=" in line
    )
    facts = read_config_text(line.partition("with config: ")[2], "log")
    assert values(facts) == {
        "model": "models/tiny",
        "dtype": "bfloat16",
        "max_model_len": 4096,
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
    }, "the captured line is cut behind these"


def test_vllms_card_and_dump() -> None:
    vllm = adapter("vllm")
    assert values(vllm.read_info("/v1/models", VLLM_MODELS)) == {"model": "models/tiny", "max_model_len": 4096}
    facts = vllm.read_info(vllm.info_paths[1], VLLM_DUMP)
    assert (facts["dtype"].value, facts["quantization"].value) == ("bfloat16", "none")
    assert facts["max_num_seqs"] == Fact(128, "/server_info: scheduler_config.max_num_seqs")
    said = (
        "model='m', speculative_config=None, dtype=torch.float16, max_seq_len=2048, quantization=None, "
        "kv_cache_dtype=fp8, device_config=cuda, observability_config=ObservabilityConfig(a=None, b=1), "
        "enable_prefix_caching=True, chunked_prefill_enabled=False, compilation_config={'level': 3}"
    )
    assert values(vllm.read_info(vllm.info_paths[1], json.dumps({"vllm_config": said}).encode())) == {
        "model": "m",
        "dtype": "float16",
        "max_model_len": 2048,
        "quantization": "none",
        "kv_dtype": "fp8",
        "device": "cuda",
        "prefix_caching": True,
        "chunked_prefill": False,
    }


def test_the_simulated_engines_version_does_not_repeat_its_name() -> None:
    facts = adapter("simulated").read_info("/version", b'{"version":"simulated-0.1.0","simulated":true}')
    assert facts["version"] == Fact("0.1.0", "/version: version")


def test_llamacpp_tells_slots_and_quantisation() -> None:
    llama = adapter("llamacpp")
    facts = llama.read_info("/props", LLAMA_PROPS)
    assert values(facts) == {
        "version": "b0-unknown",
        "slots": 4,
        "slot_ctx": 1024,
        "max_model_len": 1024,
        "model": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "quantization": "Q4_1",
    }
    assert values(llama.read_info("/v1/models", LLAMA_MODELS)) == {
        "quantization": "Q4_1",
        "parameters": 134515008,
        "weight_bytes": 96576768,
    }


def test_sglangs_arguments_read_in_source() -> None:
    facts = adapter("sglang").read_info("/server_info", sglang.SERVER_INFO)
    told = values(facts)
    assert (told["version"], told["quantization"], told["kv_dtype"]) == ("0.5.23", "none", "fp8_e5m2")
    assert (told["prefix_caching"], told["chunked_prefill"]) == (False, False)
    assert (told["max_num_seqs"], told["kv_tokens"], told["gpu_memory_utilization"]) == (64, 443520, 0.85)
    assert "max_queued" not in told, "null is no fact"


@shared
def test_tritons_model_configuration_captured() -> None:
    body = sample_text("triton/http_samples.txt").partition("/config\n")[2].partition("\n###")[0].encode()
    triton = adapter("triton")
    assert values(triton.read_info("/v2/models/echo_batch/config", body)) == {
        "model": "echo_batch",
        "backend": "python",
        "max_batch_size": 8,
        "batch_delay_us": 5000,
        "preferred_batch_sizes": "8",
        "max_queued": 16,
        "instances": 1,
        "device": "cpu",
    }
    samples = json.loads(sample_text("triton/statistics.json"))
    stats = json.dumps({"model_stats": [row for each in samples.values() for row in each["model_stats"]]}).encode()
    assert triton.further_info("/v2/models/stats", stats) == (
        "/v2/models/echo_batch/config",
        "/v2/models/stream_tok/config",
    )


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/models", VLLM_MODELS, "vllm"),
        ("/v1/models", LLAMA_MODELS, "llamacpp"),
        ("/v1/models", sglang.MODELS, "sglang"),
        ("/v2", b'{"name":"triton","version":"2.51.0","extensions":[]}', "triton"),
    ],
)
def test_answers_give_engines_away_where_metrics_do_not(path: str, body: bytes, name: str) -> None:
    hit = recognise(path, body)
    assert hit is not None
    assert hit.name == name


@pytest.mark.parametrize("path", TELLING_PATHS)
@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"<html>", b'{"data":[{"owned_by":"acme"}]}', b'{"name":"kserve"}']
)
def test_other_answers_give_nobody_away(path: str, body: bytes) -> None:
    assert recognise(path, body) is None


def test_the_nearer_word_wins_and_a_contradiction_is_kept() -> None:
    configured = {"dtype": Fact("float16", CONFIGURATION), "quantization": Fact("awq", CONFIGURATION)}
    told = {"dtype": Fact("bfloat16", "/server_info: dtype")}
    facts = merge_facts(configured, told)
    assert facts.get("dtype") == told["dtype"]
    assert facts.get("quantization") == configured["quantization"]
    (conflict,) = facts.contradictions
    assert (conflict.key, conflict.other.source) == ("dtype", CONFIGURATION)


def test_auto_neither_wins_nor_contradicts() -> None:
    told = {"kv_dtype": Fact("fp8", "log")}
    for groups in (({"kv_dtype": Fact("auto", "metric")}, told), (told, {"kv_dtype": Fact("auto", "metric")})):
        facts = merge_facts(*groups)
        assert (facts.text("kv_dtype"), facts.contradictions) == ("fp8", ())


def test_spellings_of_one_value_do_not_contradict() -> None:
    facts = merge_facts({"dtype": Fact("torch.float16", "a")}, {"dtype": Fact("float16", "b")})
    assert not facts.contradictions


def test_models_of_one_server_tell_only_what_they_agree_on() -> None:
    one = {"backend": Fact("python", "a"), "max_batch_size": Fact(8, "a"), "decoupled": Fact(True, "a")}
    other = {"backend": Fact("python", "b"), "max_batch_size": Fact(4, "b")}
    assert values(agreed_facts([one, other])) == {"backend": "python"}
    assert agreed_facts([]) == {}


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("True", True), ("false", False), ("None", None), ("", None), (None, None), ("16384", 16384), ("0.92", 0.92),
        ("fp8_e5m2", "fp8_e5m2"), ("nan", None), ("inf", None), (True, True), ([1], None),
    ],
)  # fmt: skip
def test_labels_become_values(said: object, value: object) -> None:
    assert plain_value(said) == value


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["data", "model_stats", "batch_stats", "inference_stats", "queue", "name", "meta", "dtype", "vllm_config",
             "default_generation_settings", "dynamic_batching", "instance_group", "version", "count", "router"]
        )
        | st.text(max_size=4),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(junk)
def test_no_answer_breaks_a_reader_and_every_fact_has_a_known_key(value: object) -> None:
    body = json.dumps(value).encode()
    for each in ADAPTERS.values():
        for path in (*each.asked_once(), "/v2/models/m/config", "/v1/models"):
            for key, fact in each.read_info(path, body).items():
                assert key in FACTS
                assert fact.source
            each.further_info(path, body)
        each.read_statistics(body)
        for path in TELLING_PATHS:
            each.recognise(path, body)
