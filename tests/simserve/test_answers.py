"""What an answer looks like: vLLM's events, usage, finish reasons, ids, lengths."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from tailrace.measure.meter import StreamMeter
from tailrace.measure.openai import OpenAIChat
from tests.simserve.serving import CHAT, MODEL, chat, events, run, streamed, text_of


def test_a_stream_in_vllms_form():
    async def scenario(server, session):
        body = streamed(max_tokens=5, stream_options={"include_usage": True})
        async with session.post(CHAT, json=body, headers={"X-Request-Id": "req-7"}) as response:
            got = await events(response)
            assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            assert response.headers["Server"].startswith("tailrace-simulated-engine/")
            assert response.headers["X-Request-Id"] == "req-7"
        role, *tokens, usage, done = got
        assert done == "[DONE]"
        assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert len(tokens) == 5
        assert all(event["id"] == "chatcmpl-req-7" and event["model"] == MODEL for event in got[:-1])
        assert [event["choices"][0]["finish_reason"] for event in tokens] == [None] * 4 + ["length"]
        assert all(event["choices"][0]["delta"]["content"].startswith(" ") for event in tokens)
        assert all("usage" not in event for event in tokens)
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 5
        assert usage["usage"]["total_tokens"] == usage["usage"]["prompt_tokens"] + 5
        assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}

    run(scenario)


def test_per_request_metrics_add_up():
    async def scenario(server, session):
        body = streamed(max_tokens=40, stream_options={"include_usage": True})
        async with session.post(CHAT, json=body) as response:
            metrics = (await events(response))[-2]["metrics"]
        async with session.post(CHAT, json=chat(max_tokens=40, ignore_eos=True)) as response:
            whole = (await response.json())["metrics"]
        for found in (metrics, whole):
            assert set(found) == {
                "time_to_first_token_ms",
                "generation_time_ms",
                "queue_time_ms",
                "mean_itl_ms",
                "tokens_per_second",
            }
            assert found["queue_time_ms"] == pytest.approx(0, abs=5)
            assert found["mean_itl_ms"] == pytest.approx(found["generation_time_ms"] / 39)
            total = found["time_to_first_token_ms"] + found["generation_time_ms"]
            assert found["tokens_per_second"] == pytest.approx(40_000 / total)

    run(scenario)


def test_continuous_usage_counts_every_event():
    async def scenario(server, session):
        options = {"include_usage": True, "continuous_usage_stats": True}
        async with session.post(CHAT, json=streamed(max_tokens=4, stream_options=options)) as response:
            got = await events(response)
        assert [event["usage"]["completion_tokens"] for event in got[:-1]] == [0, 1, 2, 3, 4, 4]

    run(scenario)


def test_a_stream_interval_puts_several_tokens_into_an_event():
    async def scenario(server, session):
        options = {"include_usage": True, "continuous_usage_stats": True}
        async with session.post(CHAT, json=streamed(max_tokens=10, stream_options=options)) as response:
            got = await events(response)
        assert [event["usage"]["completion_tokens"] for event in got[1:-2]] == [1, 5, 9, 10]
        async with session.post(CHAT, json=chat(max_tokens=10, ignore_eos=True)) as response:
            whole = await response.json()
        assert text_of(got) == whole["choices"][0]["message"]["content"]

    run(scenario, stream_interval=4)


def test_streamed_or_not_the_text_is_the_same_and_follows_the_seed():
    async def scenario(server, session):
        async with session.post(CHAT, json=streamed(max_tokens=30)) as response:
            text = text_of(await events(response))
        async with session.post(CHAT, json=chat(max_tokens=30, ignore_eos=True)) as response:
            body = await response.json()
        assert body["choices"][0]["message"]["content"] == text
        assert len(text.split()) == 30
        seen.append(text)

    seen = []
    run(scenario)
    run(scenario)
    run(scenario, seed=1)
    assert seen[0] == seen[1] != seen[2]


def test_drawn_lengths_end_with_stop_and_an_empty_last_event():
    async def scenario(server, session):
        stops = lengths = 0
        for i in range(12):
            body = chat(f"question {i}", stream=True, max_tokens=100, stream_options={"include_usage": True})
            async with session.post(CHAT, json=body) as response:
                got = await events(response)
            last, usage = got[-3], got[-2]
            tokens = usage["usage"]["completion_tokens"]
            if last["choices"][0]["finish_reason"] == "stop":
                stops += 1
                assert last["choices"][0]["delta"]["content"] == ""
                assert len(text_of(got).split()) == tokens - 1 < 99
            else:
                lengths += 1
                assert tokens == 100
        assert stops > 0
        assert lengths > 0

    run(scenario, time_scale=500.0)


def test_min_tokens_and_pinned_lengths():
    async def scenario(server, session):
        pinned = chat(max_tokens=100, tailrace_output_tokens=7, tailrace_prompt_tokens=1234)
        async with session.post(CHAT, json=pinned) as response:
            usage = (await response.json())["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (1234, 7)
        async with session.post(CHAT, json=pinned | {"min_tokens": 50}) as response:
            assert (await response.json())["usage"]["completion_tokens"] == 50

    run(scenario)


def test_completions_speak_their_own_shape():
    async def scenario(server, session):
        body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 3, "ignore_eos": True}
        async with session.post("/v1/completions", json=body) as response:
            whole = await response.json()
        assert whole["object"] == "text_completion"
        assert whole["id"].startswith("cmpl-")
        assert len(whole["choices"][0]["text"].split()) == 3
        async with session.post("/v1/completions", json=body | {"stream": True}) as response:
            got = await events(response)
        assert "".join(event["choices"][0]["text"] for event in got[:-1]) == whole["choices"][0]["text"]
        async with session.post("/v1/completions", json=body | {"prompt": list(range(50))}) as response:
            assert (await response.json())["usage"]["prompt_tokens"] == 50

    run(scenario)


def test_a_repeated_prompt_hits_the_prefix_cache_and_a_pinned_one_does_not():
    async def scenario(server, session):
        text = "The river runs past the old mill. " * 40
        cached = []
        for extra in ({}, {}, {"tailrace_prompt_tokens": 300}, {"tailrace_prompt_tokens": 300}):
            async with session.post(CHAT, json=chat(text, max_tokens=2, **extra)) as response:
                usage = (await response.json())["usage"]
            cached.append(usage["prompt_tokens_details"]["cached_tokens"])
        assert cached == [0, 336, 0, 0]

    run(scenario)


def test_keep_alive_comments_come_before_the_first_token():
    async def scenario(server, session):
        body = streamed(max_tokens=2, tailrace_prompt_tokens=8000)
        async with session.post(CHAT, json=body) as response:
            raw = await response.read()
        assert raw.count(b": keep-alive\n\n") >= 2
        assert raw.index(b": keep-alive") < raw.index(b"data: ")
        assert raw.rindex(b": keep-alive") < raw.index(b"data: ")

    run(scenario, time_scale=1.0, keep_alive_interval_s=0.1)


def test_the_meter_reads_what_the_engine_says_of_itself():
    async def scenario(server, session):
        loop = asyncio.get_running_loop()
        origin = loop.time()
        meter = StreamMeter(OpenAIChat(), origin_ns=0)
        body = streamed(max_tokens=40, tailrace_prompt_tokens=2000, stream_options={"include_usage": True})
        async with session.post(CHAT, json=body) as response:
            async for chunk in response.content.iter_any():
                meter.feed(chunk, int((loop.time() - origin) * 1e9))
        meter.end(int((loop.time() - origin) * 1e9), clean=True)
        summary = meter.summary()
        metrics = summary.timings
        assert summary.output_tokens == 40
        assert summary.token_events == 40
        engine = metrics["queue_time_ms"] + metrics["time_to_first_token_ms"]
        # Tokens go out when their step ends: never before, and late only by what this machine's loop is late.
        assert -1.0 < summary.ttft_ns / 1e6 - engine < 250
        assert abs(summary.tpot_ns / 1e6 - metrics["mean_itl_ms"]) < 5

    run(scenario, time_scale=1.0)


def test_http_1_0_and_closed_connections_get_a_whole_stream():
    async def scenario(server, session):
        body = aiohttp.JsonPayload(streamed(max_tokens=3))
        raw = b"".join([part async for part in _encoded(body)])
        for version, extra in ((b"1.0", b""), (b"1.1", b"Connection: close\r\n")):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
            writer.write(
                b"POST /v1/chat/completions HTTP/%b\r\nHost: x\r\n%bContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (version, extra, len(raw), raw)
            )
            answer = await asyncio.wait_for(reader.read(), 5)
            writer.close()
            head, _, rest = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/%b 200" % version)
            assert (b"chunked" in head) == (version == b"1.1")
            assert rest.count(b"data: ") == 5
            assert rest.endswith(b"data: [DONE]\n\n" if version == b"1.0" else b"0\r\n\r\n")

    async def _encoded(payload):
        yield payload._value

    run(scenario)
