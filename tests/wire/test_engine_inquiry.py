"""What the gateway asks an engine about itself: once a start, beside the requests, and into every record."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import msgspec
import pytest

from tailrace.gateway.config_sections import BackendConfig, ScrapeConfig
from tailrace.gateway.config_values import Duration
from tailrace.gateway.engine_link import EngineLink, EngineNews
from tailrace.model.outcome import Reason
from tests.engines.read_in_source import sglang, tensorrt_llm, tgi
from tests.engines.test_facts import LLAMA_MODELS, LLAMA_PROPS, VLLM_DUMP, VLLM_MODELS
from tests.wire.client import chat_body, request
from tests.wire.scripted import DONE, Incoming, ScriptedEngine, finish, token, usage
from tests.wire.stand import Stand, run, stand

VLLM = {"/version": b'{"version":"0.32.0"}', "/v1/models": VLLM_MODELS, "/server_info?config_format=json": VLLM_DUMP}
FAST = {"period": "50ms"}


async def known(s: Stand, key: str = "version") -> None:
    await s.until(lambda: s.gateway.backends.first.engine.profile.facts.get(key) is not None)


def test_facts_and_their_sources_are_in_every_record_and_the_view() -> None:
    metrics = b'vllm:num_requests_running{engine="0"} 2\nvllm:cache_config_info{block_size="128",cache_dtype="fp8"} 1\n'

    async def script(incoming: Incoming) -> None:
        await asyncio.sleep(0.4)  # several scrapes lie between the request and its first token
        await incoming.stream()

    async def test() -> None:
        async with stand(script, side={**VLLM, "/metrics": metrics}, scrape=FAST) as s:
            await known(s)
            await known(s, "block_size")
            assert (await s.ask(request(chat_body()))).status == 200
            record = await s.record()
            assert (record.engine, record.engine_version) == ("vllm", "0.32.0")
            assert (record.dtype, record.quantization, record.batch_size) == ("bfloat16", "none", 2)
            assert record.fact_sources == {
                "batch_size": "vllm:num_requests_running at the first token",
                "engine_version": "/version: version",
                "dtype": "/server_info: model_config.dtype",
                "quantization": "/server_info: model_config.quantization",
            }
            facts = s.gateway.live()["engine"]["facts"]
            assert facts["max_num_seqs"] == {"value": 128, "source": "/server_info: scheduler_config.max_num_seqs"}
            assert facts["kv_dtype"] == {"value": "fp8", "source": "vllm:cache_config_info: cache_dtype"}
            assert s.gateway.live()["engine"]["basis"] == "run"

    run(test())


@pytest.mark.parametrize("before", [0, 5])
def test_a_count_from_before_the_request_is_no_batch_size(before: int) -> None:
    async def test() -> None:
        side = {**VLLM, "/metrics": b'vllm:num_requests_running{engine="0"} %d\n' % before}
        async with stand(side=side, scrape={"period": "60s", "stale": "60s"}) as s:
            await s.until(lambda: s.gateway.backends.first.engine.watch.latest is not None)
            await s.ask(request(chat_body()))
            record = await s.record()
            assert (record.running_at_first_token, record.batch_size) == (before, None), "that was another batch"
            assert "batch_size" not in record.fact_sources

    run(test())


def test_configuration_fills_what_nobody_tells_and_gives_way_to_what_is_told() -> None:
    async def test() -> None:
        given = {"engine": "vllm", "dtype": "float16", "quantization": "awq"}
        async with stand(side={"/version": VLLM["/version"]}, backend=given) as s:
            await known(s)
            await s.ask(request(chat_body()))
            record = await s.record()
            assert (record.dtype, record.quantization) == ("float16", "awq")
            assert record.fact_sources["dtype"] == record.fact_sources["quantization"] == "configuration"
        async with stand(side=dict(VLLM), backend=given) as s:
            await known(s)
            await s.ask(request(chat_body()))
            assert (await s.record()).dtype == "bfloat16"
            said = s.gateway.live()["engine"]["contradictions"]
            assert {each["fact"]: (each["believed"], each["says"], each["source"]) for each in said} == {
                "dtype": ("bfloat16", "float16", "configuration"),
                "quantization": ("none", "awq", "configuration"),
            }

    run(test())


@pytest.mark.parametrize(
    ("side", "name", "version"),
    [
        ({"/v1/models": sglang.MODELS, "/server_info": sglang.SERVER_INFO}, "sglang", "0.5.23"),
        ({"/info": tgi.INFO}, "tgi", "3.3.6-dev0"),
        ({"/v1/models": LLAMA_MODELS, "/props": LLAMA_PROPS}, "llamacpp", "b0-unknown"),
        ({"/v2": b'{"name":"triton","version":"2.51.0"}'}, "triton", "2.51.0"),
    ],
)
def test_an_engine_without_metrics_is_recognised_by_what_it_answers(
    side: dict[str, bytes], name: str, version: str
) -> None:
    async def test() -> None:
        async with stand(side=dict(side)) as s:
            await known(s)
            view = s.gateway.live()["engine"]
            assert (view["engine"], view["version"]) == (name, version)
            assert view["basis"] == ("read_in_source" if name in {"sglang", "tgi"} else "run")
            shown = s.gateway.backends.first.engine.version_with_caveat
            assert shown == (f"{version} (read in source, not run)" if name in {"sglang", "tgi"} else version)

    run(test())


def test_a_header_may_tell_the_version_where_no_path_does() -> None:
    async def test() -> None:
        async with stand() as s:
            s.gateway.backends.first.engine.recognise({"server": "tailrace-simulated-engine/9.9"})
            await s.ask(request(chat_body()))
            record = await s.record()
            assert (record.engine, record.engine_version) == ("simulated", "9.9")
            assert record.fact_sources == {"engine_version": "header server: tailrace-simulated-engine"}

    run(test())


def test_it_is_asked_once_a_start_and_again_when_it_counts_anew() -> None:
    asked: list[str] = []
    count = 100

    async def script(incoming: Incoming) -> None:
        asked.append(incoming.target)
        if incoming.target == "/vllm-metrics":
            body = f"vllm:generation_tokens_total {count}\nvllm:num_requests_running 0\n"
            await incoming.reply(body.encode())
        else:
            await incoming.stream()

    async def test() -> None:
        nonlocal count
        side = dict(VLLM)
        async with stand(script, side=side, metrics_path="/vllm-metrics", scrape=FAST) as s:
            await known(s)
            inquiry = s.gateway.backends.first.engine.inquiry
            before = asked.count("/vllm-metrics")
            await s.until(lambda: asked.count("/vllm-metrics") > before + 5)
            assert inquiry.asked == 1
            s.engine.side["/version"] = b'{"version":"0.33.0"}'
            count = 3
            await s.until(lambda: s.gateway.backends.first.engine.version == "0.33.0")
            assert inquiry.asked == 2
            before = asked.count("/vllm-metrics")
            await s.until(lambda: asked.count("/vllm-metrics") > before + 5)
            assert inquiry.asked == 2

    run(test())


def test_it_is_asked_again_when_it_comes_back() -> None:
    async def test() -> None:
        async with stand(side=dict(VLLM), scrape=FAST) as s:
            await known(s)
            s.gateway.backends.first.engine.watch.unreachable()
            s.engine.side["/version"] = b'{"version":"0.31.0"}'
            await s.until(lambda: s.gateway.backends.first.engine.version == "0.31.0")

    run(test())


def test_a_slow_answer_about_itself_delays_no_request() -> None:
    """`/slots`, `/props` and the like come from the loop that runs the engine's steps."""

    asked = asyncio.Event()

    async def deaf(incoming: Incoming) -> None:
        asked.set()
        await incoming.until_gone()

    async def test() -> None:
        async with stand(side={"/props": deaf, "/v1/models": LLAMA_MODELS}, backend={"engine": "llamacpp"}) as s:
            await asked.wait()
            client = await s.client()
            loop = asyncio.get_running_loop()
            began = loop.time()
            for _ in range(5):
                assert (await client.ask(request(chat_body()))).status == 200
            assert loop.time() - began < 1.0
            assert s.gateway.backends.first.engine.version == ""
            await known(s, "parameters")
            assert s.gateway.backends.first.engine.version == "", (
                "what did not answer in time is not known, the rest is"
            )

    run(test())


def test_a_busy_engine_is_what_it_was() -> None:
    async def late(incoming: Incoming) -> None:
        await incoming.reply({}, 503)

    async def test() -> None:
        async with stand(side=dict(VLLM), scrape=FAST) as s:
            await known(s)
            inquiry, asked = s.gateway.backends.first.engine.inquiry, s.gateway.backends.first.engine.inquiry.asked
            s.engine.side["/version"] = late
            inquiry._due = 0  # five minutes have passed
            await s.until(lambda: inquiry.asked > asked)
            await asyncio.sleep(0.1)
            assert (s.gateway.backends.first.engine.version, inquiry.asked) == ("0.32.0", asked + 1)
            inquiry.again()
            await s.until(lambda: s.gateway.backends.first.engine.version == "")

    run(test())


def test_an_unknown_metric_is_reported_once_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    metrics = b"vllm:num_requests_running 0\nvllm:kv_share_in_use 0.5\nprocess_open_fds 3\n"

    async def test() -> None:
        async with stand(side={**VLLM, "/metrics": metrics}, scrape=FAST) as s:
            await s.until(lambda: s.gateway.backends.first.engine.watch.scrapes > 3)
            assert s.gateway.live()["engine"]["unknown_metrics"] == {"count": 1, "names": ["vllm:kv_share_in_use"]}

    with caplog.at_level(logging.WARNING):
        run(test())
    said = [each.getMessage() for each in caplog.records if "does not know" in each.getMessage()]
    assert said == ["vLLM exports metrics that Tailrace does not know: vllm:kv_share_in_use"]


def test_workers_learn_it_from_the_one_that_asks() -> None:
    async def test() -> None:
        async with stand(side=dict(VLLM)) as s, stand() as other:
            await known(s)
            news = msgspec.json.decode(msgspec.json.encode(s.gateway.backends.first.engine.news()), type=EngineNews)
            other.gateway.backends.first.engine.take(news)
            await other.ask(request(chat_body()))
            record = await other.record()
            assert (record.engine_version, record.dtype) == ("0.32.0", "bfloat16")
            assert record.fact_sources["dtype"] == "/server_info: model_config.dtype"

    run(test())


def test_tensorrt_llms_metrics_are_read_where_they_do_not_drain() -> None:
    async def test() -> None:
        side: dict[str, Any] = {"/v1/models": tensorrt_llm.MODELS, "/version": tensorrt_llm.VERSION}
        side["/prometheus/metrics"] = tensorrt_llm.METRICS.encode()
        async with ScriptedEngine(lambda incoming: incoming.stream(), side=side) as engine:
            link = EngineLink(BackendConfig(url=engine.url), ScrapeConfig(period=Duration(50_000_000)))
            link.start()
            try:
                async with asyncio.timeout(5):
                    while link.watch.latest is None:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                assert (link.name, link.version, link.watch.latest.running) == ("tensorrt_llm", "1.2.0rc4", 4)
                assert link.profile.facts.text("dtype") == "bfloat16"
                view = link.view(link.watch.latest.at_ns)
                assert (view["basis"], view["unknown_metrics"]["count"]) == ("read_in_source", 0)
            finally:
                await link.close()

    run(test())


@pytest.mark.parametrize("engine", ["vllm", "auto"])
def test_vllms_timings_come_in_a_frame_that_the_client_never_sees(engine: str) -> None:
    metrics = {"time_to_first_token_ms": 4.0, "generation_time_ms": 3.0, "queue_time_ms": 2.0}

    async def script(incoming: Incoming) -> None:
        assert incoming.json["stream_options"] == {"include_usage": True}
        await asyncio.sleep(0.02)
        await incoming.sse(token(), token(), finish(), usage(7, 2, metrics=metrics), DONE)
        await incoming.end()

    async def test() -> None:
        async with stand(script, side=dict(VLLM), backend={"engine": engine}) as s:
            await known(s)
            reply = await s.ask(request(chat_body()))
            assert reply.body == token() * 2 + finish() + DONE
            record = await s.record()
            assert (record.queue_engine_ns, record.prefill_ns) == (2_000_000, 4_000_000)
            assert record.stage_sources["prefill"] == "reported(metrics.time_to_first_token_ms)"

    run(test())


def test_tgis_headers_become_stages_of_an_answer_in_one_piece() -> None:
    said = {**tgi.TIMING_HEADERS, "x-validation-time": "3", "x-queue-time": "5"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in said.items()).encode()

    async def script(incoming: Incoming) -> None:
        await asyncio.sleep(0.03)
        whole = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}
        await incoming.reply(whole, extra=lines)

    async def test() -> None:
        async with stand(script, side={"/info": tgi.INFO}, backend={"engine": "tgi"}) as s:
            for count in (1, 2):
                reply = await s.ask(request(chat_body(stream=False)))
                assert reply.headers["x-queue-time"] == "5", "the client gets them too"
                record = await s.record(count)
                assert (record.queue_engine_ns, record.preprocess_ns) == (5_000_000, 3_000_000)
                assert record.stage_sources["preprocess"] == "reported(header x-validation-time)"

    run(test())


@pytest.mark.parametrize(
    ("engine", "target", "body", "field"),
    [
        ("sglang", "/v1/chat/completions", {"messages": [], "stream": True}, "rid"),
        ("sglang", "/v1/chat/completions", {"messages": [], "stream": False}, "rid"),
        ("triton", "/v2/models/m/generate_stream", {"text_input": "x"}, "id"),
        ("triton", "/v2/models/m/generate", {"text_input": "x"}, "id"),
    ],
)
def test_our_id_goes_where_the_engine_takes_it(engine: str, target: str, body: dict[str, Any], field: str) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.reply({"text_output": "x"})

    async def test() -> None:
        async with stand(script, backend={"engine": engine}) as s:
            await s.ask(request(json.dumps(body).encode(), path=target))
            record = await s.record()
            assert s.engine.requests[-1].json[field] == record.request_id
            await s.ask(request(json.dumps({**body, field: "theirs"}).encode(), path=target))
            assert s.engine.requests[-1].json[field] == "theirs"

    run(test())


@pytest.mark.parametrize(
    ("engine", "target", "body"),
    [
        ("triton", "/v2/models/m/infer", {"inputs": []}),
        ("vllm", "/v1/chat/completions", {"messages": [], "stream": False}),
        ("sglang", "/v1/embeddings", {"input": "x"}),
    ],
)
def test_other_bodies_keep_their_bytes(engine: str, target: str, body: dict[str, Any]) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.reply({})

    async def test() -> None:
        async with stand(script, backend={"engine": engine}) as s:
            sent = json.dumps(body).encode()
            await s.ask(request(sent, path=target))
            assert s.engine.requests[-1].body == sent

    run(test())


def test_tritons_batches_are_counted_and_in_the_record() -> None:
    ran = {1: 0, 8: 0}

    def statistics() -> bytes:
        batches = [{"batch_size": size, "compute_infer": {"count": count, "ns": 9}} for size, count in ran.items()]
        row = {"name": "m", "batch_stats": batches, "inference_stats": {"queue": {"count": 0, "ns": 0}}}
        return json.dumps({"model_stats": [row]}).encode()

    async def script(incoming: Incoming) -> None:
        await incoming.reply({"text_output": "x"})

    async def test() -> None:
        side = {"/v2": b'{"name":"triton","version":"2.51.0"}', "/v2/models/stats": statistics()}
        async with stand(script, side=side, scrape=FAST) as s:
            await known(s)
            ask = request(b'{"text_input":"x"}', path="/v2/models/m/generate")
            await s.ask(ask)
            assert (await s.record()).batch_size is None, "nothing was counted yet"
            ran[8] = 4
            s.engine.side["/v2/models/stats"] = statistics()
            await s.until(lambda: bool(s.gateway.backends.first.engine.profile.batches))
            await s.ask(ask)
            record = await s.record(2)
            assert record.batch_size == 8
            assert record.fact_sources["batch_size"] == "/v2/models/stats: batch_stats of the last look, all alike"

    run(test())


@pytest.mark.parametrize(
    ("message", "status", "reason"),
    [
        ("Model is overloaded", 429, Reason.QUEUE_FULL),
        ("Request failed during generation: out of memory", 502, Reason.ENGINE_ERROR),
        ("Input validation error: `inputs` must have less than 8 tokens. Given: 9", 400, Reason.INPUT_TOO_LONG),
        ("Input validation error: `top_p` must be > 0.0 and < 1.0", 422, Reason.BAD_REQUEST),
    ],
)
def test_tgis_errors_in_a_stream_reach_the_client_under_their_real_status(
    message: str, status: int, reason: Reason
) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.sse(tgi.openai_event(message))
        await incoming.end()

    async def test() -> None:
        async with stand(script, backend={"engine": "tgi"}) as s:
            assert (await s.ask(request(chat_body()))).status == status
            record = await s.record()
            assert (record.reason, record.http_status) == (reason, status)

    run(test())


def test_tgis_own_stream_is_measured() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.sse(*tgi.GENERATE_STREAM)
        await incoming.end()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(b'{"inputs":"What is deep learning?"}', path="/generate_stream"))
            assert reply.body == b"".join(tgi.GENERATE_STREAM)
            record = await s.record()
            assert (record.outcome, record.stream, record.endpoint) == ("completed", True, "/generate_stream")
            assert (record.prompt_tokens, record.output_tokens, record.finish_reason) == (5, 3, "eos_token")
            assert record.ttft_ns is not None

    run(test())
