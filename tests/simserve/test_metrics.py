"""`/metrics`: vLLM's names and buckets, counts that agree with what was served."""

from __future__ import annotations

import asyncio
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tailrace.simserve.metrics import Histogram
from tests.conftest import shared_path
from tests.simserve.serving import CHAT, MODEL, chat, run


def scrape(text: str) -> dict[str, float]:
    """Every sample by name and its own labels, without the two that all have."""
    out = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            own = {k: v for k, v in sample.labels.items() if k not in ("engine", "model_name")}
            out[sample.name + "".join(f"[{k}={v}]" for k, v in sorted(own.items()))] = sample.value
    return out


def test_counts_agree_with_what_was_served():
    async def scenario(server, session):
        bodies = [chat(f"p{i}", tailrace_prompt_tokens=200, max_tokens=20, ignore_eos=True) for i in range(5)]
        for response in await asyncio.gather(*(session.post(CHAT, json=body) for body in bodies)):
            assert response.status == 200
        async with session.get("/metrics") as response:
            assert response.headers["Content-Type"].startswith("text/plain")
            got = scrape(await response.text())
        assert got["vllm:num_requests_running"] == got["vllm:num_requests_waiting"] == 0
        assert got["vllm:kv_cache_usage_perc"] == 0
        assert got["vllm:prompt_tokens_total"] == 1000
        assert got["vllm:generation_tokens_total"] == 100
        assert got["vllm:request_success_total[finished_reason=length]"] == 5
        assert got["vllm:iteration_tokens_total_sum"] == 1000 + 5 * 19
        for name in ("e2e_request_latency", "request_queue_time", "request_prefill_time", "time_to_first_token"):
            assert got[f"vllm:{name}_seconds_count"] == 5
        assert got["vllm:inter_token_latency_seconds_count"] == 95
        parts = sum(got[f"vllm:request_{part}_time_seconds_sum"] for part in ("queue", "prefill", "decode"))
        assert got["vllm:e2e_request_latency_seconds_sum"] == pytest.approx(parts)
        assert got["http_requests_total[handler=/v1/chat/completions][method=POST][status=2xx]"] == 5

    run(scenario)


@pytest.mark.needs("shared")
def test_names_types_labels_and_buckets_are_those_of_a_real_vllm():
    real = (shared_path() / "data/engine_samples/vllm/metrics_0.32.0.prom").read_text()

    async def scenario(server, session):
        async with session.get("/metrics") as response:
            ours = await response.text()
        kinds = {text: dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE)) for text in (real, ours)}
        labels = {
            text: {
                name: set(re.findall(r"(\w+)=", inside))
                for name, inside in re.findall(r"^(vllm:\w+)\{([^}]*)\}", text, re.MULTILINE)
            }
            for text in (real, ours)
        }
        assert set(kinds[ours]) <= set(kinds[real])
        for name, kind in kinds[ours].items():
            assert kinds[real][name] == kind
        for name, found in labels[ours].items():
            if name != "vllm:cache_config_info":
                assert labels[real][name] == found, name
        bounds = {
            text: {
                name: re.findall(rf'^{re.escape(name)}_bucket\{{[^}}]*le="([^"]+)"', text, re.MULTILINE)
                for name, kind in kinds[ours].items()
                if kind == "histogram"
            }
            for text in (real, ours)
        }
        for name, found in bounds[ours].items():
            # Token histograms end with the model's length, which is shorter in the sample.
            assert found[: len(bounds[real][name]) - 1] == bounds[real][name][:-1], name

    run(scenario)


def test_the_vllm_adapter_reads_it():
    async def scenario(server, session):
        from tailrace.engines.registry import adapter

        response = await session.post(CHAT, json=chat(stream=True, max_tokens=2000, ignore_eos=True))
        await response.content.readline()
        async with session.get("/metrics") as metrics:
            state = adapter("vllm").parse_metrics(await metrics.text(), 123)
        response.close()
        assert (state.at_ns, state.running, state.waiting) == (123, 1, 0)
        assert 0 < state.kv_usage < 0.01
        assert state.preemptions_total == 0
        assert state.queue_seconds_total is not None

    run(scenario)


def test_the_small_routes():
    async def scenario(server, session):
        async with session.get("/health") as response:
            assert (response.status, await response.read()) == (200, b"")
        async with session.get("/version") as response:
            assert (await response.json())["simulated"] is True
        async with session.get("/v1/models") as response:
            (card,) = (await response.json())["data"]
        assert (card["id"], card["max_model_len"]) == (MODEL, 32_768)

    run(scenario)


def test_a_histogram_counts_cumulatively():
    histogram = Histogram((1.0, 2.0))
    histogram.observe(1.0)
    histogram.observe(1.5, 3)
    histogram.observe(9.0)
    assert histogram.lines("x", 'a="b"') == [
        'x_bucket{a="b",le="1.0"} 1.0',
        'x_bucket{a="b",le="2.0"} 4.0',
        'x_bucket{a="b",le="+Inf"} 5.0',
        'x_count{a="b"} 5.0',
        'x_sum{a="b"} 14.5',
    ]
