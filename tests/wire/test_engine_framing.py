"""The engine's answers: every sound framing is relayed whole, every doubtful one is a 502, none leaks into the next."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tests.wire.client import chat_body, request
from tests.wire.scripted import DONE, SSE_HEAD, Incoming, chunk, finish, token
from tests.wire.stand import run, stand

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
BODY = b'{"id":"x"}'
LENGTH = b"Content-Length: 10\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"a\r\n" + BODY + b"\r\n0\r\n\r\n"
GET = request(path="/x", method="GET")

SOUND = {
    "length": OK + LENGTH + b"\r\n" + BODY,
    "chunked": OK + CHUNKED + b"\r\n" + CHUNKS,
    "chunk extensions": OK + CHUNKED + b'\r\n4;a=b;c="d"\r\n' + BODY[:4] + b"\r\n6\r\n" + BODY[4:] + b"\r\n0;z\r\n\r\n",
    "trailers": OK + CHUNKED + b"\r\na\r\n" + BODY + b"\r\n0\r\nX-Checksum: 1\r\nServer-Timing: a\r\n\r\n",
    "100 that nobody asked for": b"HTTP/1.1 100 Continue\r\n\r\n" + OK + LENGTH + b"\r\n" + BODY,
    "102 again and again": b"HTTP/1.1 102 Processing\r\n\r\n" * 5 + OK + LENGTH + b"\r\n" + BODY,
    "103 with headers": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + OK + LENGTH + b"\r\n" + BODY,
    "no reason phrase": b"HTTP/1.1 200\r\n" + LENGTH + b"\r\n" + BODY,
    "an empty line before": b"\r\n" + OK + LENGTH + b"\r\n" + BODY,
    "HTTP/1.0 with keep-alive": b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" + LENGTH + b"\r\n" + BODY,
}


@pytest.mark.parametrize("step", [1, 7, 100_000])
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_answer_arrives_whole_and_keeps_both_connections(name: str, step: int) -> None:
    async def script(incoming: Incoming) -> None:
        for start in range(0, len(data), step):
            incoming.writer.write(data[start : start + step])
            await asyncio.sleep(0)

    data = SOUND[name]

    async def test() -> None:
        async with stand(script, passthrough=["/x"]) as s:
            client = await s.client()
            for _ in range(3):
                reply = await client.ask(GET)
                assert (reply.status, reply.body) == (200, BODY)
                for hop in ("link", "x-checksum", "trailer", "keep-alive"):
                    assert hop not in reply.headers
            assert len({incoming.connection for incoming in s.engine.requests}) == 1

    run(test())


DOUBTFUL = {
    "length and chunked": OK + LENGTH + CHUNKED + b"\r\n" + CHUNKS,
    "two lengths": OK + LENGTH + b"Content-Length: 11\r\n\r\n" + BODY,
    "the same length twice": OK + LENGTH + LENGTH + b"\r\n" + BODY,
    "negative length": OK + b"Content-Length: -10\r\n\r\n" + BODY,
    "a list of lengths": OK + b"Content-Length: 10, 10\r\n\r\n" + BODY,
    "compressed chunks": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKS,
    "compressed to its end": OK + b"Transfer-Encoding: gzip\r\n\r\n" + BODY,
    "chunked twice": OK + CHUNKED + CHUNKED + b"\r\n" + CHUNKS,
    "bare LF": (OK + LENGTH + b"\r\n").replace(b"\r\n", b"\n") + BODY,
    "one bare LF": OK + b"X: y\n" + LENGTH + b"\r\n" + BODY,
    "CR that would split the answer": OK + b"X: y\rSet-Cookie: z\r\n" + LENGTH + b"\r\n" + BODY,
    "NUL in a header": OK + b"X: \0\r\n" + LENGTH + b"\r\n" + BODY,
    "folded header": OK + b"X: y\r\n z\r\n" + LENGTH + b"\r\n" + BODY,
    "space before a colon": OK + b"X : y\r\n" + LENGTH + b"\r\n" + BODY,
    "no such protocol": b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nraw",
    "status 000": b"HTTP/1.1 000 X\r\n" + LENGTH + b"\r\n" + BODY,
    "status of two digits": b"HTTP/1.1 99 X\r\n" + LENGTH + b"\r\n" + BODY,
    "no head at all": BODY,
    "interim answer with a body": b"HTTP/1.1 103 Early Hints\r\nContent-Length: 4\r\n\r\nevil"
    + OK
    + LENGTH
    + b"\r\n"
    + BODY,
    "interim answer in chunks": b"HTTP/1.1 103 Early Hints\r\n"
    + CHUNKED
    + b"\r\n"
    + CHUNKS
    + OK
    + LENGTH
    + b"\r\n"
    + BODY,
    "interim answers without end": b"HTTP/1.1 102 Processing\r\nX: " + b"x" * 2000 + b"\r\n\r\n",
}


@pytest.mark.parametrize("name", DOUBTFUL)
def test_a_doubtful_answer_is_a_502_and_costs_its_connection(name: str) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(DOUBTFUL[name] * (200 if name == "interim answers without end" else 1))
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script, passthrough=["/x"]) as s:
            client = await s.client()
            for _ in range(2):
                reply = await client.ask(GET)
                assert reply.status == 502
                assert "no HTTP/1.1" in reply.json["error"]["message"] or "longer than" in reply.body.decode()
            assert len({incoming.connection for incoming in s.engine.requests}) == 2
            record = await s.record(2)
            assert (record.outcome, record.reason) == (OutcomeKind.FAILED, Reason.STREAM_CUT)

    run(test())


@pytest.mark.parametrize(
    ("data", "status", "length"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, None),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 10\r\n\r\n", 204, None),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 10\r\n\r\n" + BODY, 204, None),
        (b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS, 204, None),
        (b"HTTP/1.1 304 Not Modified\r\nETag: a\r\n\r\n", 304, None),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\n\r\n", 304, None),
        (b"HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n", 205, "0"),
        (b"HTTP/1.1 205 Reset Content\r\nContent-Length: 10\r\n\r\n" + BODY, 205, "0"),
        (b"HTTP/1.1 205 Reset Content\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS, 205, "0"),
    ],
)
@pytest.mark.parametrize("apart", [False, True])
def test_an_answer_that_has_no_body_gets_none(data: bytes, status: int, length: str | None, apart: bool) -> None:
    async def script(incoming: Incoming) -> None:
        if incoming.target == "/y":
            await incoming.completion("next")
            return
        head, _, body = data.partition(b"\r\n\r\n")
        incoming.writer.write(head + b"\r\n\r\n")
        if apart:
            await asyncio.sleep(0.005)
        if body and not incoming.writer.transport.is_closing():
            incoming.writer.write(body)

    async def test() -> None:
        async with stand(script, passthrough=["/x", "/y"]) as s:
            client = await s.client()
            for _ in range(2):
                await client.send(GET)
                reply = await client.head()
                assert (reply.status, reply.headers.get("content-length")) == (status, length)
                assert "transfer-encoding" not in reply.headers
                await asyncio.sleep(0.01)
                # Whatever the engine said beyond its head is nobody's.
                after = await client.ask(request(path="/y", method="GET"))
                assert "next" in after.body.decode()

    run(test())


def test_an_answer_to_head_that_has_a_body_all_the_same() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.completion()

    async def test() -> None:
        async with stand(script, passthrough=["/x"]) as s:
            client = await s.client()
            for _ in range(3):
                reply = await client.ask(request(path="/x", method="HEAD"), head_only=True)
                assert (reply.status, int(reply.headers["content-length"]) > 0) == (200, True)
            assert (await client.ask(GET)).json["object"] == "chat.completion"

    run(test())


def test_trailers_behind_a_stream_end_it_and_go_no_further() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD + chunk(token()) + chunk(finish()) + chunk(DONE) + b"0\r\nX-Usage: 7\r\n\r\n")

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            for _ in range(2):
                reply = await client.ask(request(chat_body()))
                assert (reply.end, reply.body) == ("chunked", token() + finish() + DONE)
            assert len({incoming.connection for incoming in s.engine.requests}) == 1

    run(test())


def test_a_surplus_answer_is_given_to_nobody() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(OK + LENGTH + b"\r\n" + BODY + OK + b'Content-Length: 15\r\n\r\n{"evil": "yes"}')

    async def test() -> None:
        async with stand(script, passthrough=["/x"]) as s:
            client = await s.client()
            for _ in range(3):
                assert (await client.ask(GET)).body == BODY
            assert len({incoming.connection for incoming in s.engine.requests}) == 3

    run(test())
