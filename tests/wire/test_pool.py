"""Connections to the engine: reused, dropped before the engine drops them, resent once, never shared."""

from __future__ import annotations

import asyncio
import os
import socket

from tailrace.model.outcome import OutcomeKind, Reason
from tests.wire.client import chat_body, request
from tests.wire.scripted import DONE, Incoming, ScriptedEngine, deaf_listener, finish, token
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
            assert len(s.gateway.backends.first.pool.open) == 1  # on its way, on a connection that is no more
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


def test_a_goodbye_that_crosses_a_request_costs_it_nothing() -> None:
    """An engine that says goodbye before it closes: its kernel acknowledges what nobody reads any more."""
    seen: list[int] = []

    async def script(incoming: Incoming) -> None:
        seen.append(incoming.json["n"])
        if seen == [1, 2]:
            incoming.abort()
        else:
            await incoming.completion()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.ask(request(chat_body(stream=False, n=1)))
            assert (await client.ask(request(chat_body(stream=False, n=2)))).status == 200
            assert seen == [1, 2, 2]
            assert (await s.record(2)).attempts == 2

    run(test())


def test_a_request_that_the_engine_worked_on_is_not_sent_again_when_it_hangs_up() -> None:
    async def script(incoming: Incoming) -> None:
        if incoming.json["n"] == 1:
            await incoming.completion()
        else:
            await asyncio.sleep(0.15)
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
                await s.until(lambda: not s.gateway.backends.first.pool.idle)
            await s.record(3)
            assert {record.retries for record in s.records.all} == {0}

    run(test())


def test_the_pool_is_bounded_and_who_waits_for_it_is_served_in_order() -> None:
    most = 0

    async def script(incoming: Incoming) -> None:
        nonlocal most
        most = max(most, sum(request.gone_at is None for request in s_engine[0].requests))
        await asyncio.sleep(0.1)
        incoming.gone_at = 0.0
        await incoming.completion()

    s_engine: list[ScriptedEngine] = []

    async def test() -> None:
        async with stand(script, limits={"upstream_connections": 3}) as s:
            s_engine.append(s.engine)
            clients = [await s.client() for _ in range(7)]
            for number, client in enumerate(clients):
                await client.send(request(chat_body(stream=False, number=number)))
                await s.until(lambda number=number: len(s.gateway.in_flight) == number + 1)
            replies = await asyncio.gather(*(client.reply() for client in clients))
            assert {reply.status for reply in replies} == {200}
            assert [incoming.json["number"] for incoming in s.engine.requests] == list(range(7))
            assert most == 3
            assert len({incoming.connection for incoming in s.engine.requests}) <= 3
            await s.record(7)
            waits = [record.pool_wait_ns for record in sorted(s.records.all, key=lambda one: one.start_unix_ns)]
            assert waits[:3] == [None] * 3
            assert all(wait is not None and wait > 20e6 for wait in waits[3:])
            assert [record.connection_reused for record in s.records.all] == [False] * 3 + [True] * 4
            for record in s.records.all:
                assert (record.queue_ns or 0) >= (record.pool_wait_ns or 0)
                assert (record.queue_gateway_ns or 0) < 20e6  # the lane had a place at once

    run(test())


def test_waiting_for_a_connection_ends_with_the_queue_budget() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script, limits={"upstream_connections": 1}, budgets={"queue": "200ms"}) as s:
            first = await s.client()
            await first.send(request(chat_body()))
            await s.until(lambda: bool(s.engine.requests))
            reply = await s.ask(request(chat_body()))
            assert reply.status == 429
            assert int(reply.headers["retry-after"]) >= 1
            assert (reply.json["error"]["reason"], reply.json["error"]["stage"]) == ("queue_timeout", "queue")
            record = await s.record()
            assert (record.outcome, record.budget, record.died_in) == (OutcomeKind.TIMED_OUT, "queue", "queue")
            assert 200e6 <= record.e2e_ns < 450e6
            assert record.pool_wait_ns is None  # it never had one
            assert not s.gateway.backends.first.pool.line

    run(test())


def test_a_client_that_leaves_while_it_waits_for_a_connection_is_never_sent() -> None:
    async def script(incoming: Incoming) -> None:
        await asyncio.sleep(0.15)
        await incoming.completion()

    async def test() -> None:
        async with stand(script, limits={"upstream_connections": 1}) as s:
            first, second, third = [await s.client() for _ in range(3)]
            for number, client in enumerate((first, second, third)):
                await client.send(request(chat_body(stream=False, number=number)))
                await s.until(lambda number=number: len(s.gateway.in_flight) == number + 1)
            second.abort()
            assert (await third.reply()).status == 200
            assert [incoming.json["number"] for incoming in s.engine.requests] == [0, 2]
            await s.record(3)
            cancelled = next(record for record in s.records.all if record.outcome is OutcomeKind.CANCELLED)
            assert (cancelled.died_in, cancelled.cancel_upstream_ns) == ("queue", None)

    run(test())


def test_a_connection_that_dies_makes_room_for_one_that_waits() -> None:
    async def script(incoming: Incoming) -> None:
        if incoming.json["number"] == 0:
            await asyncio.sleep(0.1)
            incoming.abort()
        else:
            await incoming.completion()

    async def test() -> None:
        async with stand(script, limits={"upstream_connections": 1}) as s:
            replies = await asyncio.gather(
                *(s.ask(request(chat_body(stream=False, number=number))) for number in range(3))
            )
            assert [reply.status for reply in replies] == [502, 200, 200]

    run(test())


def test_nobody_waits_for_ever_where_no_connection_can_be_made() -> None:
    async def test() -> None:
        with deaf_listener() as url:
            options = {"limits": {"upstream_connections": 1}, "connect_timeout": "200ms"}
            async with stand(backends=[{"url": url}], **options) as s:
                replies = await asyncio.gather(*(s.ask(request(chat_body())) for _ in range(3)))
                assert {reply.status for reply in replies} == {503}
                await s.record(3)
                assert {record.reason for record in s.records.all} == {Reason.ENGINE_UNREACHABLE}

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
            await s.until(lambda: not s.gateway.backends.first.pool.open)

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
            pool = s.gateway.backends.first.pool
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
