"""Several requests on one connection at once: answered in order, bounded, and gone with their client."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.wire.client import chat_body, request
from tests.wire.scripted import DONE, Incoming, token
from tests.wire.stand import run, stand


async def _numbered(incoming: Incoming) -> None:
    number = incoming.json["n"]
    if number == 1:
        await asyncio.sleep(0.1)
    if incoming.json.get("stream"):
        await incoming.sse(token(f"t{number}"), DONE)
        await incoming.end()
    else:
        await incoming.reply({"number": number})


def test_answers_keep_the_order_when_the_bytes_come_one_by_one_and_the_first_is_slow() -> None:
    async def test() -> None:
        async with stand(_numbered) as s:
            client = await s.client()
            data = b"".join(request(chat_body(stream=n % 2 == 0, n=n)) for n in range(1, 7))
            for index in range(len(data)):
                client.writer.write(data[index : index + 1])
                if index % 8 == 0:
                    await asyncio.sleep(0)
            for number in range(1, 7):
                reply = await client.reply()
                if number % 2:
                    assert reply.json == {"number": number}
                else:
                    assert (reply.end, reply.body) == ("chunked", token(f"t{number}") + DONE)
            await s.record(6)

    run(test())


@pytest.mark.parametrize(
    "last",
    [
        b"POST /nowhere HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
def test_what_is_pipelined_behind_a_close_of_ours_is_never_sent(last: bytes) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.completion()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.send(request(chat_body(stream=False)) + last + request(chat_body(stream=False)) * 3)
            assert (await client.reply()).status == 200
            assert (await client.reply()).headers["connection"] == "close"
            assert await client.closed()
            assert len(s.engine.requests) == (1 if b"nowhere" in last else 2)
            await s.record(2)

    run(test())


def test_one_request_runs_at_a_time() -> None:
    async def script(incoming: Incoming) -> None:
        running.append(1)
        assert sum(running) == 1
        await asyncio.sleep(0.01)
        running.append(-1)
        await incoming.completion()

    running: list[int] = []

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.send(request(chat_body(stream=False)) * 5)
            for _ in range(5):
                assert (await client.reply()).status == 200

    run(test())


def test_a_full_pipeline_is_not_read_any_further() -> None:
    async def script(incoming: Incoming) -> None:
        await asyncio.wait_for(free.wait(), 10)
        await incoming.completion()

    free = asyncio.Event()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            one = request(chat_body(stream=False))
            client.writer.write(one * 60_000)
            await s.until(lambda: bool(s.engine.requests))
            await asyncio.sleep(0.1)
            (connection,) = s.gateway.connections
            held = len(connection.pipeline)
            # What one read brings, and no more: the rest waits in the kernel, and with its sender.
            try:
                assert 32 < held < 2500
                assert client.writer.transport.get_write_buffer_size() > 0
            finally:
                client.abort()
                free.set()
            await s.until(lambda: not s.gateway.in_flight)

    run(test())


def test_a_client_that_leaves_behind_a_full_pipeline_is_noticed() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.until_gone()
        gone.append(time.monotonic())

    gone: list[float] = []

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.send(request(chat_body(stream=False)) * 100)
            await s.until(lambda: bool(s.engine.requests))
            await asyncio.sleep(0.05)
            assert len(s.gateway.hangups._watched) == 1
            left = time.monotonic()
            client.writer.write_eof()
            await s.until(lambda: bool(gone))
            assert gone[0] - left < 0.05
            await s.until(lambda: not s.gateway.in_flight)
            assert len(s.engine.requests) == 1
            assert len(s.gateway.hangups._watched) == 0

    run(test())


def test_a_pipeline_that_was_full_is_read_on_and_watched_no_more() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.completion()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.send(request(chat_body(stream=False)) * 100)
            for _ in range(100):
                assert (await client.reply()).status == 200
            assert len(s.gateway.hangups._watched) == 0
            assert (await client.ask(request(chat_body(stream=False)))).status == 200

    run(test())
