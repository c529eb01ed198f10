"""A service between gateway and engine that says in `Server-Timing` how long its stages took."""

from __future__ import annotations

import asyncio

from tailrace.stages import parse_server_timing
from tests.wire.client import chat_body, request
from tests.wire.scripted import DONE, Incoming, chunk, finish, token
from tests.wire.stand import run, stand


def head(timing: str, kind: str = "text/event-stream", length: int | None = None) -> bytes:
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    lines = "".join(f"Server-Timing: {one}\r\n" for one in timing.split("|") if one)
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{lines}{framing}\r\n\r\n".encode()


def test_its_stages_are_in_the_record_and_its_header_reaches_the_client() -> None:
    async def script(incoming: Incoming) -> None:
        await asyncio.sleep(0.03)
        timing = "preprocess.retrieval;dur=12.5, total;dur=99|preprocess.template;dur=0.5"
        await incoming.send(head(timing) + chunk(token()) + chunk(finish()) + chunk(DONE) + b"0\r\n\r\n")

    async def scene() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.send(request(chat_body()))
            raw = (await client.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
            lines = [tuple(line.lower().split(": ", 1)) for line in raw]
            record = await s.record()
            assert record.parts_ns == {"preprocess.retrieval": 12_500_000, "preprocess.template": 500_000}
            assert record.preprocess_ns == 13_000_000
            assert record.stage_sources["preprocess.retrieval"] == "reported(server-timing)"
            assert record.model_ns is None
            timings = ", ".join(value for name, value in lines if name == "server-timing")
            told = {one.name for one in parse_server_timing(timings)}
            # Theirs and ours, and the id that went through every hop.
            assert told >= {"preprocess.retrieval", "total", "ingress"}
            assert dict(lines)["x-request-id"] == s.engine.requests[0].headers["x-request-id"]

    run(scene())


def test_answers_that_differ_in_their_timing_keep_their_own_and_one_without_has_none() -> None:
    timings = iter(["preprocess.a;dur=1", "preprocess.b;dur=2", "", "preprocess.c;dur=900000, queue;dur=1"])

    async def script(incoming: Incoming) -> None:
        await asyncio.sleep(0.01)
        body = b'{"choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}]}'
        await incoming.send(head(next(timings), "application/json", len(body)) + body)

    async def scene() -> None:
        async with stand(script) as s:
            for count in range(1, 5):
                await s.ask(request(chat_body(stream=False)))
                await s.record(count)
            first, second, third, fourth = s.records.all
            assert first.parts_ns == {"preprocess.a": 1_000_000}
            assert second.parts_ns == {"preprocess.b": 2_000_000}
            assert third.parts_ns == {}
            assert third.preprocess_ns is None
            # More than there was is cut to what our own clock saw, and says so.
            assert fourth.parts_ns["preprocess.c"] <= fourth.e2e_ns
            assert "clamped from 900000.000 ms" in fourth.stage_sources["preprocess.c"]

    run(scene())
