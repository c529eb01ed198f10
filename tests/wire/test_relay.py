"""What a client gets is what the engine sent, and the record says what happened."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tests.wire.client import chat_body, request
from tests.wire.scripted import DONE, SSE_HEAD, Incoming, chunk, event, finish, token, usage
from tests.wire.stand import run, stand


def test_a_stream_arrives_as_it_was_sent_and_is_recorded() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.stream(3, gap=0.02)

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body(stream_options={"include_usage": True})))
            assert reply.status == 200
            assert reply.end == "chunked"
            assert reply.body == token() * 3 + finish() + usage(7, 3) + DONE
            record = await s.record()
            assert record.outcome is OutcomeKind.COMPLETED
            assert (record.prompt_tokens, record.prompt_tokens_source) == (7, "usage")
            assert (record.output_tokens, record.output_tokens_source) == (3, "usage")
            assert record.chunk_gap_count == 2
            assert record.ttft_ns is not None
            assert record.ttft_upstream_ns is not None
            assert record.ttft_ns > record.ttft_upstream_ns
            assert record.finish_reason == "stop"
            assert record.http_status == 200
            assert record.gateway_overhead_ns is not None
            assert 0 < record.gateway_overhead_ns < record.e2e_ns
            assert record.loop_lag_ns is not None
            assert record.connection_reused is False
            assert record.connect_ns is not None
            assert record.timeline is not None
            assert sum(record.stages().values()) == record.e2e_ns

    run(test())


def test_a_byte_at_a_time_arrives_whole_and_keeps_its_last_stamp() -> None:
    whole = token("ä€😀") + finish() + usage() + DONE

    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        for index in range(len(whole)):
            await incoming.send(chunk(whole[index : index + 1]))
            if index % 16 == 0:
                await asyncio.sleep(0.001)
        await incoming.end()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body(stream_options={"include_usage": True})))
            assert reply.body == whole
            assert all(data.endswith(b"\n\n") for _, data in reply.chunks)
            record = await s.record()
            assert record.outcome is OutcomeKind.COMPLETED
            assert record.output_tokens == 2

    run(test())


def test_http_chunks_that_cut_events_anywhere_do_not_matter() -> None:
    whole = token("a") + token("b") + finish() + DONE

    async def script(incoming: Incoming) -> None:
        head, _, _ = SSE_HEAD.partition(b"\r\n\r\n")
        raw = head + b"\r\n\r\n" + b"".join(chunk(whole[i : i + 7]) for i in range(0, len(whole), 7)) + b"0\r\n\r\n"
        for index in range(0, len(raw), 11):
            await incoming.send(raw[index : index + 11])
            await asyncio.sleep(0.0005)

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.body == whole
            assert (await s.record()).chunk_gap_count == 1

    run(test())


@pytest.mark.parametrize("eol", [b"\r\n", b"\r"])
def test_other_line_ends_pass_unchanged(eol: bytes) -> None:
    whole = (token("a") + token("b") + finish() + usage() + DONE).replace(b"\n", eol)

    async def script(incoming: Incoming) -> None:
        await incoming.sse(whole[:50], whole[50:])
        await incoming.end()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body(stream_options={"include_usage": True})))
            assert reply.body == whole
            record = await s.record()
            assert (record.outcome, record.output_tokens) == (OutcomeKind.COMPLETED, 2)

    run(test())


def test_an_answer_in_one_piece_keeps_its_length_and_its_usage() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.completion("hello")

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body(stream=False)))
            assert (reply.status, reply.end) == (200, "length")
            assert reply.json["choices"][0]["message"]["content"] == "hello"
            record = await s.record()
            assert record.stream is False
            assert record.output_tokens == 2
            assert record.ttft_ns is None

    run(test())


def test_the_body_is_forwarded_as_it_came_where_nothing_is_added() -> None:
    body = b'{ "model" : "m",\n "messages":[ {"role":"user","content":"h\\u00e9"} ], "x": 1e3 }'

    async def script(incoming: Incoming) -> None:
        assert incoming.body == body
        await incoming.completion()

    async def test() -> None:
        async with stand(script) as s:
            assert (await s.ask(request(body))).status == 200

    run(test())


def test_headers_cross_except_those_of_one_connection() -> None:
    async def script(incoming: Incoming) -> None:
        head = (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nX-Engine: yes\r\n"
            b"Connection: keep-alive, X-Hop\r\nX-Hop: secret\r\nKeep-Alive: timeout=9\r\nSet-Cookie: a=1\r\n"
            b"Set-Cookie: b=2\r\n\r\n{}"
        )
        await incoming.send(head)

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(
                request(
                    chat_body(stream=False),
                    headers={
                        "Authorization": "Bearer k",
                        "Connection": "keep-alive, X-Private",
                        "X-Private": "1",
                        "TE": "trailers",
                        "Proxy-Authorization": "no",
                        "X-Own": "yes",
                        "Accept-Encoding": "gzip",
                    },
                )
            )
            seen = s.engine.requests[0].headers
            assert seen["authorization"] == "Bearer k"
            assert seen["x-own"] == "yes"
            assert seen["host"] == s.engine.url.removeprefix("http://")
            for name in ("connection", "x-private", "te", "proxy-authorization", "accept-encoding", "expect"):
                assert name not in seen
            assert reply.headers["x-engine"] == "yes"
            for name in ("x-hop", "keep-alive", "connection"):
                assert name not in reply.headers

    run(test())


def test_ids_and_trace_context() -> None:
    async def test() -> None:
        async with stand() as s:
            parent = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
            reply = await s.ask(
                request(chat_body(), headers={"X-Request-Id": "mine", "traceparent": parent, "X-Session-Id": "s1"})
            )
            record = await s.record()
            seen = s.engine.requests[0].headers
            assert reply.headers["x-request-id"] == record.request_id == seen["x-request-id"]
            assert record.request_id != "mine"
            assert reply.headers["x-client-request-id"] == record.client_request_id == "mine"
            assert record.trace_id == "a" * 32
            assert record.parent_id == "b" * 16
            assert record.session_id == "s1"
            assert seen["traceparent"].startswith("00-" + "a" * 32 + "-")
            assert seen["traceparent"].endswith("-01")
            assert "b" * 16 not in seen["traceparent"]
            assert reply.headers["x-tailrace-lane"] == "default"
            assert "queue.gateway;dur=" in reply.headers["server-timing"]
            # Without a caller's context a trace begins here, and no engine is asked to sample it.
            await s.ask(request(chat_body()))
            second = await s.record(2)
            assert len(second.trace_id) == 32
            assert second.parent_id == ""
            assert s.engine.requests[1].headers["traceparent"].endswith("-00")
            assert second.request_id != record.request_id

    run(test())


def test_a_trusted_caller_names_the_request() -> None:
    async def test() -> None:
        async with stand(trust_request_id=True) as s:
            reply = await s.ask(request(chat_body(), headers={"X-Request-Id": "mine"}))
            assert reply.headers["x-request-id"] == "mine"
            assert (await s.record()).request_id == "mine"

    run(test())


def test_two_requests_in_flight_with_one_trusted_id_stay_two() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.stream(2, gap=0.1)

    async def test() -> None:
        async with stand(script, trust_request_id=True) as s:
            data = request(chat_body(), headers={"X-Request-Id": "same"})
            await asyncio.gather(s.ask(data), s.ask(data))
            await s.record(2)
            assert len({record.request_id for record in s.records.all}) == 2
            assert {record.client_request_id for record in s.records.all} == {"same"}

    run(test())


def test_chunked_upload_is_relayed_with_a_length() -> None:
    async def test() -> None:
        async with stand() as s:
            body = chat_body()
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n"
            reply = await s.ask(head + chunk(body[:10]) + chunk(body[10:]) + b"0\r\nX-Trailer: 1\r\n\r\n")
            assert reply.status == 200
            seen = s.engine.requests[0]
            assert json.loads(seen.body)["messages"] == json.loads(body)["messages"]
            assert "transfer-encoding" not in seen.headers
            assert "x-trailer" not in seen.headers

    run(test())


def test_http_1_0_gets_a_stream_that_ends_with_the_connection() -> None:
    async def test() -> None:
        async with stand() as s:
            body = chat_body()
            reply = await s.ask(
                b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            assert reply.end == "eof"
            assert reply.body.endswith(DONE)
            assert "transfer-encoding" not in reply.headers

    run(test())


def test_head_has_a_length_and_no_body_and_keeps_the_connection() -> None:
    async def script(incoming: Incoming) -> None:
        assert incoming.method in ("HEAD", "GET")
        if incoming.method == "HEAD":
            await incoming.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 30\r\n\r\n")
        else:
            await incoming.reply({"object": "list"})

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            reply = await client.ask(request(method="HEAD", path="/v1/models"), head_only=True)
            assert (reply.status, reply.headers["content-length"]) == (200, "30")
            reply = await client.ask(request(method="GET", path="/v1/models"))
            assert reply.json == {"object": "list"}
            client.close()
            record = await s.record(2)
            assert (record.endpoint, record.lane) == ("/v1/models", "passthrough")

    run(test())


def test_the_engines_unframed_body_ends_with_its_connection() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        await incoming.send(token() + finish() + DONE)
        incoming.writer.close()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.end == "chunked"
            assert reply.body == token() + finish() + DONE
            assert (await s.record()).outcome is OutcomeKind.COMPLETED

    run(test())


def test_an_early_hint_is_not_the_answer() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
        await incoming.completion()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body(stream=False)))
            assert reply.status == 200
            assert "link" not in reply.headers

    run(test())


def test_an_event_larger_than_the_limit_is_relayed_and_not_read() -> None:
    big = event({"choices": [{"index": 0, "delta": {"content": "x" * 40_000}}]})
    whole = token() + big + token() + finish() + DONE

    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        for index in range(0, len(whole), 3000):
            await incoming.chunks(whole[index : index + 3000])
            await asyncio.sleep(0)
        await incoming.end()

    async def test() -> None:
        async with stand(script, limits={"event_bytes": 16_384}) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.body == whole
            record = await s.record()
            assert record.outcome is OutcomeKind.COMPLETED
            assert "16384" in record.error or record.error == ""

    run(test())


def test_every_requests_engine_state_and_timings_are_joined() -> None:
    metrics = (
        b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 5\n'
        b'vllm:num_requests_waiting{engine="0"} 3\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n'
    )
    timing = {"time_to_first_token_ms": 20.0, "queue_time_ms": 30.0, "generation_time_ms": 5.0}

    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        await asyncio.sleep(0.08)
        await incoming.chunks(token(), token(), finish(), usage(7, 2, metrics=timing), DONE)
        await incoming.end()

    async def test() -> None:
        async with stand(script, side={"/metrics": metrics}, scrape={"period": "50ms"}) as s:
            await s.until(lambda: s.gateway.backends.first.engine.name == "vllm")
            reply = await s.ask(request(chat_body()))
            assert b'"metrics"' not in reply.body
            record = await s.record()
            assert record.engine == "vllm"
            assert (record.running_at_admission, record.waiting_at_admission) == (5, 3)
            assert record.kv_usage_at_first_token == 0.5
            assert record.queue_engine_ns == 30_000_000
            assert record.prefill_ns == 20_000_000
            assert record.stage_sources["prefill"] == "reported(metrics.time_to_first_token_ms)"
            assert record.stage_sources["queue.engine"] == "reported(metrics.queue_time_ms)"

    run(test())


def test_a_stale_scrape_counts_as_absent() -> None:
    metrics = b"vllm:num_requests_running 5\n"

    async def test() -> None:
        async with stand(side={"/metrics": metrics}, scrape={"period": "60s", "stale": "100ms"}) as s:
            await s.until(lambda: s.gateway.backends.first.engine.name == "vllm")
            await asyncio.sleep(0.15)
            await s.ask(request(chat_body()))
            assert (await s.record()).running_at_admission is None

    run(test())


def test_a_slow_metrics_endpoint_delays_no_request() -> None:
    async def script(incoming: Incoming) -> None:
        if incoming.target == "/slow":
            await incoming.until_gone()
            return
        await incoming.stream()

    async def test() -> None:
        async with stand(script, metrics_path="/slow", scrape={"timeout": "10s"}) as s:
            await s.until(lambda: any(incoming.target == "/slow" for incoming in s.engine.requests))
            began = time.monotonic()
            assert (await s.ask(request(chat_body()))).status == 200
            assert time.monotonic() - began < 1.0
            assert s.gateway.backends.first.engine.watch.scrapes == 1

    run(test())


def test_llamacpp_says_when_its_queue_ended() -> None:
    async def script(incoming: Incoming) -> None:
        await asyncio.sleep(0.1)
        await incoming.send(SSE_HEAD.replace(b"\r\n\r\n", b"\r\nServer: llama.cpp\r\n\r\n"))
        progress = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}]}
        await incoming.chunks(event({**progress, "prompt_progress": {"total": 9, "processed": 4, "time_ms": 1}}))
        await asyncio.sleep(0.03)
        timings = {"prompt_ms": 25.0, "predicted_ms": 4.0, "prompt_n": 7, "predicted_n": 2}
        await incoming.chunks(token(), token(), finish(), usage(7, 2, timings=timings), DONE)
        await incoming.end()

    async def test() -> None:
        async with stand(script) as s:
            s.gateway.backends.first.engine.recognise({"server": "llama.cpp"})
            reply = await s.ask(request(chat_body()))
            assert s.engine.requests[0].json["return_progress"] is True
            assert b"prompt_progress" not in reply.body
            record = await s.record()
            assert record.engine == "llamacpp"
            assert record.queue_engine_ns is not None
            assert 95_000_000 < record.queue_engine_ns < 130_000_000
            assert record.prefill_ns == 25_000_000

    run(test())


def test_a_request_the_engine_refuses_is_rejected_not_failed() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.reply(
            {"error": {"message": "This model's maximum context length is 8 tokens", "code": 400}}, 400
        )

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body()))
            assert (reply.status, reply.end) == (400, "length")
            assert "maximum context" in reply.json["error"]["message"]
            record = await s.record()
            assert (record.outcome, record.reason) == (OutcomeKind.REJECTED, Reason.INPUT_TOO_LONG)
            assert "maximum context" in record.error

    run(test())


def test_the_first_answer_of_an_engine_names_it_in_its_own_record() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD.replace(b"\r\n\r\n", b"\r\nServer: llama.cpp\r\n\r\n"))
        await incoming.chunks(token(), finish(), DONE)
        await incoming.end()

    async def test() -> None:
        async with stand(script) as s:
            await s.ask(request(chat_body()))
            assert (await s.record()).engine == "llamacpp"

    run(test())
