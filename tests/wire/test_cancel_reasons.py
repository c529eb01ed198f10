"""Every reason for a cancel: the engine is let go at once, the client is told where it can be, the record says it."""

from __future__ import annotations

import asyncio
import time

import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tests.wire.client import chat_body, request
from tests.wire.scripted import SSE_HEAD, Incoming, token
from tests.wire.stand import Stand, run, stand
from tests.wire.test_admin import admin_of

NOTICED_S = 0.05


class Hanging:
    """An engine that answers with `tokens` tokens (none: not even a head) and then stays silent."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.gone: list[float] = []

    async def __call__(self, incoming: Incoming) -> None:
        if self.tokens:
            await incoming.sse(*[token()] * self.tokens)
        await incoming.until_gone(12)
        self.gone.append(time.monotonic())


async def _in_flight(s: Stand) -> str:
    await s.until(lambda: bool(s.engine.requests))
    await asyncio.sleep(0.05)
    (request_id,) = s.gateway.in_flight
    return request_id


async def _recorded(s: Stand, reason: Reason, stage: str) -> None:
    record = await s.record()
    assert (record.outcome, record.reason, record.died_in) == (OutcomeKind.CANCELLED, reason, stage)
    assert record.cancel_upstream_ns is not None
    assert record.cancel_upstream_ns < NOTICED_S * 1e9


@pytest.mark.parametrize("reason", [Reason.OPERATOR, Reason.BARGE_IN, Reason.EVICTED])
@pytest.mark.parametrize("tokens", [0, 2], ids=["prefill", "decode"])
def test_ended_from_outside(reason: Reason, tokens: int) -> None:
    engine = Hanging(tokens)

    async def test() -> None:
        async with stand(engine) as s:
            client = await s.client()
            await client.send(request(chat_body()))
            request_id = await _in_flight(s)
            began = time.monotonic()
            assert s.gateway.cancel(request_id, reason, "for a test") == ("decode" if tokens else "prefill")
            reply = await client.reply()
            if tokens:
                assert (reply.status, reply.tokens, reply.end) == (200, 2, "chunked")
                error = reply.error
                assert b"[DONE]" not in reply.body
            else:
                assert reply.status == (503 if reason is Reason.EVICTED else 499)
                error = reply.json["error"]
            assert error is not None
            assert (error["reason"], error["message"], error["request_id"]) == (reason.value, "for a test", request_id)
            await s.until(lambda: bool(engine.gone))
            assert engine.gone[0] - began < NOTICED_S
            await _recorded(s, reason, "decode" if tokens else "prefill")
            # Its client keeps its connection.
            engine.tokens = 1
            await client.send(request(chat_body()))
            assert (await client.head()).status == 200

    run(test())


def test_an_operator_ends_a_request_in_the_queue_and_it_is_never_sent() -> None:
    engine = Hanging(1)

    async def test() -> None:
        async with stand(engine, lanes=[{"name": "default", "running": 1}]) as s, admin_of(s.gateway) as admin:
            first, second = await s.client(), await s.client()
            await first.send(request(chat_body()))
            await s.until(lambda: bool(s.engine.requests))
            await second.send(request(chat_body()))
            await s.until(lambda: len(s.gateway.in_flight) == 2)
            queued = list(s.gateway.in_flight)[1]
            async with admin.session.delete(f"{admin.url}/streams/{queued}") as answer:
                assert answer.status == 200
                assert await answer.json() == {"cancelled": queued, "stage": "queue"}
            assert (await second.reply()).json["error"]["reason"] == "operator"
            record = await s.record()
            assert (record.reason, record.died_in, record.cancel_upstream_ns) == (Reason.OPERATOR, "queue", None)
            async with admin.session.delete(f"{admin.url}/streams/{queued}") as answer:
                assert answer.status == 404
            assert len(s.engine.requests) == 1
            _, cancels = await admin.get("/cancels")
            assert cancels == {"cancels": []}  # nothing of it had reached the engine

    run(test())


def test_an_operator_needs_the_token_or_the_loopback_name() -> None:
    engine = Hanging(1)

    async def test() -> None:
        async with stand(engine, admin_token="hush") as s, admin_of(s.gateway) as admin:
            client = await s.client()
            await client.send(request(chat_body()))
            url = f"{admin.url}/streams/{await _in_flight(s)}"
            async with admin.session.delete(url) as answer:
                assert answer.status == 401
            assert s.gateway.in_flight
            async with admin.session.delete(url, headers={"Authorization": "Bearer hush"}) as answer:
                assert answer.status == 200
            _, cancels = await admin.get("/cancels", headers={"Authorization": "Bearer hush"})
            assert [cancel["reason"] for cancel in cancels["cancels"]] == ["operator"]
        async with stand(engine) as s, admin_of(s.gateway) as admin:
            answer = await admin.session.delete(f"{admin.url}/streams/x", headers={"Host": "evil.example"})
            assert answer.status == 403
            answer.release()

    run(test())


def test_a_request_behind_another_cannot_be_ended_alone() -> None:
    engine = Hanging(1)

    async def test() -> None:
        async with stand(engine) as s, admin_of(s.gateway) as admin:
            client = await s.client()
            await client.send(request(chat_body()) * 2)
            await s.until(lambda: len(s.gateway.in_flight) == 2)
            front, behind = s.gateway.in_flight
            async with admin.session.delete(f"{admin.url}/streams/{behind}") as answer:
                assert answer.status == 400
            assert len(s.gateway.in_flight) == 2
            async with admin.session.delete(f"{admin.url}/streams/{front}") as answer:
                assert answer.status == 200
            # The one behind goes on.
            await s.until(lambda: len(s.engine.requests) == 2)

    run(test())


def test_a_deadline_counts_from_its_own_instant() -> None:
    engine = Hanging(1)

    async def test() -> None:
        async with stand(engine) as s:
            reply = await s.ask(request(chat_body(), headers={"X-Deadline-Ms": "200"}))
            assert reply.error is not None
            assert reply.error["reason"] == "deadline"
            record = await s.record()
            assert record.cancel_upstream_ns is not None
            # Up to one sweep late, and never before it has passed.
            assert 0 <= record.cancel_upstream_ns < 150e6
            assert record.e2e_ns >= 200e6

    run(test())


@pytest.mark.parametrize("deadline", ["0", "1"])
def test_a_deadline_that_has_passed_is_never_admitted(deadline: str) -> None:
    async def test() -> None:
        lanes = [{"name": "chat", "match": {"stream": True}}]
        async with stand(Hanging(1), lanes=lanes) as s:
            client = await s.client()
            whole = request(chat_body(), headers={"X-Deadline-Ms": deadline})
            await client.send(whole[:-5])
            await asyncio.sleep(0.01)  # the body is whole only after the deadline
            reply = await client.ask(whole[-5:])
            assert (reply.status, reply.json["error"]["reason"]) == (504, "deadline")
            record = await s.record()
            assert (record.outcome, record.reason, record.died_in) == (
                OutcomeKind.CANCELLED,
                Reason.DEADLINE,
                "ingress",
            )
            assert record.lane == "chat"
            assert record.queue_ns is None
            assert s.engine.requests == []
            assert s.gateway.lanes.snapshot(0)["chat"]["finished"] == 0

    run(test())


def test_a_deadline_that_passes_in_the_queue_is_not_admitted_by_a_place_that_comes_free() -> None:
    free = asyncio.Event()

    async def script(incoming: Incoming) -> None:
        await free.wait()
        await incoming.completion()

    async def test() -> None:
        async with stand(script, lanes=[{"name": "default", "running": 1}]) as s:
            first, second = await s.client(), await s.client()
            await first.send(request(chat_body(stream=False)))
            await s.until(lambda: bool(s.engine.requests))
            await second.send(request(chat_body(stream=False), headers={"X-Deadline-Ms": "30"}))
            await s.until(lambda: len(s.gateway.in_flight) == 2)
            assert s.gateway._tick is not None
            s.gateway._tick.cancel()  # no sweep comes between the deadline and the place
            await asyncio.sleep(0.05)
            free.set()
            assert (await second.reply()).json["error"]["reason"] == "deadline"
            assert (await first.reply()).status == 200
            assert len(s.engine.requests) == 1
            await s.record(2)
            assert {record.reason for record in s.records.all} == {Reason.NONE, Reason.DEADLINE}

    run(test())


def test_a_write_that_fails_is_told_from_a_client_that_leaves() -> None:
    engine_goes_on = asyncio.Event()
    gone: list[float] = []

    async def script(incoming: Incoming) -> None:
        await incoming.sse(token())
        await engine_goes_on.wait()
        for _ in range(200):
            await incoming.chunks(token())
            await asyncio.sleep(0.01)
            if incoming.reader.at_eof():
                break
        gone.append(time.monotonic())

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            # So many behind one another that we stop reading: the client's end is then seen only by writing to it.
            await client.send(request(chat_body()) * 40)
            await s.until(lambda: any(connection._reading_paused for connection in s.gateway.connections))
            # As where no kernel tells of a client that leaves unread.
            (connection,) = s.gateway.connections
            s.gateway.hangups.forget(connection._watched_fd, connection)
            await client.head()
            await client.next_chunk()
            client.close()
            engine_goes_on.set()
            await s.until(lambda: bool(s.records.all))
            first = s.records.all[0]
            assert (first.outcome, first.reason) == (OutcomeKind.CANCELLED, Reason.CLIENT_WRITE_FAILED)
            assert first.died_in == "decode"
            await s.until(lambda: not s.gateway.in_flight)
            assert len(s.engine.requests) == 1
            await s.until(lambda: bool(gone))

    run(test())


def test_shutdown_says_how_long_it_took() -> None:
    engine = Hanging(2)

    async def test() -> None:
        async with stand(engine) as s:
            client = await s.client()
            await client.send(request(chat_body()))
            await _in_flight(s)
            assert await s.gateway.close(0.05) == 1
            reply = await client.reply()
            assert reply.tokens == 2
            assert reply.error is not None
            assert reply.error["reason"] == "shutdown"
            await _recorded(s, Reason.SHUTDOWN, "decode")

    run(test())


def test_a_head_that_is_still_held_becomes_the_real_status() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script) as s:
            client = await s.client()
            await client.send(request(chat_body()))
            await s.until(lambda: bool(s.engine.requests))
            await asyncio.sleep(0.03)
            (request_id,) = s.gateway.in_flight
            s.gateway.cancel(request_id, Reason.OPERATOR, "for a test")
            reply = await client.reply()
            assert (reply.status, reply.end) == (499, "length")
            assert reply.json["error"]["reason"] == "operator"

    run(test())
