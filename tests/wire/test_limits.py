"""What a client may send, how much of it and how slowly: every limit has its own status, and no hold is free."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.wire.client import RawClient, chat_body, request
from tests.wire.scripted import Incoming, chunk
from tests.wire.stand import run, stand

POST = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


async def _answered(incoming: Incoming) -> None:
    await incoming.completion()


@pytest.mark.parametrize(
    ("part", "status"),
    [
        (b"2;" + b"x" * 100_000, 431),
        (b"2\r\n{}\r\n0\r\nX-Long: " + b"x" * 100_000, 431),
        (b"2\r\n{}\r\n0\r\n" + b"X: y\r\n" * 300, 431),
        (b"0" * 100_000, 431),
    ],
    ids=["extension", "trailer's value", "trailers", "size"],
)
def test_what_frames_a_body_is_bounded(part: bytes, status: int) -> None:
    async def test() -> None:
        async with stand(_answered, limits={"header_bytes": 10_000}) as s:
            client = await s.client()
            await client.send(CHUNKED)
            for start in range(0, len(part), 5000):
                client.writer.write(part[start : start + 5000])
                await asyncio.sleep(0.001)
                if client.writer.transport.is_closing():
                    break
            reply = await client.reply()
            assert (reply.status, reply.headers["connection"]) == (status, "close")
            assert s.engine.requests == []

    run(test())


@pytest.mark.parametrize("size", [9000, 11_000, 200_000])
def test_the_heads_limit_holds_however_it_is_read(size: int) -> None:
    async def test() -> None:
        async with stand(_answered, limits={"header_bytes": 10_000}) as s:
            body = chat_body(stream=False)
            head = POST + b"X-Long: " + b"x" * size + b"\r\nContent-Length: %d\r\n\r\n" % len(body)
            reply = await s.ask(head + body)
            assert reply.status == (200 if size < 10_000 else 431)

    run(test())


def test_small_chunks_are_no_framing_attack() -> None:
    async def test() -> None:
        async with stand(_answered, limits={"header_bytes": 2000}) as s:
            client = await s.client()
            body = chat_body(stream=False, filler="x" * 5000)
            await client.send(CHUNKED)
            for index in range(0, len(body), 3):
                await client.send(b"0003;a=bcdefgh\r\n" + body[index : index + 3] + b"\r\n" if index + 3 <= len(body)
                                  else chunk(body[index:]))  # fmt: skip
            assert (await client.ask(b"0\r\n\r\n")).status == 200
            assert s.engine.requests[0].body == body

    run(test())


def test_a_head_in_drops_is_408() -> None:
    async def test() -> None:
        async with stand(limits={"header_stall": "300ms"}) as s:
            client = await s.client()
            began = time.monotonic()

            async def drip() -> None:
                for byte in POST + b"X-Slow: " + b"x" * 1000:
                    client.writer.write(bytes([byte]))
                    await asyncio.sleep(0.02)

            dripping = asyncio.ensure_future(drip())
            assert (await client.reply()).status == 408
            assert time.monotonic() - began < 3
            dripping.cancel()

    run(test())


def test_an_upload_in_drops_is_408_though_it_never_stops() -> None:
    async def test() -> None:
        async with stand(limits={"upload_stall": "300ms"}) as s:
            client = await s.client()
            began = time.monotonic()
            await client.send(POST + b"Content-Length: 100000\r\n\r\n")

            async def drip() -> None:
                while True:
                    client.writer.write(b"x")
                    await asyncio.sleep(0.02)

            dripping = asyncio.ensure_future(drip())
            assert (await client.reply()).status == 408
            assert time.monotonic() - began < 4
            dripping.cancel()

    run(test())


def test_an_upload_that_gets_on_may_take_longer() -> None:
    body = chat_body(stream=False, filler="x" * 20_000)

    async def test() -> None:
        async with stand(_answered, limits={"upload_stall": "300ms"}) as s:
            client = await s.client()
            await client.send(POST + b"Content-Length: %d\r\n\r\n" % len(body))
            for start in range(0, len(body), 500):
                await client.send(body[start : start + 500])
                await asyncio.sleep(0.05)  # 10 kB/s for 2 s
            assert (await client.reply()).status == 200

    run(test())


@pytest.mark.parametrize("first", [b"", b"used", b"empty lines"])
def test_an_idle_connection_is_closed(first: bytes) -> None:
    async def test() -> None:
        async with stand(limits={"client_idle": "300ms", "header_stall": "300ms"}) as s:
            client = await s.client()
            if first == b"used":
                await client.ask(request(chat_body()))
            if first == b"empty lines":  # which may precede a request, and are none
                dripping = asyncio.ensure_future(_empty_lines(client))
                await s.until(lambda: not s.gateway.connections)
                dripping.cancel()
                return
            assert await client.closed(3)

    async def _empty_lines(client: RawClient) -> None:
        while True:
            client.writer.write(b"\r\n")
            await asyncio.sleep(0.05)

    run(test())


def test_a_busy_connection_is_never_idle() -> None:
    async def script(incoming: Incoming) -> None:
        await asyncio.sleep(1.5)
        await incoming.completion()

    async def test() -> None:
        async with stand(script, limits={"client_idle": "100ms"}) as s:
            client = await s.client()
            assert (await client.ask(request(chat_body(stream=False)))).status == 200

    run(test())


def test_a_place_that_was_refused_is_free_again() -> None:
    async def test() -> None:
        async with stand(limits={"connections": 1}) as s:
            first = await s.client()
            await s.until(lambda: len(s.gateway.connections) == 1)
            second = await s.client()
            assert (await second.head()).status == 503
            first.close()
            await s.until(lambda: not s.gateway.connections)
            assert (await s.ask(request(chat_body()))).status == 200

    run(test())


EXPECT = b"Expect: 100-continue\r\n"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n" + EXPECT, 404),
        (b"GET /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n" + EXPECT, 405),
        (b"POST /sleep HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n" + EXPECT, 403),
        (POST + b"Content-Length: 100000000\r\n" + EXPECT, 413),
        (POST + b"Content-Length: 5\r\nExpect: tea\r\n", 417),
        (POST + b"Content-Length: 5\r\nExpect: 100-continue, tea\r\n", 417),
    ],
)
def test_a_refusal_comes_instead_of_100_continue(head: bytes, status: int) -> None:
    async def test() -> None:
        async with stand() as s:
            client = await s.client()
            reply = await client.ask(head + b"\r\n")
            assert (reply.status, reply.headers["connection"]) == (status, "close")
            assert await client.closed(3)

    run(test())


def test_100_continue_waits_for_its_turn_in_the_pipeline() -> None:
    async def script(incoming: Incoming) -> None:
        await asyncio.sleep(0.1)
        await incoming.completion()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            body = chat_body(stream=False)
            await client.send(request(body) + POST + EXPECT + b"Content-Length: %d\r\n\r\n" % len(body))
            # The first answer comes first: an interim answer ahead of it would be taken for its own.
            assert (await client.reply()).status == 200
            assert (await client.head()).status == 100
            assert (await client.ask(body)).status == 200

    run(test())


def test_100_continue_is_not_sent_once_the_body_is_there_nor_to_http_1_0() -> None:
    async def test() -> None:
        async with stand(_answered) as s:
            body = chat_body(stream=False)
            head = b"Host: a\r\n" + EXPECT + b"Content-Length: %d\r\n\r\n" % len(body)
            assert (await s.ask(b"POST /v1/completions HTTP/1.1\r\n" + head + body)).status == 200
            client = await s.client()
            await client.send(b"POST /v1/completions HTTP/1.0\r\n" + head)
            await asyncio.sleep(0.05)
            assert (await client.ask(body)).status == 200

    run(test())
