"""What clients are told of their wait: refusals, headers, and comments in a queued stream."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import openai
import pytest

from tailrace.gateway.config import Config, config_from, to_plain
from tailrace.model.outcome import OutcomeKind, Reason
from tests.wire.client import chat_body, request
from tests.wire.scripted import Incoming, chunk, event
from tests.wire.stand import run, stand

COMMENTS = {"comments": "100ms"}


def lane(**more: object) -> dict:
    return {"name": "default", "running": 1, "queued": 4, "budgets": {"queue": "10s"}, **more}


class Held:
    """An engine that answers when it is let go, and counts how many it works on."""

    def __init__(self, work_s: float | None = None) -> None:
        self.free = asyncio.Event()
        self.work_s = work_s
        self.now = self.peak = self.seen = 0

    async def __call__(self, incoming: Incoming) -> None:
        self.seen += 1
        self.now += 1
        self.peak = max(self.peak, self.now)
        try:
            if self.work_s is None:
                await self.free.wait()
            else:
                await asyncio.sleep(self.work_s)
            await self.answer(incoming)
        finally:
            self.now -= 1

    async def answer(self, incoming: Incoming) -> None:
        if incoming.json.get("stream"):
            await incoming.stream()
        else:
            await incoming.completion()


def test_of_a_burst_of_forty_four_work_four_wait_and_the_rest_is_told_at_once_when_to_come_back() -> None:
    async def test() -> None:
        engine = Held(0.4)
        async with stand(engine, lanes=[lane(running=4)]) as s:
            # Something is known of the lane, as it is in any gateway that has run for a second.
            await asyncio.gather(*(s.ask(request(chat_body(stream=False))) for _ in range(4)))
            clients = [await s.client() for _ in range(40)]
            began = time.monotonic()
            for client in clients:
                await client.send(request(chat_body(stream=False)))
            await s.until(lambda: len(s.gateway.in_flight) == 8 and len(s.records.all) == 36)
            snapshot = s.gateway.lanes.snapshot(time.monotonic_ns())["default"]
            assert (snapshot["running"], snapshot["queued"]) == (4, 4)
            assert time.monotonic() - began < 2
            replies = await asyncio.gather(*(client.reply() for client in clients))
            refused = [reply for reply in replies if reply.status == 429]
            assert len(refused) == 32
            assert sum(reply.status == 200 for reply in replies) == 8
            assert engine.peak == 4
            for reply in refused:
                assert reply.headers["x-tailrace-reason"] == reply.json["error"]["code"] == "queue_full"
                # Four wait and four run, of 0.4 s each: the ninth begins after about 0.8 s, in whole seconds 1.
                assert reply.headers["retry-after"] in ("1", "2")
                assert 200 < reply.json["error"]["predicted_wait_ms"] < 2000
                assert reply.json["error"]["position"] == 5
            rejected = [r for r in s.records.all if r.outcome is OutcomeKind.REJECTED]
            assert {r.reason for r in rejected} == {Reason.QUEUE_FULL}
            # By the gateway's own clock: what a loaded machine adds before the read and after the write is not ours.
            assert max(r.e2e_ns or 0 for r in rejected) < 50e6
            snapshot = s.gateway.lanes.snapshot(time.monotonic_ns())["default"]
            assert (snapshot["running"], snapshot["queued"], snapshot["refused"]) == (0, 0, 32)

    run(test())


def test_a_client_that_leaves_the_queue_is_never_forwarded() -> None:
    async def test() -> None:
        engine = Held()
        async with stand(engine, lanes=[lane()], predictions=COMMENTS) as s:
            first = await s.client()
            await first.send(request(chat_body(stream=False)))
            await s.until(lambda: engine.seen == 1)
            second = await s.client()
            await second.send(request(chat_body()))
            assert (await second.head()).status == 200  # it has had its first comment
            second.writer.transport.abort()
            await s.until(lambda: len(s.records.all) == 1)
            record = s.records.all[0]
            assert (record.outcome, record.reason) == (OutcomeKind.CANCELLED, Reason.CLIENT_DISCONNECT)
            assert record.died_in == "queue"
            engine.free.set()
            assert (await first.reply()).status == 200
            assert (await s.ask(request(chat_body(stream=False)))).status == 200
            assert engine.seen == 2

    run(test())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {}),
        ("/v1/messages", {"max_tokens": 5}),
        ("/v2/models/m/generate", {"text_input": "hello"}),
    ],
)
def test_a_refusal_says_lane_position_wait_and_reason_in_the_shape_of_each_api(path: str, body: dict) -> None:
    async def test() -> None:
        engine = Held()
        async with stand(engine, lanes=[lane(queued=0)]) as s:
            first = await s.client()
            await first.send(request(chat_body(stream=False)))
            await s.until(lambda: engine.seen == 1)
            reply = await s.ask(request(chat_body(stream=False, **body), path=path))
            assert reply.status == 429
            assert reply.headers["retry-after"] == "1"
            assert reply.headers["x-tailrace-reason"] == "queue_full"
            told = reply.json
            facts = told if path.startswith("/v2") else told["error"]
            assert (facts["lane"], facts["position"], facts["retry_after_s"]) == ("default", 1, 1)
            assert facts["predicted_wait_ms"] is None  # nothing has ended here yet
            if path == "/v1/messages":
                assert (told["type"], facts["type"]) == ("error", "rate_limit_error")
            elif path.startswith("/v2"):
                assert isinstance(told["error"], str)
            else:
                assert (facts["type"], facts["code"], facts["param"]) == ("rate_limit_error", "queue_full", None)
            engine.free.set()
            await first.reply()

    run(test())


def test_who_waited_or_was_refused_finds_the_predicted_wait_in_a_header() -> None:
    async def test() -> None:
        engine = Held(0.2)
        async with stand(engine, lanes=[lane(queued=1)]) as s:
            first = await s.ask(request(chat_body(stream=False)))
            assert "x-tailrace-predicted-wait-ms" not in first.headers
            replies = await asyncio.gather(*(s.ask(request(chat_body(stream=False))) for _ in range(3)))
            by = sorted(
                replies, key=lambda reply: (reply.status, reply.headers.get("x-tailrace-predicted-wait-ms", ""))
            )
            at_once, waited, refused = by
            assert "x-tailrace-predicted-wait-ms" not in at_once.headers
            assert 50 < int(waited.headers["x-tailrace-predicted-wait-ms"]) < 800
            assert refused.status == 429
            assert int(refused.headers["x-tailrace-predicted-wait-ms"]) == round(
                refused.json["error"]["predicted_wait_ms"]
            )
            s.gateway.reconfigure(_without_headers(s.gateway.config))
            replies = await asyncio.gather(*(s.ask(request(chat_body(stream=False))) for _ in range(3)))
            assert not any("x-tailrace-predicted-wait-ms" in reply.headers for reply in replies)

    run(test())


def test_the_range_of_durations_is_told_once_enough_requests_have_ended() -> None:
    async def test() -> None:
        engine = Held(0.02)
        async with stand(engine, lanes=[lane(running=4)]) as s:
            # Sixteen until the length of an answer is known, and some more until it is known what that means here.
            for _ in range(60):
                reply = await s.ask(request(chat_body(stream=False)))
            s.gateway.flush_records()
            reply = await s.ask(request(chat_body(stream=False)))
            low, high = map(int, reply.headers["x-tailrace-predicted-duration-ms"].split("-"))
            assert 5 < low <= high
            assert low < 60

    run(test())


def _without_headers(config: Config) -> Config:
    return config_from({**to_plain(config), "predictions": {"headers": False}})


def test_a_stream_that_waits_is_told_its_place_and_then_gets_its_answer() -> None:
    async def test() -> None:
        engine = Held()
        async with stand(engine, lanes=[lane()], predictions=COMMENTS) as s:
            first = await s.client()
            await first.send(request(chat_body(stream=False)))
            await s.until(lambda: engine.seen == 1)
            waiting = await s.client()
            await waiting.send(request(chat_body()))
            head = await waiting.head()
            assert head.status == 200
            assert head.headers["content-type"].startswith("text/event-stream")
            assert head.headers["x-tailrace-lane"] == "default"
            said = [await waiting.next_chunk() for _ in range(2)]
            assert all((one or b"").startswith(b": queued position=1") for one in said)
            engine.free.set()
            rest = b""
            while (data := await waiting.next_chunk()) is not None:
                rest += data
            assert rest.count(b'"content":"') == 2
            assert rest.endswith(b"data: [DONE]\n\n")
            await first.reply()
            await s.record(2)
            record = next(r for r in s.records.all if r.stream)
            assert (record.outcome, record.http_status, record.output_tokens) == (OutcomeKind.COMPLETED, 200, 2)
            assert record.ttft_ns is not None

    run(test())


def test_a_short_wait_keeps_the_engines_own_status_and_head() -> None:
    async def test() -> None:
        class Failing(Held):
            async def answer(self, incoming: Incoming) -> None:
                await incoming.reply({"error": {"message": "bad prompt", "type": "BadRequestError"}}, 400)

        engine = Failing(0.05)
        async with stand(engine, lanes=[lane()], predictions={"comments": "2s"}) as s:
            replies = await asyncio.gather(*(s.ask(request(chat_body())) for _ in range(3)))
            assert [reply.status for reply in replies] == [400, 400, 400]

    run(test())


def test_what_does_not_stream_is_told_nothing_before_its_answer() -> None:
    async def test() -> None:
        engine = Held(0.3)
        async with stand(engine, lanes=[lane()], predictions=COMMENTS) as s:
            replies = await asyncio.gather(*(s.ask(request(chat_body(stream=False))) for _ in range(3)))
            assert [reply.end for reply in replies] == ["length"] * 3
            assert all(reply.json["object"] == "chat.completion" for reply in replies)

    run(test())


@pytest.mark.parametrize("how", ["error", "whole", "abort", "first_frame"])
def test_after_a_comment_every_failure_of_the_engine_is_an_error_event_in_the_stream(how: str) -> None:
    class Failing(Held):
        async def answer(self, incoming: Incoming) -> None:
            if not incoming.json.get("stream"):
                await incoming.completion()
            elif how == "error":
                await incoming.reply({"error": {"message": "no such adapter", "type": "NotFoundError"}}, 404)
            elif how == "whole":
                await incoming.completion()
            elif how == "abort":
                incoming.abort()
            else:
                frame = event({"error": {"message": "out of blocks", "type": "InternalServerError", "code": 500}})
                await incoming.sse(frame)
                await incoming.send(chunk(b"data: [DONE]\n\n"))
                await incoming.end()

    async def test() -> None:
        engine = Failing()
        async with stand(engine, lanes=[lane()], predictions=COMMENTS) as s:
            first = await s.client()
            await first.send(request(chat_body(stream=False)))
            await s.until(lambda: engine.seen == 1)
            waiting = await s.client()
            await waiting.send(request(chat_body()))
            assert (await waiting.head()).status == 200
            assert (await waiting.next_chunk() or b"").startswith(b": queued")
            engine.free.set()
            rest = b""
            while (data := await waiting.next_chunk()) is not None:
                rest += data
            assert b'data: {"error"' in rest.replace(b'data: {"id"', b"")
            if how == "error":
                assert b"no such adapter" in rest
            assert b'"object":"chat.completion"' not in rest
            await first.reply()
            await s.record(2)
            record = next(r for r in s.records.all if r.stream)
            assert record.outcome is OutcomeKind.FAILED or (how, record.outcome) == ("error", OutcomeKind.REJECTED)
            assert record.http_status == 200
            # The connection is whole: the next request goes over it.
            await waiting.send(request(chat_body(stream=False)))
            assert (await waiting.reply()).status == 200

    run(test())


def test_a_queue_budget_that_ends_after_a_comment_is_an_error_event_too() -> None:
    async def test() -> None:
        engine = Held()
        async with stand(engine, lanes=[lane(budgets={"queue": "400ms"})], predictions=COMMENTS) as s:
            first = await s.client()
            await first.send(request(chat_body(stream=False)))
            await s.until(lambda: engine.seen == 1)
            reply = await s.ask(request(chat_body()))
            assert (reply.status, reply.end) == (200, "chunked")
            assert b": queued position=1" in reply.body
            assert reply.error is not None
            assert (reply.error["reason"], reply.error["code"]) == ("queue_timeout", 429)
            assert reply.error["retry_after_s"] >= 1
            engine.free.set()
            await first.reply()
            assert engine.seen == 1

    run(test())


def test_the_openai_sdk_skips_the_comments_and_raises_on_an_error_behind_them() -> None:
    class Fussy(Held):
        async def answer(self, incoming: Incoming) -> None:
            if incoming.json["model"] == "bad":
                await incoming.reply({"error": {"message": "no such model", "type": "NotFoundError"}}, 404)
            else:
                await super().answer(incoming)

    async def test() -> None:
        engine = Fussy()
        messages: Any = [{"role": "user", "content": "hello"}]
        async with (
            stand(engine, lanes=[lane()], predictions=COMMENTS) as s,
            openai.AsyncOpenAI(base_url=s.gateway.url + "/v1", api_key="k", max_retries=0, timeout=10) as sdk,
        ):
            first = await s.client()
            await first.send(request(chat_body(stream=False)))
            await s.until(lambda: engine.seen == 1)
            # Both return as soon as the first comment is there, before the engine has seen anything of them.
            good = await sdk.chat.completions.create(model="good", messages=messages, stream=True)
            bad = await sdk.chat.completions.create(model="bad", messages=messages, stream=True)
            assert engine.seen == 1
            engine.free.set()
            text = [chunk.choices[0].delta.content async for chunk in good if chunk.choices]
            assert [piece for piece in text if piece] == ["hi", "hi"]
            with pytest.raises(openai.APIError, match="no such model"):
                async for _ in bad:
                    pass
            await first.reply()

    run(test())
