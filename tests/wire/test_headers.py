"""Headers that a gateway adds, takes away and leaves alone, in both directions; methods; socket options."""

from __future__ import annotations

import socket
from email.utils import parsedate_to_datetime

import pytest

from tests.wire.client import chat_body, request
from tests.wire.scripted import Incoming
from tests.wire.stand import run, stand

HOP = {
    "Keep-Alive": "timeout=5",
    "Proxy-Authenticate": "Basic",
    "Proxy-Authorization": "Basic eA==",
    "Proxy-Connection": "keep-alive",
    "TE": "trailers",
    "Trailer": "X-T",
    "X-Named": "secret",
    "X-Also-Named": "secret",
}


def test_what_belongs_to_one_connection_crosses_in_neither_direction() -> None:
    async def script(incoming: Incoming) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in HOP.items() if name != "TE")
        await incoming.reply({}, extra=f"Connection: X-Named\r\nconnection: x-also-named\r\n{lines}".encode())

    async def test() -> None:
        async with stand(script) as s:
            headers = {**HOP, "Connection": "x-nAMED , keep-alive,, X-Also-Named"}
            reply = await s.ask(request(chat_body(stream=False), headers=headers))
            assert reply.status == 200
            for name in (*HOP, "Connection", "Upgrade", "Transfer-Encoding"):
                assert name.lower() not in s.engine.requests[0].headers
                assert name.lower() not in reply.headers

    run(test())


def test_the_gateway_names_itself_to_the_engine_behind_those_before_it() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.completion()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.ask(request(chat_body(stream=False)))
            assert s.engine.requests[0].headers["via"] == "1.1 tailrace"

    run(test())


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_without_a_date_gets_one_and_keeps_its_own(stream: bool) -> None:
    own = "Sun, 06 Nov 1994 08:49:37 GMT"

    async def script(incoming: Incoming) -> None:
        if incoming.json.get("dated"):
            await incoming.reply({}, extra=f"Date: {own}\r\n".encode())
        elif stream:
            await incoming.stream()
        else:
            await incoming.completion()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            reply = await client.ask(request(chat_body(stream=stream)))
            at = parsedate_to_datetime(reply.headers["date"]).timestamp()
            record = await s.record()
            assert 0 <= at - record.start_unix_ns // 1_000_000_000 < 5
            reply = await client.ask(request(chat_body(stream=False, dated=True)))
            assert reply.headers["date"] == own

    run(test())


def test_the_gateways_own_answers_have_a_date() -> None:
    async def test() -> None:
        async with stand(limits={"connections": 1}) as s:
            client = await s.client()
            reply = await client.ask(request(path="/nowhere", method="GET"))
            assert (reply.status, reply.headers["date"][-3:]) == (404, "GMT")
            second = await s.client()
            refused = await second.head()
            assert (refused.status, refused.headers["date"][-3:]) == (503, "GMT")

    run(test())


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("OPTIONS", "/v1/chat/completions", "POST"),
        ("GET", "/v1/chat/completions", "POST"),
        ("HEAD", "/v1/chat/completions", "POST"),
        ("OPTIONS", "/v1/models", "DELETE, GET, HEAD, PATCH, POST, PUT"),
        ("TRACE", "/v1/models", "DELETE, GET, HEAD, PATCH, POST, PUT"),
    ],
)
def test_405_says_what_is_allowed(method: str, path: str, allow: str) -> None:
    async def test() -> None:
        async with stand() as s:
            client = await s.client()
            for _ in range(2):  # and the connection serves on
                reply = await client.ask(request(method=method, path=path), head_only=method == "HEAD")
                assert (reply.status, reply.headers["allow"]) == (405, allow)
            assert s.engine.requests == []

    run(test())


def test_http_1_0_is_answered_and_closed_whatever_it_asks() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.completion()

    async def test() -> None:
        async with stand(script) as s:
            body = chat_body(stream=False)
            for wish in (b"", b"Connection: keep-alive\r\n"):
                client = await s.client()
                head = b"POST /v1/chat/completions HTTP/1.0\r\n%bContent-Length: %d\r\n\r\n"
                reply = await client.ask(head % (wish, len(body)) + body)
                assert (reply.status, reply.headers["connection"]) == (200, "close")
                assert await client.closed()

    run(test())


def test_nagle_is_off_on_both_sides() -> None:
    async def script(incoming: Incoming) -> None:
        for connection in (*s.gateway.connections, *s.gateway.backends.first.pool.open):
            assert connection.transport is not None
            sock = connection.transport.get_extra_info("socket")
            options.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        await incoming.completion()

    options: list[int] = []

    async def test() -> None:
        nonlocal s
        async with stand(script) as s:
            assert (await s.ask(request(chat_body(stream=False)))).status == 200
        assert len(options) == 2
        assert all(options)

    s = None
    run(test())
