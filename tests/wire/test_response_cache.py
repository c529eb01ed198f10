"""The response cache on real sockets: what is given again is what was relayed, to whom it may be given, and when."""

from __future__ import annotations

import asyncio
import gc
import json
import os
from pathlib import Path
from typing import Any

import openai
import pytest

from tailrace.model.outcome import OutcomeKind, Reason
from tests.wire.client import CHAT, chat_body, request
from tests.wire.scripted import DONE, SSE_HEAD, Incoming, ScriptedEngine, finish, token, usage
from tests.wire.stand import Stand, run, stand

ALL: Any = {"routes": [{}]}


def ask(text: str = "hello", *, stream: bool = False, headers: dict[str, str] | None = None, **more: Any) -> bytes:
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, **more}
    return request(chat_body(stream=stream, **body), headers=headers)


class Engine:
    """Answers each request with its number, whole or as a stream, once it may."""

    def __init__(self, *, gap: float = 0.0, tokens: int = 5) -> None:
        self.gap, self.tokens = gap, tokens
        self.count = 0
        self.held: asyncio.Event | None = None
        self.gone: list[float] = []

    async def __call__(self, incoming: Incoming) -> None:
        self.count += 1
        number = self.count
        if self.held is not None:
            await self.held.wait()
        if not incoming.json.get("stream"):
            await incoming.completion(f"answer {number}")
            return
        await incoming.send(SSE_HEAD)
        for at in range(self.tokens):
            await incoming.chunks(token(f"{number}.{at}"))
            if self.gap:
                await asyncio.sleep(self.gap)
        await incoming.chunks(finish(), usage(7, self.tokens), DONE)
        await incoming.end()


def counters(s: Stand) -> dict[str, Any]:
    assert s.gateway.cache is not None
    return s.gateway.cache.view()


def with_cache(test: Any, engine: Any = None, cache: Any = ALL, **config: Any) -> None:
    async def both() -> None:
        async with stand(engine or Engine(), cache=cache, **config) as s:
            await test(s)
            await asyncio.sleep(0)
            cache_ = s.gateway.cache
            assert cache_ is None or cache_.in_flight() == 0

    run(both())


# -- given again


def test_a_whole_answer_is_given_again_byte_for_byte() -> None:
    async def test(s: Stand) -> None:
        first = await s.ask(ask())
        again = await s.ask(ask())
        assert (first.status, again.status) == (200, 200)
        assert again.body == first.body
        assert again.end == "length"
        assert again.headers["content-type"] == first.headers["content-type"]
        assert (first.headers["x-tailrace-cache"], again.headers["x-tailrace-cache"]) == ("miss", "hit; age=0")
        assert again.headers["x-request-id"] != first.headers["x-request-id"]
        assert len(s.engine.requests) == 1
        miss, hit = (await s.record(2), s.records.all)[1]
        assert (miss.cache, hit.cache) == ("miss", "hit")
        assert hit.outcome is OutcomeKind.COMPLETED
        assert (hit.output_tokens, hit.prompt_tokens, hit.finish_reason) == (2, 7, "stop")
        assert (hit.queue_ns, hit.prefill_ns, hit.decode_ns, hit.unattributed_ns) == (None,) * 4
        assert (hit.lane, hit.backend) == ("default", "")

    with_cache(test)


def test_a_stream_is_given_again_with_its_events_and_chunks() -> None:
    async def test(s: Stand) -> None:
        first = await s.ask(ask(stream=True))
        again = await s.ask(ask(stream=True))
        assert again.body == first.body
        assert first.tokens == 5
        assert [data for _, data in again.chunks] == [data for _, data in first.chunks]
        assert again.end == "chunked"
        assert again.headers["content-type"] == "text/event-stream"
        assert again.headers["x-tailrace-cache"] == "hit; age=0"
        assert len(s.engine.requests) == 1
        hit = (await s.record(2), s.records.all[1])[1]
        assert hit.ttft_ns is not None
        assert hit.ttft_ns <= hit.e2e_ns
        assert (hit.output_tokens, hit.tpot_ns) == (5, None)

    with_cache(test, Engine(gap=0.01))


def test_a_stream_and_a_whole_answer_are_two() -> None:
    async def test(s: Stand) -> None:
        for stream in (True, False, True, False):
            reply = await s.ask(ask(stream=stream))
            assert reply.headers["content-type"] == ("text/event-stream" if stream else "application/json")
        assert len(s.engine.requests) == 2

    with_cache(test)


def test_the_frame_that_only_we_asked_for_is_in_no_copy() -> None:
    async def test(s: Stand) -> None:
        plain = [await s.ask(ask(stream=True)) for _ in range(2)]
        asked = [await s.ask(ask(stream=True, stream_options={"include_usage": True})) for _ in range(2)]
        assert all(b'"usage"' not in reply.body for reply in plain)
        assert all(b'"usage"' in reply.body for reply in asked)
        assert len(s.engine.requests) == 2

    with_cache(test)


def test_the_sdk_reads_a_replayed_stream_like_the_first() -> None:
    async def test(s: Stand) -> None:
        async with openai.AsyncOpenAI(base_url=s.gateway.url + "/v1", api_key="k", max_retries=0) as sdk:
            said = []
            for _ in range(2):
                stream = await sdk.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "hi"}], temperature=0, stream=True
                )
                said.append([chunk.choices[0].delta.content async for chunk in stream if chunk.choices])
            assert said[0] == said[1]
            assert said[0][:2] == ["1.0", "1.1"]
            whole = [
                await sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], seed=3)
                for _ in range(2)
            ]
            assert whole[0] == whole[1]
        assert len(s.engine.requests) == 2
        await s.record(4)
        assert {record.outcome for record in s.records.all} == {OutcomeKind.COMPLETED}

    with_cache(test)


def test_embeddings_are_given_again() -> None:
    async def engine(incoming: Incoming) -> None:
        await incoming.reply({"object": "list", "data": [{"embedding": [0.1, 0.2]}], "usage": {"prompt_tokens": 2}})

    async def test(s: Stand) -> None:
        one = request(json.dumps({"model": "e", "input": "text"}).encode(), path="/v1/embeddings")
        other = request(json.dumps({"model": "e", "input": "other"}).encode(), path="/v1/embeddings")
        replies = [await s.ask(data) for data in (one, one, other)]
        assert [reply.headers["x-tailrace-cache"].split(";")[0] for reply in replies] == ["miss", "hit", "miss"]
        assert replies[0].body == replies[1].body

    with_cache(test, engine)


def test_an_old_client_gets_a_kept_stream_until_the_close() -> None:
    async def test(s: Stand) -> None:
        first = await s.ask(ask(stream=True))
        client = await s.client()
        again = await client.ask(ask(stream=True).replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert (again.body, again.end) == (first.body, "eof")

    with_cache(test)


def test_a_slow_reader_of_a_large_kept_answer_gets_all_of_it() -> None:
    async def test(s: Stand) -> None:
        first = await s.ask(ask(stream=True))
        client = await s.client(receive_buffer=4096)
        await client.send(ask(stream=True))
        await asyncio.sleep(0.2)
        again = await client.reply()
        assert again.body == first.body
        assert len(again.body) > 1 << 20
        await s.until(lambda: not s.gateway.in_flight)
        hit = (await s.record(2), s.records.all[1])[1]
        assert hit.client_blocked_ns > 0

    async def engine(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        for _ in range(40):
            await incoming.chunks(token("x" * 40_000))
        await incoming.chunks(finish(), DONE)
        await incoming.end()

    with_cache(test, engine)


# -- who, and when


def test_nobody_gets_another_s_answer() -> None:
    async def test(s: Stand) -> None:
        keys = [{"Authorization": "Bearer a"}, {"Authorization": "Bearer b"}, {"X-Api-Key": "a"}, {"Cookie": "a"}, {}]
        keys.append({"X-Tenant": "t", "Authorization": "Bearer a"})
        for headers in keys * 2:
            await s.ask(ask(headers=headers))
        assert len(s.engine.requests) == len(keys)
        assert counters(s)["hits"] == len(keys)

    with_cache(test, cache={"routes": [{}], "vary": ["x-tenant"]})


def test_no_part_of_what_tells_askers_apart_is_left_out() -> None:
    async def test(s: Stand) -> None:
        long = "t" * 300
        askers = [
            "X-Tenant: " + long + "a\r\n",
            "X-Tenant: " + long + "b\r\n",  # the ledger holds the beginning of a name
            "X-Tenant: a\r\nX-Tenant: b\r\n",  # the engine, or what is before it, may read the second
            "X-Tenant: a\r\nX-Tenant: c\r\n",
            "Cookie: lang=en\r\nCookie: session=1\r\n",  # as HTTP/2 splits them
            "Cookie: lang=en\r\nCookie: session=2\r\n",
        ]
        for lines in askers * 2:
            await s.ask(ask().replace(b"\r\n", b"\r\n" + lines.encode(), 1))
        assert len(s.engine.requests) == len(askers)
        assert counters(s)["hits"] == len(askers)

    with_cache(test, tenant_header="x-tenant")


def test_only_what_repeats_on_a_route_that_says_so_is_cached() -> None:
    async def test(s: Stand) -> None:
        bodies = [
            ask(model="m1"),  # the one that is
            ask(model="m1", temperature=0.5),
            ask(model="other"),
            request(json.dumps({"model": "m1", "prompt": "x", "temperature": 0}).encode(), path="/v1/completions"),
        ]
        for data in bodies * 2:
            reply = await s.ask(data)
            assert ("x-tailrace-cache" in reply.headers) == (data is bodies[0])
        assert len(s.engine.requests) == 7

    with_cache(test, cache={"routes": [{"paths": [CHAT], "models": ["m*"]}]})


def test_what_a_client_says_about_caches_is_heard() -> None:
    async def test(s: Stand) -> None:
        never = {"Cache-Control": "no-store"}
        await s.ask(ask(headers=never))
        assert counters(s)["entries"] == 0
        first = await s.ask(ask())
        fresh = await s.ask(ask(headers={"Cache-Control": "no-cache"}))
        assert fresh.body != first.body
        assert (await s.ask(ask())).body == fresh.body  # the fresh one took the old one's place
        await asyncio.sleep(0.01)
        assert (await s.ask(ask(headers={"Cache-Control": "max-age=0"}))).body != fresh.body
        assert len(s.engine.requests) == 4

    with_cache(test)


def test_an_answer_lives_as_long_as_its_route_says() -> None:
    async def test(s: Stand) -> None:
        await s.ask(ask())
        await s.ask(ask())
        await asyncio.sleep(0.25)
        await s.ask(ask())
        assert len(s.engine.requests) == 2
        assert counters(s)["expired"] == 1

    with_cache(test, cache={"routes": [{"ttl": "200ms"}], "ttl": "1h"})


def test_the_oldest_answers_go_when_the_room_is_used_up() -> None:
    async def test(s: Stand) -> None:
        for number in range(20):
            await s.ask(ask(f"question {number}"))
        held = counters(s)
        assert held["bytes"] <= 8192
        assert held["evictions"] > 0
        assert held["entries"] + held["evictions"] == 20
        await s.ask(ask("question 19"))
        await s.ask(ask("question 0"))
        assert len(s.engine.requests) == 21

    with_cache(test, cache={"routes": [{}], "max_bytes": 8192, "entry_bytes": 4096})


@pytest.mark.parametrize(
    "kind", ["error", "error frame", "cut", "no finish reason", "aborted", "no-store", "cookie", "fault in a 200"]
)
def test_only_whole_answers_are_kept(kind: str) -> None:
    async def engine(incoming: Incoming) -> None:
        if kind == "error":
            await incoming.reply({"error": {"message": "m"}}, 500)
        elif kind == "error frame":
            await incoming.sse(token(), b'data: {"error": {"message": "m", "code": 500}}\n\n', DONE)
            await incoming.end()
        elif kind == "cut":
            await incoming.sse(token())
            incoming.abort()
        elif kind == "no finish reason":
            await incoming.sse(token())
            await incoming.end()
        elif kind == "aborted":
            await incoming.sse(token(), finish("abort"), DONE)
            await incoming.end()
        elif kind == "fault in a 200":
            await incoming.reply({"error": {"message": "m", "code": 500}})
        else:
            extra = b"Cache-Control: no-store\r\n" if kind == "no-store" else b"Set-Cookie: a=b\r\n"
            await incoming.reply({"choices": [{"finish_reason": "stop", "message": {"content": "x"}}]}, extra=extra)

    async def test(s: Stand) -> None:
        stream = kind in ("error frame", "cut", "no finish reason", "aborted")
        for _ in range(2):
            await s.ask(ask(stream=stream))
        assert len(s.engine.requests) == 2
        assert (counters(s)["entries"], counters(s)["not_whole"]) == (0, 2)

    with_cache(test, engine)


def test_a_client_that_leaves_takes_its_answer_with_it() -> None:
    engine = Engine(gap=0.02)

    async def test(s: Stand) -> None:
        client = await s.client()
        await client.send(ask(stream=True))
        await client.head()
        await client.next_chunk()
        client.abort()
        await s.until(lambda: not s.gateway.in_flight)
        assert counters(s)["entries"] == 0
        assert (await s.record()).reason is Reason.CLIENT_DISCONNECT

    with_cache(test, engine)


# -- identical requests at once


@pytest.mark.parametrize("stream", [True, False])
def test_twenty_identical_requests_are_one(stream: bool) -> None:
    engine = Engine(gap=0.01)

    async def test(s: Stand) -> None:
        engine.held = asyncio.Event()
        asking = [asyncio.ensure_future(s.ask(ask(stream=stream))) for _ in range(20)]
        await s.until(lambda: counters(s)["shared"] == 19)
        engine.held.set()
        replies = await asyncio.gather(*asking)
        assert len(s.engine.requests) == 1
        assert len({reply.body for reply in replies}) == 1
        assert {reply.end for reply in replies} == {"chunked" if stream else "length"}
        said = sorted(reply.headers["x-tailrace-cache"] for reply in replies)
        assert said == ["miss"] + ["shared"] * 19
        await s.record(20)
        assert {record.outcome for record in s.records.all} == {OutcomeKind.COMPLETED}
        shared = [record for record in s.records.all if record.cache == "shared"]
        assert len(shared) == 19
        assert all(record.queue_gateway_ns for record in shared)
        assert all(record.output_tokens == (5 if stream else 2) for record in shared)
        assert all((record.ttft_ns is not None) == stream for record in shared)

    with_cache(test, engine)


def test_a_follower_gets_what_came_and_then_what_comes() -> None:
    engine = Engine(gap=0.03, tokens=10)

    async def test(s: Stand) -> None:
        leader = await s.client()
        await leader.send(ask(stream=True))
        await leader.head()
        for _ in range(3):
            await leader.next_chunk()
        reply = await s.ask(ask(stream=True))
        assert reply.headers["x-tailrace-cache"] == "shared"
        assert reply.tokens == 10
        at = [when for when, _ in reply.chunks]
        assert at[2] - at[0] < 0.03
        assert at[-1] - at[2] > 0.1
        assert len(s.engine.requests) == 1

    with_cache(test, engine)


def test_the_leader_s_client_leaves_and_the_followers_get_their_answer() -> None:
    engine = Engine(gap=0.03, tokens=10)

    async def test(s: Stand) -> None:
        leader = await s.client()
        await leader.send(ask(stream=True))
        await leader.head()
        await leader.next_chunk()
        following = [asyncio.ensure_future(s.ask(ask(stream=True))) for _ in range(3)]
        await s.until(lambda: counters(s)["shared"] == 3)
        leader.abort()
        left = await s.record(1)
        assert (left.outcome, left.reason, left.cache) == (OutcomeKind.CANCELLED, Reason.CLIENT_DISCONNECT, "miss")
        assert len(s.gateway.in_flight) == 4
        replies = await asyncio.gather(*following)
        assert [(reply.tokens, reply.end) for reply in replies] == [(10, "chunked")] * 3
        assert len(s.engine.requests) == 1
        await s.record(4)
        assert (await s.ask(ask(stream=True))).headers["x-tailrace-cache"].startswith("hit")

    with_cache(test, engine)


@pytest.mark.parametrize("when", ["queued", "before the head", "streaming"])
def test_when_nobody_wants_it_any_more_the_engine_is_stopped(when: str) -> None:
    engine = Engine(gap=0.05, tokens=100)

    async def test(s: Stand) -> None:
        blocker = None
        if when == "queued":
            blocker = await s.client()
            await blocker.send(ask("another", stream=True))
            await blocker.head()
        elif when == "before the head":
            engine.held = asyncio.Event()
        clients = [await s.client() for _ in range(3)]
        for client in clients:
            await client.send(ask(stream=True))
        await s.until(lambda: counters(s)["shared"] == 2)
        if when == "streaming":
            await clients[0].head()
            await clients[0].next_chunk()
        for client in clients:
            client.abort()
            await asyncio.sleep(0.02)
        if blocker is not None:
            blocker.abort()
        await s.until(lambda: not s.gateway.in_flight)
        assert counters(s)["in_flight"] == 0
        if engine.held is not None:
            engine.held.set()
        assert {record.reason for record in s.records.all} == {Reason.CLIENT_DISCONNECT}
        assert len(s.records.all) == (4 if blocker else 3)

    with_cache(test, engine, lanes=[{"name": "default", "running": 1}])


def test_a_leader_that_fails_before_its_first_byte_leaves_its_followers_to_themselves() -> None:
    count = 0
    held = asyncio.Event()

    async def engine(incoming: Incoming) -> None:
        nonlocal count
        count += 1
        if count == 1:
            await held.wait()
            await incoming.reply({"error": {"message": "once"}}, 500)
        else:
            await asyncio.sleep(0.05)
            await incoming.stream(3)

    async def test(s: Stand) -> None:
        asking = [asyncio.ensure_future(s.ask(ask(stream=True))) for _ in range(10)]
        await s.until(lambda: counters(s)["shared"] == 9)
        held.set()
        replies = await asyncio.gather(*asking)
        assert sorted(reply.status for reply in replies) == [200] * 9 + [500]
        assert [reply.tokens for reply in replies if reply.status == 200] == [3] * 9
        assert len(s.engine.requests) == 2  # one of them led the others

    with_cache(test, engine)


def test_after_two_failures_everybody_asks_for_itself() -> None:
    count = 0
    held = asyncio.Event()

    async def engine(incoming: Incoming) -> None:
        nonlocal count
        count += 1
        await held.wait()
        await asyncio.sleep(0.03)
        await (incoming.reply({"error": {"message": "no"}}, 500) if count <= 2 else incoming.completion())

    async def test(s: Stand) -> None:
        asking = [asyncio.ensure_future(s.ask(ask())) for _ in range(6)]
        await s.until(lambda: counters(s)["shared"] == 5)
        held.set()
        replies = await asyncio.gather(*asking)
        assert sorted(reply.status for reply in replies) == [200] * 4 + [500] * 2
        assert len(s.engine.requests) == 6

    with_cache(test, engine)


def test_a_leader_that_is_cut_in_the_middle_is_cut_for_all_with_an_error_event() -> None:
    cut = asyncio.Event()

    async def engine(incoming: Incoming) -> None:
        await incoming.sse(token(), token())
        await cut.wait()
        incoming.abort()

    async def test(s: Stand) -> None:
        asking = [asyncio.ensure_future(s.ask(ask(stream=True))) for _ in range(3)]
        await s.until(lambda: counters(s)["shared"] == 2)
        await asyncio.sleep(0.05)
        cut.set()
        replies = await asyncio.gather(*asking)
        assert all(reply.error is not None for reply in replies)
        assert all(reply.tokens == 2 for reply in replies)
        ids = {reply.error["request_id"] for reply in replies if reply.error and "request_id" in reply.error}
        assert len(ids) in (0, 3)
        await s.record(3)
        assert {record.reason for record in s.records.all} == {Reason.STREAM_CUT}
        assert len(s.engine.requests) == 1

    with_cache(test, engine)


def test_a_refused_leader_s_followers_ask_for_their_own_place() -> None:
    async def test(s: Stand) -> None:
        blocker = await s.client()
        await blocker.send(ask("another", stream=True))
        await blocker.head()
        asking = [asyncio.ensure_future(s.ask(ask(stream=True))) for _ in range(3)]
        replies = await asyncio.gather(*asking)
        assert [reply.status for reply in replies] == [429] * 3
        assert len({reply.json["error"]["message"] for reply in replies}) >= 1
        blocker.abort()
        await s.until(lambda: not s.gateway.in_flight)

    with_cache(
        test,
        Engine(gap=0.05, tokens=100),
        lanes=[{"name": "default", "running": 1, "queued": 1}],
        budgets={"queue": "300ms"},
    )


def test_requests_of_other_lanes_and_with_a_deadline_are_not_led() -> None:
    engine = Engine()

    async def test(s: Stand) -> None:
        engine.held = asyncio.Event()
        heads: list[dict[str, str]] = [{"X-Deadline-Ms": "9000"}, {"X-Class": "batch"}, {}, {"X-Deadline-Ms": "8000"}]
        asking = []
        for headers in heads:
            asking.append(asyncio.ensure_future(s.ask(ask(headers=headers))))
            await asyncio.sleep(0.02)
        await s.until(lambda: len(s.engine.requests) == 3)
        assert counters(s)["shared"] == 1  # the last one follows the one before it
        engine.held.set()
        await asyncio.gather(*asking)

    with_cache(test, engine, lanes=[{"name": "batch", "match": {"header": {"x-class": "batch"}}}])


def test_without_single_flight_everybody_asks() -> None:
    engine = Engine()

    async def test(s: Stand) -> None:
        engine.held = asyncio.Event()
        asking = [asyncio.ensure_future(s.ask(ask())) for _ in range(3)]
        await s.until(lambda: len(s.engine.requests) == 3)
        engine.held.set()
        await asyncio.gather(*asking)
        assert (await s.ask(ask())).headers["x-tailrace-cache"].startswith("hit")

    with_cache(test, engine, cache={"routes": [{}], "single_flight": False})


def test_an_answer_too_large_to_keep_is_shared_by_those_who_keep_up() -> None:
    async def engine(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        for _ in range(20):
            await incoming.chunks(token("x" * 1000))
            await asyncio.sleep(0.01)
        await incoming.chunks(finish(), DONE)
        await incoming.end()

    async def test(s: Stand) -> None:
        asking = [asyncio.ensure_future(s.ask(ask(stream=True))) for _ in range(3)]
        replies = await asyncio.gather(*asking)
        assert len({reply.body for reply in replies}) == 1
        assert replies[0].tokens == 20
        assert (counters(s)["entries"], counters(s)["too_large"]) == (0, 1)
        assert len(s.engine.requests) == 1

    with_cache(test, engine, cache={"routes": [{}], "entry_bytes": 8192})


def test_a_large_whole_answer_sends_its_followers_on_their_own_way() -> None:
    engine = Engine()

    async def large(incoming: Incoming) -> None:
        assert engine.held is not None
        await engine.held.wait()
        await incoming.completion("x" * 200_000)

    async def test(s: Stand) -> None:
        engine.held = asyncio.Event()
        asking = [asyncio.ensure_future(s.ask(ask())) for _ in range(3)]
        await s.until(lambda: counters(s)["shared"] == 2)
        engine.held.set()
        replies = await asyncio.gather(*asking)
        assert [reply.status for reply in replies] == [200] * 3
        assert len({reply.body for reply in replies}) == 1

    with_cache(test, large, cache={"routes": [{}], "entry_bytes": 8192})


def test_a_leader_that_does_not_read_holds_up_no_follower() -> None:
    async def engine(incoming: Incoming) -> None:
        await incoming.send(SSE_HEAD)
        for _ in range(40):
            await incoming.chunks(token("x" * 50_000))
        await incoming.chunks(finish(), DONE)
        await incoming.end()

    async def test(s: Stand) -> None:
        slow = await s.client(receive_buffer=4096)
        await slow.send(ask(stream=True))
        await s.until(lambda: any(exchange.transit.meter for exchange in s.gateway.in_flight.values()))
        await asyncio.sleep(0.1)  # the engine is paused by now
        reply = await s.ask(ask(stream=True))
        assert reply.headers["x-tailrace-cache"] == "shared"
        assert (reply.tokens, reply.end) == (40, "chunked")
        assert (await slow.reply()).body == reply.body

    with_cache(test, engine)


def test_a_follower_whose_time_is_over_leaves_the_others_alone() -> None:
    engine = Engine(gap=0.05, tokens=10)

    async def test(s: Stand) -> None:
        leader = asyncio.ensure_future(s.ask(ask(stream=True)))
        await s.until(lambda: len(s.engine.requests) == 1)
        late = await s.ask(ask(stream=True, headers={"X-Deadline-Ms": "200"}))
        assert late.error is not None
        assert (await leader).tokens == 10
        record = (await s.record(2), s.records.all[0])[1]
        assert (record.reason, record.cache) == (Reason.DEADLINE, "shared")

    with_cache(test, engine)


def test_a_shutdown_ends_leaders_and_followers_alike() -> None:
    engine = Engine(gap=0.05, tokens=100)

    async def test(s: Stand) -> None:
        asking = [asyncio.ensure_future(s.ask(ask(stream=True))) for _ in range(3)]
        await s.until(lambda: counters(s)["shared"] == 2)
        await s.gateway.close(0.1)
        replies = await asyncio.gather(*asking, return_exceptions=True)
        assert all(not isinstance(reply, BaseException) for reply in replies)
        assert len(s.records.all) == 3

    with_cache(test, engine)


# -- by meaning


def meaning_engine(incoming: Incoming) -> Any:
    text = incoming.json["input"]
    vector = {"hello": [1.0, 0.0], "hallo": [0.99, 0.05], "bye": [0.0, 1.0]}.get(text, [0.5, 0.5])
    return incoming.reply({"data": [{"embedding": vector}]})


def semantic(url: str, **more: Any) -> Any:
    return {"routes": [{"semantic": 0.95}], "embedding": {"url": url, "model": "e", "timeout": "500ms", **more}}


def test_nearly_the_same_question_gets_the_answer_and_is_marked() -> None:
    async def both() -> None:
        async with (
            ScriptedEngine(meaning_engine, side={"/v1/embeddings": meaning_engine}) as asked,
            stand(Engine(), cache=semantic(asked.url)) as s,
        ):
            first = await s.ask(ask("hello"))
            near = await s.ask(ask("hallo"))
            far = await s.ask(ask("bye"))
            other = await s.ask(ask("hallo", headers={"Authorization": "Bearer b"}))
            assert near.body == first.body
            assert near.headers["x-tailrace-cache"] == "semantic; age=0"
            assert far.body != first.body
            assert other.headers["x-tailrace-cache"] == "miss"
            same = await s.ask(ask("hello"))
            assert same.headers["x-tailrace-cache"] == "hit; age=0"
            record = (await s.record(5), s.records.all[1])[1]
            assert record.cache == "semantic"
            assert record.queue_gateway_ns
            assert record.decode_ns is None
            held = counters(s)
            assert (held["semantic"], held["misses"], held["embedding"]["failed"]) == (1, 3, 0)

    run(both())


@pytest.mark.parametrize("how", ["late", "error", "nobody", "nonsense"])
def test_when_nobody_says_what_it_means_it_is_a_miss(how: str) -> None:
    async def broken(incoming: Incoming) -> None:
        if how == "late":
            await asyncio.sleep(0.4)
        elif how == "error":
            await incoming.reply({}, 500)
        else:
            await incoming.reply(b'{"data": [{"embedding": "x"}]}')

    async def both() -> None:
        async with ScriptedEngine(broken, side={"/v1/embeddings": broken}) as asked:
            url = "http://127.0.0.1:9" if how == "nobody" else asked.url
            async with stand(Engine(), cache=semantic(url, timeout="150ms")) as s:
                first = await s.ask(ask("hello"))
                assert first.status == 200
                assert (await s.ask(ask("hallo"))).headers["x-tailrace-cache"] == "miss"
                assert (await s.ask(ask("hello"))).headers["x-tailrace-cache"] == "hit; age=0"
                assert counters(s)["embedding"]["answered"] == 0
                assert counters(s)["embedding"]["asking"] == 0

    run(both())


def test_a_client_that_leaves_while_its_question_is_looked_at_leaves_nothing() -> None:
    async def slow(incoming: Incoming) -> None:
        await asyncio.sleep(0.2)
        await meaning_engine(incoming)

    async def both() -> None:
        async with (
            ScriptedEngine(slow, side={"/v1/embeddings": slow}) as asked,
            stand(Engine(), cache=semantic(asked.url)) as s,
        ):
            client = await s.client()
            await client.send(ask("hello"))
            await s.until(lambda: counters(s)["embedding"]["asking"] == 1)
            client.abort()
            await s.until(lambda: not s.gateway.in_flight)
            await s.until(lambda: counters(s)["embedding"]["asking"] == 0)
            assert s.engine.requests == []

    run(both())


# -- the operator


def test_the_cache_is_switched_on_and_off_while_it_serves() -> None:
    from tailrace.gateway.config import config_from, to_plain

    async def test(s: Stand) -> None:
        def change(cache: Any) -> None:
            s.gateway.reconfigure(config_from({**to_plain(s.gateway.config), "cache": cache}))

        assert s.gateway.cache is None
        assert "x-tailrace-cache" not in (await s.ask(ask())).headers
        client = await s.client()
        change(ALL)
        assert (await client.ask(ask())).headers["x-tailrace-cache"] == "miss"
        assert (await client.ask(ask())).headers["x-tailrace-cache"] == "hit; age=0"
        change({"routes": [{"paths": ["/v1/embeddings"]}]})
        assert "x-tailrace-cache" not in (await client.ask(ask())).headers
        change({})
        assert s.gateway.cache is None
        assert "x-tailrace-cache" not in (await client.ask(ask())).headers

    with_cache(test, cache={})


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("many", [2000, pytest.param(10_000, marks=pytest.mark.tier("ci"))])
def test_any_number_of_questions_leaves_no_more_than_the_bound(many: int) -> None:
    each = many // 16

    async def engine(incoming: Incoming) -> None:
        await incoming.completion("x" * 16_000)

    async def test(s: Stand) -> None:
        clients = [await s.client() for _ in range(8)]

        async def some(client: Any, start: int) -> None:
            for number in range(start, start + each):
                assert (await client.ask(ask(f"question {number}"))).status == 200

        sizes = []
        for half in range(2):
            await asyncio.gather(*(some(client, (half * 8 + at) * each) for at, client in enumerate(clients)))
            s.records.all.clear()
            s.engine.requests.clear()
            gc.collect()
            sizes.append(resident())
        held = counters(s)
        assert held["bytes"] <= 256 * 1024
        assert held["stores"] == 16 * each
        assert held["evictions"] == 16 * each - held["entries"]
        # What the second half would take if it were kept: 1000 answers of 16 kB at least.
        assert sizes[1] - sizes[0] < 8_000_000

    with_cache(
        test, engine, cache={"routes": [{}], "max_bytes": 256 * 1024, "entry_bytes": 32768}, records={"sample": 0.0}
    )
