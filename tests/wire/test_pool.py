"""Connections to the engine: reused, dropped before the engine drops them, resent once, never shared."""

from __future__ import annotations

import asyncio
import os
import socket

from tailrace.model.outcome import OutcomeKind, Reason
from tests.wire.client import chat_body, request
from tests.wire.scripted import DONE, Incoming, finish, token
from tests.wire.stand import Stand, run, stand


def hang_up(incoming: Incoming) -> None:
    """The engine closes now, not when its event loop comes to it."""
    with socket.socket(fileno=os.dup(incoming.writer.get_extra_info("socket").fileno())) as own:
        own.shutdown(socket.SHUT_RDWR)


def arrives(s: Stand, data: bytes) -> None:
    """The gateway reads `data` from its client before it looks at anything else."""
    (connection,) = s.gateway.connections
    connection.data_received(data)


def test_a_request_that_crosses_the_engines_close_is_sent_once_more() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.completion()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.ask(request(chat_body(stream=False, n=1)))
            hang_up(s.engine.requests[0])
            arrives(s, request(chat_body(stream=False, n=2)))
            assert len(s.gateway.pool.open) == 1  # on its way, on a connection that is no more
            reply = await client.reply()
            assert reply.status == 200
            record = await s.record(2)
            assert (record.attempts, record.retries) == (2, 1)
            assert record.outcome is OutcomeKind.COMPLETED
            assert record.connection_reused is False
            assert [incoming.json["n"] for incoming in s.engine.requests] == [1, 2]
            assert s.engine.requests[1].headers["x-request-id"] == record.request_id

    run(test())


def test_a_request_that_the_engine_never_read_is_sent_once_more() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.completion()
        if incoming.json["n"] == 1:
            incoming.writer.transport.pause_reading()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.ask(request(chat_body(stream=False, n=1)))
            await client.send(request(chat_body(stream=False, n=2)))
            await s.until(lambda: len(s.gateway.in_flight) == 1)
            await asyncio.sleep(0.02)
            s.engine.requests[0].abort()  # with bytes unread: the kernel resets
            assert (await client.reply()).status == 200
            assert (await s.record(2)).attempts == 2

    run(test())


def test_a_request_that_the_engine_took_is_not_sent_again_when_it_hangs_up() -> None:
    async def script(incoming: Incoming) -> None:
        if incoming.json["n"] == 1:
            await incoming.completion()
        else:
            incoming.abort()  # it has the request: whether it acted on it nobody knows

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.ask(request(chat_body(stream=False, n=1)))
            reply = await client.ask(request(chat_body(stream=False, n=2)))
            assert reply.status == 502
            assert len(s.engine.requests) == 2
            record = await s.record(2)
            assert (record.reason, record.attempts) == (Reason.STREAM_CUT, 1)

    run(test())


def test_the_second_connection_that_dies_is_the_last() -> None:
    async def script(incoming: Incoming) -> None:
        if incoming.json["n"] == 1:
            await incoming.completion()
        else:
            incoming.abort()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.ask(request(chat_body(stream=False, n=1)))
            hang_up(s.engine.requests[0])
            arrives(s, request(chat_body(stream=False, n=2)))
            assert (await client.reply()).status == 502
            record = await s.record(2)
            assert (record.reason, record.attempts) == (Reason.STREAM_CUT, 2)

    run(test())


def test_a_fresh_connection_that_dies_is_not_tried_again() -> None:
    async def script(incoming: Incoming) -> None:
        incoming.abort()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            reply = await client.ask(request(chat_body(stream=False)))
            assert reply.status == 502
            assert len(s.engine.requests) == 1
            record = await s.record()
            assert (record.reason, record.attempts) == (Reason.STREAM_CUT, 1)

    run(test())


def test_a_connection_that_died_after_a_byte_is_not_tried_again() -> None:
    async def script(incoming: Incoming) -> None:
        if incoming.json["n"] == 1:
            await incoming.completion()
        else:
            await incoming.send(b"HTTP/1.1 2")
            await asyncio.sleep(0.01)
            incoming.abort()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.ask(request(chat_body(stream=False, n=1)))
            assert (await client.ask(request(chat_body(stream=False, n=2)))).status == 502
            assert len(s.engine.requests) == 2

    run(test())


def test_an_idle_connection_is_dropped_before_the_engine_does() -> None:
    async def test() -> None:
        async with stand(upstream_keepalive="200ms") as s:
            client = await s.client()
            await client.ask(request(chat_body()))
            await asyncio.sleep(0.1)
            await client.ask(request(chat_body()))
            await asyncio.sleep(0.3)
            await client.ask(request(chat_body()))
            first, second, third = (incoming.connection for incoming in s.engine.requests)
            assert first == second != third

    run(test())


def test_the_engines_own_keep_alive_shortens_ours() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.reply({}, extra=b"Keep-Alive: timeout=1, max=100\r\n")

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            for _ in range(2):
                await client.ask(request(chat_body(stream=False)))
            first, second = (incoming.connection for incoming in s.engine.requests)
            assert first != second

    run(test())


def test_connection_close_of_the_engine_is_obeyed() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.reply({}, extra=b"Connection: close\r\n")
        incoming.writer.close()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            for _ in range(3):
                assert (await client.ask(request(chat_body(stream=False)))).status == 200
            await s.record(3)
            assert {record.retries for record in s.records.all} == {0}

    run(test())


def test_an_engine_that_closes_while_idle_is_noticed() -> None:
    async def test() -> None:
        async with stand() as s:
            s.engine.close_after = lambda _: True
            client = await s.client()
            for _ in range(3):
                assert (await client.ask(request(chat_body()))).status == 200
                await s.until(lambda: not s.gateway.pool.idle)
            await s.record(3)
            assert {record.retries for record in s.records.all} == {0}

    run(test())


def test_the_pool_is_bounded() -> None:
    async def script(incoming: Incoming) -> None:
        await asyncio.sleep(0.3)
        await incoming.completion()

    async def test() -> None:
        async with stand(script) as s:
            s.gateway.pool.limit = 3
            replies = await asyncio.gather(*(s.ask(request(chat_body(stream=False))) for _ in range(6)))
            assert sorted(reply.status for reply in replies) == [200, 200, 200, 503, 503, 503]
            await s.record(6)
            assert {record.reason for record in s.records.all} == {Reason.NONE, Reason.NO_BACKEND}

    run(test())


def test_a_request_that_the_engine_had_for_long_is_not_sent_again() -> None:
    async def script(incoming: Incoming) -> None:
        if incoming.json["n"] == 2:
            await asyncio.sleep(1.2)
            incoming.abort()
            return
        await incoming.completion()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.ask(request(chat_body(stream=False, n=1)))
            reply = await client.ask(request(chat_body(stream=False, n=2)))
            assert reply.status == 502
            assert len(s.engine.requests) == 2
            assert (await s.record(2)).attempts == 1

    run(test())


def test_a_client_that_leaves_while_its_connection_is_made_leaves_none_behind() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script) as s:
            for turn in range(60):
                client = await s.client()
                await s.until(lambda: bool(s.gateway.connections))
                arrives(s, request(chat_body()))
                for _ in range(turn % 12):
                    await asyncio.sleep(0)
                (connection,) = s.gateway.connections
                connection.eof_received()
                connection.abort()
                await s.until(lambda: not s.gateway.connections)
                client.abort()
            await s.until(lambda: not s.gateway.pool.open)

    run(test())


def test_trailers_without_end_do_not_fill_the_memory() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.sse(token(), finish(), DONE)
        await incoming.send(b"0\r\n" + b"X-T: yyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n" * 20_000)
        await incoming.until_gone()
        gone.append(incoming)

    gone: list[Incoming] = []

    async def test() -> None:
        async with stand(script) as s:
            reply = await s.ask(request(chat_body()))
            assert reply.body.endswith(DONE)
            assert (await s.record()).outcome is OutcomeKind.COMPLETED
            await s.until(lambda: bool(gone))

    run(test())


def test_clients_that_leave_while_their_connection_is_made_leave_none_behind() -> None:
    async def test() -> None:
        async with stand() as s:
            pool = s.gateway.pool
            for turns in range(12):
                clients = [await s.client() for _ in range(10)]
                for client in clients:
                    await client.send(request(chat_body()))
                for _ in range(turns):  # somewhere here the connections are made, and not yet handed over
                    await asyncio.sleep(0)
                for client in clients:
                    client.abort()
                await s.until(lambda: not s.gateway.in_flight)
                await s.until(lambda: pool.open == set(pool.idle))

    run(test())
