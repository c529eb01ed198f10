"""WebSocket sessions through the gateway: real servers and clients, and raw ends that see every byte."""

from __future__ import annotations

import asyncio
import random
import struct
import time
from socket import SO_LINGER, SOL_SOCKET

import aiohttp
import pytest
from aiohttp import WSMsgType, web

from tailrace.measure.websocket import FrameWatcher
from tailrace.model.outcome import OutcomeKind, Reason
from tests.wire.client import RawClient, chat_body, request
from tests.wire.scripted import Incoming
from tests.wire.sockets import (
    BINARY,
    CLOSE,
    KEY,
    PING,
    PONG,
    TEXT,
    Engines,
    Socket,
    agree,
    aiohttp_engine,
    closing,
    dial,
    echo,
    frame,
    offer,
    switched,
)
from tests.wire.stand import run, stand


def real(url: str) -> dict[str, object]:
    """Configuration with a real server as the engine."""
    return {"backends": [{"url": url, "metrics_url": url + "/metrics"}]}


# -- the handshake


def test_an_engine_that_takes_a_session_up_serves_again_before_it_ends() -> None:
    async def test() -> None:
        engines = Engines()
        async with stand(engines.script) as s:
            breaker = s.gateway.backends.first.standing.breaker
            for _ in range(5):
                breaker.failed(time.monotonic_ns(), time.monotonic_ns())
            assert breaker.opened
            socket, _, _ = await dial(s)
            theirs = await engines.sockets.get()
            assert not breaker.opened
            await socket.send(CLOSE, closing(1000))
            assert await theirs.closed() == (1000, "")
            await theirs.send(CLOSE, closing(1000))
            assert await socket.closed() == (1000, "")

    run(test())


def test_a_handshake_reaches_the_engine_and_its_answer_comes_back() -> None:
    async def script(incoming: Incoming) -> None:
        socket = await agree(incoming, b"Sec-WebSocket-Protocol: realtime\r\nServer: engine/1\r\nX-Own: 1\r\n")
        assert await socket.closed() == (1000, "")
        await socket.send(CLOSE, closing(1000))

    async def test() -> None:
        async with stand(script) as s:
            trace = "00-11111111111111111111111111111111-2222222222222222-01"
            socket, reply, _ = await dial(
                s,
                "/v1/realtime?model=whisper-large&x=%2F",
                Sec_WebSocket_Protocol="realtime, openai-beta.realtime-v1",
                Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits",
                Authorization="Bearer secret",
                Origin="https://app.example",
                X_Request_Id="mine",
                Traceparent=trace,
            )
            got = s.engine.requests[0]
            assert (got.method, got.target) == ("GET", "/v1/realtime?model=whisper-large&x=%2F")
            assert got.headers["connection"].lower() == "upgrade"
            assert got.headers["upgrade"] == "websocket"
            assert got.headers["sec-websocket-key"] == KEY
            assert got.headers["sec-websocket-version"] == "13"
            assert got.headers["sec-websocket-protocol"] == "realtime, openai-beta.realtime-v1"
            assert got.headers["sec-websocket-extensions"] == "permessage-deflate; client_max_window_bits"
            assert got.headers["authorization"] == "Bearer secret"
            assert got.headers["origin"] == "https://app.example"
            assert got.headers["traceparent"].startswith("00-" + "1" * 32)
            assert got.headers["x-request-id"] == reply.headers["x-request-id"]
            assert reply.headers["x-client-request-id"] == "mine"
            assert reply.headers["sec-websocket-protocol"] == "realtime"
            assert (reply.headers["x-own"], reply.headers["x-tailrace-lane"]) == ("1", "default")
            assert reply.headers["connection"].lower() == "upgrade"
            assert "content-length" not in reply.headers
            assert "transfer-encoding" not in reply.headers
            await socket.send(CLOSE, closing(1000))
            record = await s.record()
            assert record.trace_id == "1" * 32
            assert (record.endpoint, record.model, record.http_status) == ("/v1/realtime", "whisper-large", 101)
            assert record.stream is False
            assert record.headers_ns is not None
            assert record.connection_reused is False

    run(test())


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"Sec_WebSocket_Version": "8"}, 426),
        ({"Sec_WebSocket_Version": ""}, 426),
        ({"Sec_WebSocket_Key": ""}, 400),
        ({"Sec_WebSocket_Key": "short"}, 400),
        ({"Sec_WebSocket_Key": "c2hvcnQ="}, 400),
        ({"Sec_WebSocket_Key": KEY + "\r\nSec-WebSocket-Key: " + KEY}, 400),
        ({"Content_Length": "3"}, 400),
        ({"Transfer_Encoding": "chunked"}, 400),
        ({"Connection": "keep-alive"}, 426),
        ({"Upgrade": "h2c"}, 426),
    ],
)
def test_a_handshake_that_is_none_is_refused(more: dict[str, str], status: int) -> None:
    async def test() -> None:
        async with stand(Engines().script) as s:
            client = await s.client()
            await client.send(offer(**more))
            reply = await client.reply()
            assert reply.status == status, reply
            assert reply.json["error"]["code"] == "bad_request"
            if status == 426:
                assert reply.headers["sec-websocket-version"] == "13"
                assert reply.headers["upgrade"] == "websocket"
            assert s.engine.requests == []
            assert (await s.record()).reason is Reason.BAD_REQUEST

    run(test())


def test_what_a_path_is_decides_what_an_offer_is_worth() -> None:
    async def script(incoming: Incoming) -> None:
        assert "upgrade" not in incoming.headers
        await incoming.reply({"data": []})

    async def test() -> None:
        async with stand(script) as s:
            for path, status in (("/sleep", 403), ("/socket", 404), ("/v1/../v1/realtime", 400), ("/v1/models", 200)):
                reply = await s.ask(offer(path))
                assert reply.status == status, path
            assert (await s.ask(request(chat_body(), path="/v1/realtime"))).status == 405
            plain = await s.ask(request(method="GET", path="/v1/realtime"))
            assert (plain.status, plain.headers["sec-websocket-version"]) == (426, "13")
            old = await s.ask(offer().replace(b"HTTP/1.1", b"HTTP/1.0"))
            assert old.status == 426
            assert [incoming.target for incoming in s.engine.requests] == ["/v1/models"]

    run(test())


def test_a_passthrough_path_may_be_a_socket_and_takes_no_lane() -> None:
    async def test() -> None:
        engines = Engines()
        lanes = [{"name": "default", "running": 1, "queued": 0}]
        async with stand(engines.script, passthrough=["/asr/*"], lanes=lanes) as s:
            first, reply, _ = await dial(s, "/asr/stream?lang=de")
            assert reply.headers["x-tailrace-lane"] == "passthrough"
            second, _, _ = await dial(s, "/asr/stream")
            for socket in (first, second):
                engine = await engines.next()
                await socket.send(BINARY, b"\0" * 3200)
                assert await engine.next() == (0x82, b"\0" * 3200)
                await engine.send(CLOSE, closing(1000))
                assert await socket.closed() == (1000, "")
                await socket.send(CLOSE, closing(1000))
            record = await s.record(2)
            assert (record.endpoint, record.lane) == ("/asr/*", "passthrough")
            assert record.outcome is OutcomeKind.COMPLETED
            assert record.prompt_bytes == 3200
            assert s.engine.requests[0].target == "/asr/stream?lang=de"

    run(test())


def test_a_drained_engine_gets_no_new_session() -> None:
    async def test() -> None:
        async with stand(Engines().script) as s:
            s.gateway.backends.first.engine.drain(on=True)
            client = await s.client()
            await client.send(offer())
            reply = await client.reply()
            assert (reply.status, reply.json["error"]["code"]) == (503, "no_backend")
            assert s.engine.requests == []
            assert (await s.record()).reason is Reason.NO_BACKEND

    run(test())


def test_an_engine_that_refuses_is_relayed_as_it_is() -> None:
    async def script(incoming: Incoming) -> None:
        status = int(incoming.target.rpartition("=")[2])
        await incoming.reply({"error": {"message": "no key"}}, status, extra=b"X-Why: key\r\n")

    async def test() -> None:
        async with stand(script) as s:
            for count, status in enumerate((403, 401, 404, 503, 200), start=1):
                client = await s.client()
                await client.send(offer(f"/v1/realtime?status={status}") + frame(TEXT, b"impatient", mask=b"abcd"))
                reply = await client.reply()
                assert (reply.status, reply.json, reply.headers["x-why"]) == (
                    status,
                    {"error": {"message": "no key"}},
                    "key",
                )
                assert reply.headers["connection"] == "close"
                assert await client.closed()
                record = await s.record(count)
                assert record.http_status == status
                assert (record.outcome is OutcomeKind.COMPLETED) is (status == 200)

    run(test())


@pytest.mark.parametrize("wrong", ["accept", "missing", "protocol"])
def test_an_engine_that_answers_another_handshake_is_not_believed(wrong: str) -> None:
    async def script(incoming: Incoming) -> None:
        answer = switched(incoming.headers["sec-websocket-key"])
        if wrong == "accept":
            answer = switched("another key")
        elif wrong == "missing":
            answer = b"HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        else:
            answer = answer.replace(b"Upgrade: websocket", b"Upgrade: h2c")
        await incoming.send(answer)
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(offer())
            assert reply.status == 502
            assert reply.json["error"]["code"] == "protocol_error"
            assert (await s.record()).reason is Reason.PROTOCOL_ERROR

    run(test())


def test_a_101_that_nobody_asked_for_is_no_answer() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(switched("x"))
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script) as s:
            assert (await s.ask(request(chat_body()))).status == 502

    run(test())


def test_no_engine_is_503_and_a_silent_one_504() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script, budgets={"first_token": "150ms"}) as s:
            reply = await s.ask(offer())
            assert reply.status == 504
            assert (await s.record()).reason is Reason.FIRST_TOKEN_TIMEOUT
        async with stand(script, **real("http://127.0.0.1:9")) as s:
            reply = await s.ask(offer())
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
            assert (await s.record()).reason is Reason.ENGINE_UNREACHABLE

    run(test())


def test_a_session_holds_its_place_in_its_lane_to_its_end() -> None:
    async def test() -> None:
        engines = Engines()
        lanes = [
            {"name": "voice", "match": {"path": "/v1/realtime", "model": "a"}, "running": 1, "queued": 1},
            {"name": "default", "running": 8},
        ]
        async with stand(engines.script, lanes=lanes, budgets={"queue": "5s"}) as s:
            first, reply, _ = await dial(s, "/v1/realtime?model=a")
            assert reply.headers["x-tailrace-lane"] == "voice"
            waiting = await s.client()
            await waiting.send(offer("/v1/realtime?model=a") + frame(TEXT, b"early", mask=b"abcd"))
            await s.until(lambda: s.gateway.lanes.snapshot(0)["voice"]["queued"] == 1)
            full = await s.ask(offer("/v1/realtime?model=a"))
            assert (full.status, full.json["error"]["code"]) == (429, "queue_full")
            engine = await engines.next()
            await first.send(CLOSE, closing(1000))
            await engine.closed()
            await engine.send(CLOSE, closing(1000))
            assert (await waiting.head()).status == 101
            second = await engines.next()
            assert await second.next() == (0x81, b"early")
            socket = Socket(waiting.reader, waiting.writer, masks=True)
            await second.send(CLOSE, closing(1000))
            await socket.closed()
            await socket.send(CLOSE, closing(1000))
            record = await s.record(3)
            assert record.lane == "voice"
            assert record.queue_gateway_ns is not None
            assert record.queue_gateway_ns > 0

    run(test())


def test_a_client_that_leaves_before_the_answer_takes_its_handshake_along() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.send(offer())
            await s.until(lambda: bool(s.engine.requests))
            left = time.monotonic()
            client.abort()
            await s.until(lambda: s.engine.requests[0].gone_at is not None)
            assert (s.engine.requests[0].gone_at or 0) - left < 0.05
            assert (await s.record()).reason is Reason.CLIENT_DISCONNECT

    run(test())


def test_a_handshake_behind_another_request_waits_for_it() -> None:
    engines = Engines()

    async def script(incoming: Incoming) -> None:
        if incoming.target == "/v1/realtime":
            await engines.script(incoming)
        else:
            await asyncio.sleep(0.1)
            await incoming.reply({"data": []})

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            hello = frame(TEXT, b"hello", mask=b"abcd")
            await client.send(request(method="GET", path="/v1/models") + offer() + hello)
            assert (await client.reply()).json == {"data": []}
            assert (await client.head()).status == 101
            engine = await engines.next()
            assert await engine.next() == (0x81, b"hello")
            client.abort()
            assert await engine.closed() == (1001, "the client is gone")

    run(test())


# -- messages


@pytest.mark.parametrize("compress", [0, 15])
def test_a_real_client_and_a_real_server_echo_through_it(compress: int) -> None:
    sizes = [0, 1, 125, 126, 127, 65_535, 65_536, 300_000, 3_000_000]

    async def test() -> None:
        async with (
            aiohttp_engine(echo, compress=bool(compress)) as url,
            stand(**real(url)) as s,
            aiohttp.ClientSession() as session,
        ):
            async with session.ws_connect(s.gateway.url + "/v1/realtime", compress=compress, max_msg_size=0) as ws:
                assert bool(ws.compress) is bool(compress)
                for size in sizes:
                    await ws.send_str("é" * (size // 2))
                    assert await ws.receive_str() == "é" * (size // 2)
                    data = bytes(range(256)) * (size // 256 + 1)
                    await ws.send_bytes(data)
                    assert await ws.receive_bytes() == data
                await ws.close(code=1000)
                assert ws.close_code == 1000
            record = await s.record()
            assert (record.outcome, record.error) == (OutcomeKind.COMPLETED, "")
            assert record.gateway_overhead_ns is not None
            assert record.gateway_overhead_ns < record.e2e_ns
            assert (record.prompt_bytes or 0) > (3_000_000 if not compress else 1000)

    run(test())


def test_subprotocols_are_agreed_end_to_end() -> None:
    async def test() -> None:
        async with (
            aiohttp_engine(echo, protocols=("realtime",)) as url,
            stand(**real(url)) as s,
            aiohttp.ClientSession() as session,
            session.ws_connect(s.gateway.url + "/v1/realtime", protocols=("other", "realtime")) as ws,
        ):
            assert ws.protocol == "realtime"

    run(test())


def test_fragments_and_control_frames_between_them_cross_as_they_are() -> None:
    async def test() -> None:
        engines = Engines()
        async with stand(engines.script) as s:
            socket, _, _ = await dial(s)
            engine = await engines.next()
            for sender, receiver in ((socket, engine), (engine, socket)):
                await sender.send(TEXT, b"one ", fin=False)
                await sender.send(PING, b"?")
                await sender.send(0, b"two ", fin=False)
                await sender.send(0, b"three")
                await sender.send(PONG)
                got = [await receiver.next() for _ in range(5)]
                assert got == [(0x01, b"one "), (0x89, b"?"), (0x00, b"two "), (0x80, b"three"), (0x8A, b"")]
            assert s.gateway.in_flight

    run(test())


def test_pings_are_answered_by_the_other_end_and_not_by_us() -> None:
    async def patient(socket: web.WebSocketResponse, _: web.Request) -> None:
        await socket.ping(b"from the engine")
        async for message in socket:
            await socket.send_str(f"got {message.data}")

    async def test() -> None:
        async with (
            aiohttp_engine(patient) as url,
            stand(**real(url)) as s,
            aiohttp.ClientSession() as session,
            session.ws_connect(s.gateway.url + "/v1/realtime", autoping=False) as ws,
        ):
            message = await ws.receive(2)
            assert (message.type, message.data) == (WSMsgType.PING, b"from the engine")
            await ws.pong(message.data)
            await ws.ping(b"from the client")
            message = await ws.receive(2)
            assert (message.type, message.data) == (WSMsgType.PONG, b"from the client")

    run(test())


def test_byte_by_byte_is_the_same() -> None:
    async def script(incoming: Incoming) -> None:
        answer = switched(incoming.headers["sec-websocket-key"])
        sent = frame(TEXT, b"welcome") + frame(BINARY, bytes(range(256)))
        for at in range(len(answer + sent)):
            await incoming.send((answer + sent)[at : at + 1])
            await asyncio.sleep(0)
        socket = Socket(incoming.reader, incoming.writer, masks=False)
        assert await socket.next() == (0x81, b"slowly")
        assert await socket.next() == (0x82, b"x" * 200)
        assert await socket.closed() == (3000, "done")
        await socket.send(CLOSE, closing(3000, "done"))

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            said = (
                offer()
                + frame(TEXT, b"slowly", mask=b"\1\2\3\4")
                + frame(BINARY, b"x" * 200, mask=b"\5\6\7\x08")
                + frame(CLOSE, closing(3000, "done"), mask=b"\0\0\0\0")
            )
            for at in range(len(said)):
                await client.send(said[at : at + 1])
                await asyncio.sleep(0)
            assert (await client.head()).status == 101
            socket = Socket(client.reader, client.writer, masks=True)
            assert await socket.next() == (0x81, b"welcome")
            assert await socket.next() == (0x82, bytes(range(256)))
            assert await socket.closed() == (3000, "done")
            assert await socket.ended()
            record = await s.record()
            assert record.outcome is OutcomeKind.COMPLETED
            assert record.error == "the client closed with 3000: done"

    run(test())


def test_what_is_sent_before_the_answer_arrives_behind_it() -> None:
    loud = frame(BINARY, b"x" * 2_000_000, mask=b"abcd")

    async def script(incoming: Incoming) -> None:
        await asyncio.sleep(0.2)
        socket = await agree(incoming, behind=frame(TEXT, b"with the head"))
        assert await socket.next() == (0x81, b"first")
        assert await socket.next() == (0x82, b"x" * 2_000_000)
        await socket.send(CLOSE, closing(1000))
        await socket.closed()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.send(offer() + frame(TEXT, b"first", mask=b"abcd"))
            client.writer.write(loud)
            await s.until(lambda: bool(s.engine.requests))
            await asyncio.sleep(0.1)
            # What we hold of it is bounded: the rest is with the two kernels and the client.
            exchange = next(iter(s.gateway.in_flight.values()))
            assert exchange._early_size <= 64 * 1024 + 256 * 1024  # type: ignore[attr-defined]
            assert (await client.head()).status == 101
            socket = Socket(client.reader, client.writer, masks=True)
            assert await socket.next() == (0x81, b"with the head")
            assert await socket.closed() == (1000, "")
            await socket.send(CLOSE, closing(1000))
            assert (await s.record()).outcome is OutcomeKind.COMPLETED

    run(test())


def test_a_hundred_sessions_at_once_do_not_mix() -> None:
    async def test() -> None:
        async with (
            aiohttp_engine(echo) as url,
            stand(**real(url)) as s,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        ):

            async def one(number: int) -> int:
                async with session.ws_connect(s.gateway.url + "/v1/realtime") as ws:
                    for turn in range(20):
                        await ws.send_str(f"{number}:{turn}")
                        assert await ws.receive_str() == f"{number}:{turn}"
                    await ws.send_bytes(bytes([number]) * 20_000)
                    assert await ws.receive_bytes() == bytes([number]) * 20_000
                    await ws.close()
                    return ws.close_code or 0

            assert await asyncio.gather(*(one(number) for number in range(100))) == [1000] * 100
            await s.record(100)
            assert {record.outcome for record in s.records.all} == {OutcomeKind.COMPLETED}
            await s.until(lambda: not s.gateway.in_flight)

    run(test())


# -- ends


CODES = [1000, 1001, 3000, 4001]


@pytest.mark.parametrize("code", CODES)
def test_the_clients_close_is_carried_over_and_answered(code: int) -> None:
    heard: list[int | None] = []

    async def listen(socket: web.WebSocketResponse, _: web.Request) -> None:
        async for _ in socket:
            pass
        heard.append(socket.close_code)

    async def test() -> None:
        async with aiohttp_engine(listen) as url, stand(**real(url)) as s, aiohttp.ClientSession() as session:
            async with session.ws_connect(s.gateway.url + "/v1/realtime") as ws:
                await ws.close(code=code, message=b"bye")
                assert ws.close_code == 1000  # what aiohttp answers to any code
            record = await s.record()
            await s.until(lambda: bool(heard))
            assert heard == [code]
            assert record.outcome is OutcomeKind.COMPLETED
            assert record.error == ("" if code == 1000 else f"the client closed with {code}: bye")
            await s.until(lambda: not s.gateway.backends.first.pool.open)

    run(test())


@pytest.mark.parametrize("code", CODES)
def test_the_engines_close_is_carried_over_and_answered(code: int) -> None:
    answers: list[int | None] = []

    async def leave(socket: web.WebSocketResponse, _: web.Request) -> None:
        await socket.send_str("last")
        await socket.close(code=code, message="sélf".encode())
        answers.append(socket.close_code)

    async def test() -> None:
        async with aiohttp_engine(leave) as url, stand(**real(url)) as s, aiohttp.ClientSession() as session:
            async with session.ws_connect(s.gateway.url + "/v1/realtime") as ws:
                assert await ws.receive_str() == "last"
                message = await ws.receive(2)
                assert (message.type, message.data, message.extra) == (WSMsgType.CLOSE, code, "sélf")
            record = await s.record()
            if code == 1001:  # an engine that goes away has not done what it was asked for
                assert (record.outcome, record.reason) == (OutcomeKind.FAILED, Reason.ENGINE_ERROR)
            else:
                assert record.outcome is OutcomeKind.COMPLETED
            assert record.error == ("" if code == 1000 else f"the engine closed with {code}: sélf")
            await s.until(lambda: bool(answers))
            assert answers == [1000]  # what aiohttp answers to any code

    run(test())


def test_a_close_without_a_code_stays_one() -> None:
    async def test() -> None:
        engines = Engines()
        async with stand(engines.script) as s:
            socket, _, _ = await dial(s)
            engine = await engines.next()
            await socket.send(CLOSE)
            assert await engine.closed() == (1005, "")
            await engine.send(CLOSE)
            assert await socket.closed() == (1005, "")
            assert await socket.ended()
            assert (await s.record()).outcome is OutcomeKind.COMPLETED

    run(test())


@pytest.mark.parametrize("who", ["client", "engine"])
@pytest.mark.parametrize("fragments", [False, True])
def test_a_message_that_is_too_large_ends_both_sides_with_1009(who: str, fragments: bool) -> None:
    async def test() -> None:
        engines = Engines()
        async with stand(engines.script, websocket={"message_bytes": 10_000}) as s:
            socket, _, _ = await dial(s)
            engine = await engines.next()
            sender, other = (socket, engine) if who == "client" else (engine, socket)
            await sender.send(BINARY, b"x" * 10_000)
            assert (await other.next())[1] == b"x" * 10_000
            if fragments:
                await sender.send(BINARY, b"x" * 6_000, fin=False)
                assert (await other.next())[1] == b"x" * 6_000
                await sender.send(0, b"x" * 4_001)
            else:
                await sender.send(BINARY, b"x" * 10_001)
            text = f"{who}: a message is larger than 10000 bytes"
            assert await other.closed() == (1009, text)
            assert await sender.closed() == (1009, text)
            assert await socket.ended()
            record = await s.record()
            assert (record.outcome, record.reason) == (OutcomeKind.FAILED, Reason.PROTOCOL_ERROR)
            assert record.error == f"closed with 1009: the {who} sent: a message is larger than 10000 bytes"

    run(test())


@pytest.mark.parametrize("who", ["client", "engine"])
def test_what_is_no_websocket_ends_both_sides_with_1002(who: str) -> None:
    async def test() -> None:
        engines = Engines()
        async with stand(engines.script) as s:
            socket, _, _ = await dial(s)
            engine = await engines.next()
            sender, other = (socket, engine) if who == "client" else (engine, socket)
            await sender.send(TEXT, b"sound")
            # A client must mask, an engine must not.
            await sender.raw(frame(TEXT, b"x", mask=b"" if who == "client" else b"abcd"))
            assert await other.next() == (0x81, b"sound")
            assert (await other.closed())[0] == 1002
            assert (await sender.closed())[0] == 1002
            assert await engine.ended()
            record = await s.record()
            assert (record.reason, record.died_in) == (
                Reason.PROTOCOL_ERROR,
                "ingress" if who == "client" else "decode",
            )

    run(test())


def test_our_own_close_waits_for_the_frame_that_is_under_way() -> None:
    async def test() -> None:
        engines = Engines()
        async with stand(engines.script) as s:
            socket, _, _ = await dial(s)
            engine = await engines.next()
            whole = frame(BINARY, b"y" * 50_000)
            await engine.raw(whole[:20_000])
            await socket.raw(frame(TEXT, b"unmasked"))
            assert (await engine.closed())[0] == 1002
            await asyncio.sleep(0.05)
            assert s.gateway.in_flight
            await engine.raw(whole[20_000:] + frame(TEXT, b"not wanted any more"))
            assert await socket.next() == (0x82, b"y" * 50_000)
            assert (await socket.closed())[0] == 1002
            assert (await s.record()).reason is Reason.PROTOCOL_ERROR

    run(test())


def test_an_engine_that_dies_leaves_a_close_1011() -> None:
    async def test() -> None:
        engines = Engines()
        async with stand(engines.script) as s:
            socket, _, _ = await dial(s)
            engine = await engines.next()
            await engine.send(TEXT, b"so far")
            assert await socket.next() == (0x81, b"so far")
            engine.kill()
            assert await socket.closed(1.0) == (1011, "the engine ended the connection")
            await socket.send(CLOSE, closing(1011))
            assert await socket.ended()
            record = await s.record()
            assert (record.outcome, record.reason) == (OutcomeKind.FAILED, Reason.STREAM_CUT)
            assert record.died_in == "decode"

    run(test())


def test_an_engine_that_dies_in_a_frame_cuts_the_client_off() -> None:
    async def test() -> None:
        engines = Engines()
        async with stand(engines.script) as s:
            socket, _, _ = await dial(s)
            engine = await engines.next()
            await engine.raw(frame(TEXT, b"x" * 1000)[:500])
            assert len(await socket.reader.readexactly(500)) == 500
            engine.kill()
            # Whatever came now would be payload of that frame.
            assert await socket.ended()
            assert (await s.record()).reason is Reason.STREAM_CUT

    run(test())


@pytest.mark.parametrize("how", ["reset", "fin"])
def test_a_client_that_dies_is_told_to_the_engine_within_50_ms(how: str) -> None:
    async def test() -> None:
        engines = Engines()
        async with stand(engines.script) as s:
            socket, _, client = await dial(s)
            engine = await engines.next()
            await socket.send(TEXT, b"hello")
            await engine.next()
            left = time.monotonic()
            if how == "reset":
                socket.kill()
            else:
                client.close()
            assert await engine.closed() == (1001, "the client is gone")
            assert time.monotonic() - left < 0.05
            await engine.send(CLOSE, closing(1001))
            record = await s.record()
            assert (record.outcome, record.reason) == (OutcomeKind.CANCELLED, Reason.CLIENT_DISCONNECT)

    run(test())


def test_a_client_that_dies_in_a_frame_cuts_the_engine_off() -> None:
    async def test() -> None:
        engines = Engines()
        async with stand(engines.script) as s:
            socket, _, _ = await dial(s)
            engine = await engines.next()
            await socket.raw(socket.frame(BINARY, b"x" * 1000)[:500])
            await engine.reader.readexactly(500)
            left = time.monotonic()
            socket.kill()
            assert await engine.ended()
            assert time.monotonic() - left < 0.05

    run(test())


def test_an_engine_that_never_answers_a_close_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.gateway.tunnel.CLOSING_NS", 200_000_000)

    async def test() -> None:
        engines = Engines()
        async with stand(engines.script) as s:
            socket, _, _ = await dial(s)
            engine = await engines.next()
            await socket.send(CLOSE, closing(4000, "x"))
            assert await engine.closed() == (4000, "x")
            assert await socket.closed(1.0) == (4000, "")
            assert await engine.ended()
            assert (await s.record()).outcome is OutcomeKind.COMPLETED
            # The other way round the client owes the answer.
            socket, _, _ = await dial(s)
            engine = await engines.next()
            await engine.send(CLOSE, closing(1000))
            assert await socket.closed() == (1000, "")
            assert await socket.ended()
            assert (await s.record(2)).outcome is OutcomeKind.COMPLETED

    run(test())


def test_an_engine_that_only_hangs_up_on_a_close_has_answered() -> None:
    async def test() -> None:
        engines = Engines()
        async with stand(engines.script) as s:
            socket, _, _ = await dial(s)
            engine = await engines.next()
            await socket.send(CLOSE, closing(1000))
            await engine.closed()
            engine.kill()
            assert await socket.closed() == (1000, "")
            assert (await s.record()).outcome is OutcomeKind.COMPLETED

    run(test())


# -- slow ends


def test_a_client_that_does_not_read_stops_the_engine_and_not_our_memory() -> None:
    piece, pieces = b"z" * 65_536, 400

    async def test() -> None:
        engines = Engines()
        async with stand(engines.script) as s:
            client = await s.client(receive_buffer=16_384)
            await client.send(offer())
            await client.head()
            socket = Socket(client.reader, client.writer, masks=True)
            engine = await engines.next()
            sent = 0

            async def flood() -> None:
                nonlocal sent
                for _ in range(pieces):
                    await engine.send(BINARY, piece)
                    sent += 1

            flooding = asyncio.ensure_future(flood())
            await asyncio.sleep(0.5)
            connection = next(iter(s.gateway.connections))
            assert connection.transport is not None
            held = connection.transport.get_write_buffer_size()
            assert 0 < held <= s.gateway.client_buffer_bytes + 2 * 256 * 1024
            assert sent < pieces
            assert s.gateway.streams()[0]["client_blocked"]
            for _ in range(pieces):
                assert await socket.next() == (0x82, piece)
            await flooding
            await socket.send(CLOSE, closing(1000))
            await engine.closed()
            await engine.send(CLOSE, closing(1000))
            record = await s.record()
            assert record.outcome is OutcomeKind.COMPLETED
            assert record.client_blocked_ns > 400_000_000
            assert (record.response_ns or 0) >= record.client_blocked_ns

    run(test())


def test_an_engine_that_does_not_read_stops_the_client_whose_leaving_is_still_seen() -> None:
    async def test() -> None:
        engines = Engines()
        async with stand(engines.script) as s:
            socket, _, _ = await dial(s)
            engine = await engines.next()
            engine.writer.transport.pause_reading()  # type: ignore[attr-defined]
            piece = socket.frame(BINARY, b"a" * 1_000_000)
            for _ in range(40):
                socket.writer.write(piece)
            await asyncio.sleep(0.5)
            side = next(iter(s.gateway.backends.first.pool.open)).transport
            assert side is not None
            assert 0 < side.get_write_buffer_size() <= 512 * 1024
            left = time.monotonic()
            # A reset overtakes what was sent; a FIN behind unread bytes could not arrive.
            sock = socket.writer.get_extra_info("socket")
            sock.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            socket.kill()
            await s.until(lambda: not s.gateway.in_flight)
            assert time.monotonic() - left < 0.2
            record = await s.record()
            assert record.reason is Reason.CLIENT_DISCONNECT
            engine.kill()

    run(test())


@pytest.mark.parametrize("how", ["reset", "fin"])
def test_a_client_that_waits_loudly_in_a_lane_is_seen_to_leave(how: str) -> None:
    async def test() -> None:
        engines = Engines()
        async with stand(engines.script, lanes=[{"name": "default", "running": 1}], budgets={"queue": "10s"}) as s:
            await dial(s)
            waiting = await s.client()
            await waiting.send(offer() + frame(BINARY, b"x" * 200_000, mask=b"abcd"))
            await s.until(lambda: s.gateway.lanes.snapshot(0)["default"]["queued"] == 1)
            await asyncio.sleep(0.05)
            left = time.monotonic()
            if how == "reset":
                sock = waiting.writer.get_extra_info("socket")
                sock.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            waiting.abort()
            record = await s.record()
            assert time.monotonic() - left < 0.2
            assert (record.reason, record.died_in) == (Reason.CLIENT_DISCONNECT, "queue")
            assert len(s.engine.requests) == 1

    run(test())


def test_a_slow_engine_gets_everything() -> None:
    async def test() -> None:
        engines = Engines()
        async with stand(engines.script) as s:
            socket, _, _ = await dial(s)
            engine = await engines.next()
            piece = bytes(range(250)) * 4000

            async def flood() -> None:
                for _ in range(12):
                    await socket.send(BINARY, piece)
                await socket.send(CLOSE, closing(1000))

            flooding = asyncio.ensure_future(flood())
            for _ in range(12):
                first, payload = await engine.next()
                assert first == 0x82
                assert len(payload) == len(piece)
                await asyncio.sleep(0.02)
            assert payload == piece
            await flooding
            await engine.closed()
            await engine.send(CLOSE, closing(1000))
            assert await socket.closed() == (1000, "")
            record = await s.record()
            assert record.prompt_bytes == 12_000_000

    run(test())


def test_a_client_that_does_not_take_the_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.gateway.session.CLOSING_NS", 200_000_000)

    async def test() -> None:
        engines = Engines()
        async with stand(engines.script, limits={"client_buffer_bytes": 1 << 24}) as s:
            client = await s.client(receive_buffer=4096)
            await client.send(offer())
            await client.head()
            engine = await engines.next()
            await engine.send(BINARY, b"z" * 4_000_000)
            await s.until(lambda: s.gateway.streams()[0]["client_blocked"])
            began = time.monotonic()
            engine.kill()
            record = await s.record()
            assert 0.1 < time.monotonic() - began < 1.0
            assert record.reason is Reason.STREAM_CUT
            await _until_cut(client)

    run(test())


async def _until_cut(client: RawClient) -> None:
    async with asyncio.timeout(3):
        try:
            while await client.reader.read(65_536):
                pass
        except ConnectionError:
            pass


# -- budgets, shutdown, observers


def test_a_silent_session_ends_and_pings_are_no_data() -> None:
    async def test() -> None:
        engines = Engines()
        async with stand(engines.script, websocket={"idle": "300ms"}, budgets={"total": "150ms"}) as s:
            socket, _, _ = await dial(s)
            engine = await engines.next()
            for _ in range(4):
                await asyncio.sleep(0.1)
                await socket.send(TEXT, b"still here")
                await engine.next()
            began = time.monotonic()
            for _ in range(2):
                await asyncio.sleep(0.1)
                await socket.send(PING)
                await engine.next()
            assert await socket.closed() == (1001, "no data for 0.3 s")
            assert 0.2 < time.monotonic() - began < 0.6
            assert await engine.closed() == (1001, "no data for 0.3 s")
            record = await s.record()
            assert (record.outcome, record.reason, record.budget) == (
                OutcomeKind.TIMED_OUT,
                Reason.IDLE_TIMEOUT,
                "idle",
            )

    run(test())


def test_a_session_may_have_a_longest_life_and_a_client_a_deadline() -> None:
    async def test() -> None:
        engines = Engines()
        async with stand(engines.script, websocket={"session": "200ms"}) as s:
            socket, _, _ = await dial(s)
            assert await socket.closed() == (1001, "the session's 0.2 s are over")
            assert (await s.record()).reason is Reason.TOTAL_TIMEOUT
            socket, _, _ = await dial(s, X_Deadline_Ms="100")
            assert await socket.closed() == (1001, "the client's deadline is over")
            record = await s.record(2)
            assert (record.outcome, record.reason) == (OutcomeKind.CANCELLED, Reason.DEADLINE)
            for _ in range(2):
                assert (await (await engines.next()).closed())[0] == 1001

    run(test())


def test_a_shutdown_tells_both_sides() -> None:
    async def test() -> None:
        engines = Engines()
        async with stand(engines.script) as s:
            calm, _, _ = await dial(s)
            calm_engine = await engines.next()
            busy, _, _ = await dial(s)
            busy_engine = await engines.next()
            await busy_engine.raw(frame(BINARY, b"x" * 1000)[:100])
            await busy.reader.readexactly(100)
            began = time.monotonic()
            assert await s.gateway.close(0.1) == 2
            assert time.monotonic() - began < 0.6
            assert await calm.closed() == (1012, "the gateway is shutting down")
            assert await calm_engine.closed() == (1001, "the gateway is shutting down")
            assert await busy.ended()  # in the middle of a frame nothing can be said
            assert await busy_engine.closed() == (1001, "the gateway is shutting down")
            await s.record(2)
            assert {(r.outcome, r.reason) for r in s.records.all} == {(OutcomeKind.CANCELLED, Reason.SHUTDOWN)}

    run(test())


def test_noise_ends_sessions_and_leaves_nothing_behind() -> None:
    dice = random.Random(7)

    def noise(*, masks: bool) -> bytes:
        out = b""
        for _ in range(dice.randrange(6)):
            mask = dice.randbytes(4) if masks else b""
            sound = frame(dice.choice([0, 1, 2, 9, 10]), dice.randbytes(dice.choice([0, 5, 125, 300])), mask=mask)
            out += sound if dice.random() < 0.7 else dice.randbytes(dice.randrange(1, 40))
        return out[: dice.randrange(len(out) + 1)] if dice.random() < 0.5 else out

    async def test() -> None:
        engines = Engines()
        async with stand(engines.script, websocket={"message_bytes": 1000}) as s:
            for count in range(1, 61):
                socket, _, _ = await dial(s)
                engine = await engines.next()
                ends = [socket, engine]
                dice.shuffle(ends)
                for end in ends:
                    await end.raw(noise(masks=end is socket))
                await asyncio.sleep(dice.choice([0, 0.002]))
                ends[0].kill()
                record = await s.record(count)
                assert record.outcome in (OutcomeKind.CANCELLED, OutcomeKind.FAILED)
                ends[1].kill()
            assert s.gateway.in_flight == {}

    run(test())


class Broken(FrameWatcher):
    def feed(self, data: bytes, now: int) -> bytes:
        if b"break" in data:
            raise ValueError(data)
        return super().feed(data, now)


def test_a_fault_of_ours_ends_the_session_like_any_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tailrace.gateway.session.FrameWatcher", Broken)

    async def test() -> None:
        engines = Engines()
        async with stand(engines.script) as s:
            socket, _, _ = await dial(s)
            engine = await engines.next()
            await engine.send(TEXT, b"break")
            assert await socket.ended()
            assert await engine.ended()
            assert (await s.record()).outcome is OutcomeKind.FAILED
            assert "could not be relayed" in caplog.text

    run(test())


class Heard:
    def __init__(self) -> None:
        self.texts: list[bytes] = []

    def text(self, message: bytes, now: int, *, compressed: bool) -> None:
        assert now > 0
        assert not compressed
        self.texts.append(message)
        if message == b"break":
            raise ValueError(message)


def test_a_composition_may_listen_and_its_failure_is_its_own(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        engines = Engines()
        async with stand(engines.script) as s:
            client_said, engine_said = Heard(), Heard()
            s.gateway.listeners = lambda session: (client_said, engine_said)
            socket, _, _ = await dial(s)
            engine = await engines.next()
            for message in (b'{"type": "a"}', b"break", b"unheard"):
                await socket.send(TEXT, message)
                assert (await engine.next())[1] == message
            await engine.send(TEXT, b"hel", fin=False)
            await engine.send(0, b"lo")
            await socket.next()
            await socket.next()
            assert client_said.texts == [b'{"type": "a"}', b"break"]
            assert engine_said.texts == [b"hello"]
            assert "observer failed" in caplog.text

    run(test())


def test_a_session_is_among_the_streams() -> None:
    async def test() -> None:
        engines = Engines()
        async with stand(engines.script) as s:
            socket, _, _ = await dial(s, "/v1/realtime?model=m")
            engine = await engines.next()
            for _ in range(2):
                await socket.send(TEXT, b"hello")
                await engine.next()
            await asyncio.sleep(0.02)
            view = s.gateway.streams()[0]
            assert (view["endpoint"], view["model"], view["stage"]) == ("/v1/realtime", "m", "decode")
            assert view["messages"] == {"client": 2, "engine": 0}
            assert view["silent_ms"] > 10
            assert s.gateway.live()["in_flight"] == 1

    run(test())
