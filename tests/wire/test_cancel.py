"""A client that leaves stops everything that was done for it, at once, in every state."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import struct
import time

import pytest

from tailrace.gateway.exchange import GatewayExchange
from tailrace.measure.meter import StreamMeter
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.model.record import broken_invariants
from tests.wire.client import RawClient, chat_body, request
from tests.wire.scripted import DONE, SSE_HEAD, Incoming, deaf_listener, event, finish, token
from tests.wire.stand import Stand, run, stand

NOTICED_S = 0.05
ONE_LANE = [{"name": "default", "running": 1, "queued": 500}]


def _leave(client: RawClient, how: str) -> float:
    if how == "reset":
        sock = client.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.abort()
    elif how == "half":
        client.writer.write_eof()
    else:
        client.abort()
    return time.monotonic()


async def _cancelled(s: Stand, stage: str) -> None:
    record = await s.record()
    assert (record.outcome, record.reason) == (OutcomeKind.CANCELLED, Reason.CLIENT_DISCONNECT)
    assert record.died_in == stage
    assert not s.gateway.in_flight


@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_in_mid_stream(how: str) -> None:
    gone: list[float] = []

    async def script(incoming: Incoming) -> None:
        await incoming.sse(token(), token())
        await incoming.until_gone()
        gone.append(time.monotonic())

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.send(request(chat_body()))
            await client.head()
            await client.next_chunk()
            left = _leave(client, how)
            await s.until(lambda: bool(gone))
            assert gone[0] - left < NOTICED_S
            await _cancelled(s, "decode")
            assert s.records.all[0].output_tokens == 2
            assert s.records.all[0].timeline is not None

    run(test())


@pytest.mark.parametrize("head", [b"", SSE_HEAD], ids=["before_head", "before_first_token"])
def test_before_the_first_token(head: bytes) -> None:
    gone: list[float] = []

    async def script(incoming: Incoming) -> None:
        await incoming.send(head)
        await incoming.until_gone()
        gone.append(time.monotonic())

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.send(request(chat_body()))
            await s.until(lambda: bool(s.engine.requests))
            await asyncio.sleep(0.05)
            left = _leave(client, "close")
            await s.until(lambda: bool(gone))
            assert gone[0] - left < NOTICED_S
            await _cancelled(s, "prefill")
            assert s.records.all[0].ttft_ns is None

    run(test())


def test_while_an_answer_in_one_piece_is_computed() -> None:
    gone: list[float] = []

    async def script(incoming: Incoming) -> None:
        await incoming.until_gone()
        gone.append(time.monotonic())

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.send(request(chat_body(stream=False)))
            await s.until(lambda: bool(s.engine.requests))
            left = _leave(client, "close")
            await s.until(lambda: bool(gone))
            assert gone[0] - left < NOTICED_S
            await _cancelled(s, "prefill")

    run(test())


def test_in_the_queue_it_is_never_sent() -> None:
    free = asyncio.Event()

    async def script(incoming: Incoming) -> None:
        if not free.is_set():
            await free.wait()
        await incoming.completion()

    async def test() -> None:
        async with stand(script, lanes=ONE_LANE) as s:
            first, second, third = [await s.client() for _ in range(3)]
            await first.send(request(chat_body(stream=False, who=1)))
            await s.until(lambda: len(s.engine.requests) == 1)
            await second.send(request(chat_body(stream=False, who=2)))
            await third.send(request(chat_body(stream=False, who=3)))
            await s.until(lambda: s.gateway.lanes.snapshot(0)["default"]["queued"] == 2)
            _leave(second, "close")
            await _cancelled_in_queue(s)
            free.set()
            assert (await first.reply()).status == 200
            assert (await third.reply()).status == 200
            assert [incoming.json["who"] for incoming in s.engine.requests] == [1, 3]

    run(test())


async def _cancelled_in_queue(s: Stand) -> None:
    record = await s.record()
    assert (record.outcome, record.died_in) == (OutcomeKind.CANCELLED, "queue")
    assert record.queue_gateway_ns is not None
    assert record.queue_engine_ns is None


def test_while_connecting() -> None:
    async def test() -> None:
        with deaf_listener() as url:
            async with stand(backends=[{"url": url}], connect_timeout="10s") as s:
                client = await s.client()
                await client.send(request(chat_body()))
                await s.until(lambda: len(s.gateway.in_flight) == 1)
                await asyncio.sleep(0.05)
                _leave(client, "close")
                record = await s.record()
                assert (record.outcome, record.died_in) == (OutcomeKind.CANCELLED, "queue")
                assert not s.gateway.backends.first.pool._connecting

    run(test())


def test_in_the_upload() -> None:
    async def test() -> None:
        async with stand() as s:
            client = await s.client()
            await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
            await s.until(lambda: len(s.gateway.in_flight) == 1)
            _leave(client, "close")
            await _cancelled(s, "ingress")
            assert s.engine.requests == []

    run(test())


@pytest.mark.parametrize(
    "begun",
    [
        b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"mod',
        b"Content-Length: 100\r\nExpect: 100-continue\r\n\r\n",
    ],
    ids=["chunked", "expecting_100"],
)
def test_in_an_upload_of_any_kind(begun: bytes) -> None:
    async def test() -> None:
        async with stand() as s:
            client = await s.client()
            await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n" + begun)
            await s.until(lambda: len(s.gateway.in_flight) == 1)
            left = _leave(client, "close")
            await s.until(lambda: not s.gateway.in_flight)
            assert time.monotonic() - left < NOTICED_S
            await _cancelled(s, "ingress")
            assert s.engine.requests == []

    run(test())


@pytest.mark.parametrize("tokens", [0, 2], ids=["prefill", "decode"])
def test_while_the_gateway_drains(tokens: int) -> None:
    gone: list[float] = []

    async def script(incoming: Incoming) -> None:
        if tokens:
            await incoming.sse(token(), token())
        await incoming.until_gone()
        gone.append(time.monotonic())

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.send(request(chat_body()))
            await s.until(lambda: bool(s.engine.requests))
            await asyncio.sleep(0.03)
            closing = asyncio.ensure_future(s.gateway.close(10.0))
            await asyncio.sleep(0.05)
            left = _leave(client, "close")
            await s.until(lambda: bool(gone))
            assert gone[0] - left < NOTICED_S
            # Nothing is left to wait for: the drain is over, and it cut nobody.
            assert await closing == 0
            assert time.monotonic() - left < 1
            await _cancelled(s, "decode" if tokens else "prefill")

    run(test())


def test_while_it_takes_the_rest_of_an_answer_that_the_engine_has_ended() -> None:
    piece = token("x" * 4000)

    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        await incoming.send(b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for _ in range(60)))
        await incoming.chunks(finish(), DONE)
        await incoming.end()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client(receive_buffer=8192)
            await client.send(request(chat_body()))
            await s.until(lambda: [view["stage"] for view in s.gateway.streams()] == ["response"])
            assert s.gateway.lanes.snapshot(0)["default"]["running"] == 0
            left = _leave(client, "close")
            await s.until(lambda: not s.gateway.in_flight)
            assert time.monotonic() - left < NOTICED_S
            record = await s.record()
            assert (record.outcome, record.died_in) == (OutcomeKind.CANCELLED, "response")
            assert record.cancel_upstream_ns is None  # the engine had ended long before

    run(test())


def test_in_decode_with_another_behind_it() -> None:
    gone: list[float] = []

    async def script(incoming: Incoming) -> None:
        await incoming.sse(token())
        await incoming.until_gone()
        gone.append(time.monotonic())

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.send(request(chat_body()) * 2)
            await client.head()
            await client.next_chunk()
            left = _leave(client, "close")
            await s.until(lambda: bool(gone))
            assert gone[0] - left < NOTICED_S
            await s.record(2)
            assert [record.died_in for record in s.records.all] == ["decode", "ingress"]
            assert len(s.engine.requests) == 1

    run(test())


def test_pipelined_requests_of_a_client_that_left_are_never_sent() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.send(request(chat_body()) * 3)
            await s.until(lambda: len(s.gateway.in_flight) == 3)
            _leave(client, "close")
            await s.record(3)
            assert {record.outcome for record in s.records.all} == {OutcomeKind.CANCELLED}
            assert len(s.engine.requests) == 1

    run(test())


def test_a_hundred_at_once_leave_nothing_behind() -> None:
    async def script(incoming: Incoming) -> None:
        kind = incoming.json["kind"] % 3
        if kind == 0:
            await incoming.sse(token())
        elif kind == 1:
            await incoming.send(SSE_HEAD)
        await incoming.until_gone(15)

    async def test() -> None:
        lanes = [{"name": "default", "running": 60, "queued": 100}]
        async with stand(script, lanes=lanes) as s:
            clients = [await s.client() for _ in range(100)]
            for kind, client in enumerate(clients):
                await client.send(request(chat_body(kind=kind, stream=kind % 5 != 0)))
            await s.until(lambda: len(s.engine.requests) >= 60)
            for client in clients:
                _leave(client, "close")
            await s.record(100)
            assert {record.outcome for record in s.records.all} == {OutcomeKind.CANCELLED}
            assert len({record.request_id for record in s.records.all}) == 100
            await s.until(lambda: s.engine.open <= 1)  # the one that asked for /metrics may linger
            lane = s.gateway.lanes.snapshot(0)["default"]
            assert (lane["running"], lane["queued"]) == (0, 0)

    run(test())


def test_nothing_is_left_of_hundreds_that_ended_in_every_way() -> None:
    async def script(incoming: Incoming) -> None:
        how = incoming.json["how"]
        if how == "abort":
            incoming.abort()
        elif how == "hang":
            await incoming.sse(token())
            await incoming.until_gone()
        elif how == "error":
            await incoming.reply({"error": {"message": "x"}}, 500)
        else:
            await incoming.stream()

    async def one(s: Stand, how: str) -> None:
        client = await RawClient.connect(s.gateway.url)
        await client.send(request(chat_body(how=how)))
        if how == "hang":
            await client.head()
            client.abort()
        else:
            await client.reply()
            client.close()

    async def test() -> None:
        async with stand(script, lanes=[{"name": "default", "running": 8, "queued": 100}]) as s:
            hows = ["fine", "hang", "abort", "error", "fine", "hang", "fine"] * 60
            for start in range(0, len(hows), 20):
                await asyncio.gather(*(one(s, how) for how in hows[start : start + 20]))
            await s.record(len(hows))
            assert len({record.request_id for record in s.records.all}) == len(hows)
            await s.until(lambda: not s.gateway.connections)
            gc.collect()
            left = [thing for thing in gc.get_objects() if isinstance(thing, (GatewayExchange, StreamMeter))]
            assert left == []

    run(test())


def test_after_the_answer_it_is_no_cancel() -> None:
    async def test() -> None:
        async with stand() as s:
            client = await s.client()
            await client.ask(request(chat_body()))
            _leave(client, "reset")
            await asyncio.sleep(0.05)
            assert [record.outcome for record in s.records.all] == [OutcomeKind.COMPLETED]
            assert json.loads(s.engine.requests[0].body)["stream"] is True

    run(test())


def test_leaving_at_the_end_marker_is_no_cancel() -> None:
    """What the OpenAI SDK does, whether or not the engine has ended its message by then."""
    gone: list[float] = []

    async def script(incoming: Incoming) -> None:
        await incoming.sse(token(), token(), finish(), DONE)
        await incoming.until_gone()
        gone.append(time.monotonic())

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.send(request(chat_body()))
            await client.head()
            seen = b""
            while DONE not in seen:
                seen += await client.next_chunk()
            _leave(client, "close")
            record = await s.record()
            assert (record.outcome, record.died_in) == (OutcomeKind.COMPLETED, "")
            assert record.output_tokens == 2
            assert broken_invariants(record) == []
            await s.until(lambda: bool(gone))
            assert not s.gateway.in_flight

    run(test())


def test_leaving_between_finish_reason_and_end_marker_is_a_cancel() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.sse(token(), finish())
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.send(request(chat_body()))
            await client.head()
            seen = b""
            while b'"stop"' not in seen:
                seen += await client.next_chunk()
            _leave(client, "close")
            await _cancelled(s, "postprocess")

    run(test())


def test_leaving_after_an_error_event_and_its_end_marker_is_a_failure() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.sse(token(), event({"error": {"message": "boom", "code": 500}}), DONE)
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.send(request(chat_body()))
            await client.head()
            seen = b""
            while DONE not in seen:
                seen += await client.next_chunk()
            _leave(client, "close")
            assert (await s.record()).outcome is OutcomeKind.FAILED

    run(test())
