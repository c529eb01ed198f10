from __future__ import annotations

import importlib
import pkgutil

import pytest

import tailrace.engines
from tailrace.engines.base import GENERATING, EngineAdapter
from tailrace.engines.registry import ADAPTERS, adapter, detect
from tailrace.measure.engine_timings import NO_TIMINGS
from tailrace.model.errors import InputError
from tailrace.model.timeline import EventKind

CHAT = "/v1/chat/completions"


def test_every_engine_is_listed_under_its_name() -> None:
    assert set(ADAPTERS) == {
        "vllm",
        "sglang",
        "triton",
        "llamacpp",
        "tgi",
        "tensorrt_llm",
        "dynamo",
        "simulated",
        "openai_compatible",
    }
    assert all(each.name == name for name, each in ADAPTERS.items())
    for module in pkgutil.iter_modules(tailrace.engines.__path__, "tailrace.engines."):
        for thing in vars(importlib.import_module(module.name)).values():
            if isinstance(thing, type) and issubclass(thing, EngineAdapter) and thing is not EngineAdapter:
                assert type(ADAPTERS.get(thing.name)) is thing, f"{thing.__name__} is not in the registry"


def test_an_unknown_engine_names_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"unknown engine 'vlm'.*llamacpp.*vllm"):
        adapter("vlm")


def test_nothing_seen_is_a_plain_server() -> None:
    found = detect({"Server": "uvicorn", "X-Other": "1"}, ["http_requests_total"])
    assert (found.name, found.confidence) == ("openai_compatible", 0)


@pytest.mark.parametrize("name", ["vllm", "llamacpp", "sglang", "openai_compatible"])
def test_include_usage_injected_and_cut_only_where_the_client_did_not_ask(name: str) -> None:
    each = adapter(name)
    for route in GENERATING:
        asked = each.additions(f"/v1{route}", {"stream": True, "stream_options": {"x": 1}})
        assert asked.body["stream_options"] == {"include_usage": True}
        assert EventKind.USAGE in asked.cut
    theirs = each.additions("/v1/completions", {"stream": True, "stream_options": {"include_usage": True}})
    assert "stream_options" not in theirs.body
    assert EventKind.USAGE not in theirs.cut
    for path, body in ((CHAT, {}), (CHAT, {"stream": False}), ("/v1/embeddings", {"stream": True})):
        assert not each.additions(path, body)


def test_a_malformed_option_is_left_to_the_engine_to_refuse() -> None:
    asked = adapter("vllm").additions(CHAT, {"stream": True, "stream_options": "yes"})
    assert asked.body == {"stream_options": {"include_usage": True}}


def test_the_base_class_says_nothing_it_does_not_know() -> None:
    base = EngineAdapter()
    assert base.passages(1, 2) == []
    assert base.span_timings({"gen_ai.latency.time_in_queue": 1}) is NO_TIMINGS
    state = base.parse_metrics("vllm:num_requests_running 3", 9)
    assert (state.running, state.names) == (None, {})
