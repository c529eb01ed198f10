"""Lanes at work: true limits, bounded queues, honest refusals, changes at run time."""

from __future__ import annotations

import asyncio
import time

from tailrace.gateway.config import config_from, to_plain
from tailrace.model.outcome import OutcomeKind, Reason
from tests.wire.client import chat_body, request
from tests.wire.scripted import Incoming
from tests.wire.stand import run, stand
from tests.wire.test_backends import several

LONG = "word " * 4000


def _lane(**more: object) -> dict:
    return {"name": "default", "running": 2, "queued": 3, "budgets": {"queue": "10s"}, **more}


class Busy:
    """An engine that works on each request until `free`, and counts how many it works on."""

    def __init__(self, work_s: float | None = None) -> None:
        self.free = asyncio.Event()
        self.work_s = work_s
        self.now = self.peak = 0
        self.order: list[object] = []

    async def __call__(self, incoming: Incoming) -> None:
        self.now += 1
        self.peak = max(self.peak, self.now)
        self.order.append(incoming.json.get("who"))
        try:
            if self.work_s is None:
                await self.free.wait()
            else:
                await asyncio.sleep(self.work_s)
            await incoming.completion()
        finally:
            self.now -= 1


def test_exactly_running_plus_queued_are_served_and_the_rest_is_told_at_once() -> None:
    async def test() -> None:
        engine = Busy(0.3)
        async with stand(engine, lanes=[_lane()]) as s:
            began = time.monotonic()
            waits: dict[int, list[float]] = {200: [], 429: []}
            replies = []

            async def one() -> None:
                reply = await s.ask(request(chat_body(stream=False)))
                waits[reply.status].append(time.monotonic() - began)
                replies.append(reply)

            async with asyncio.TaskGroup() as group:
                for _ in range(20):
                    group.create_task(one())
            assert engine.peak == 2
            assert len(waits[200]) == 5
            assert len(waits[429]) == 15
            assert max(waits[429]) < 0.25
            refused = next(reply for reply in replies if reply.status == 429)
            assert int(refused.headers["retry-after"]) >= 1
            error = refused.json["error"]
            assert error["code"] == "queue_full"
            assert error["lane"] == refused.headers["x-tailrace-lane"] == "default"
            assert error["position"] == 4
            assert "predicted_wait_ms" in error
            await s.record(20)
            rejected = [r for r in s.records.all if r.outcome is OutcomeKind.REJECTED]
            assert {(r.reason, r.died_in, r.http_status) for r in rejected} == {(Reason.QUEUE_FULL, "queue", 429)}
            waited = [r.queue_gateway_ns for r in s.records.all if r.outcome is OutcomeKind.COMPLETED]
            assert sum(ns > 250e6 for ns in waited if ns is not None) == 3

    run(test())


def test_retry_after_is_computed_from_what_requests_take() -> None:
    async def test() -> None:
        engine = Busy(0.5)
        async with stand(engine, lanes=[_lane(running=1, queued=8, budgets={"queue": "60s"})]) as s:
            for _ in range(2):
                await s.ask(request(chat_body(stream=False)))
            async with asyncio.TaskGroup() as group:
                for _ in range(9):
                    group.create_task(s.ask(request(chat_body(stream=False))))
                await s.until(lambda: s.gateway.lanes.snapshot(0)["default"]["queued"] == 8)
                refused = await s.ask(request(chat_body(stream=False)))
            assert refused.status == 429
            # Nine at half a second each: about 4.5 s, told as whole seconds.
            assert int(refused.headers["retry-after"]) in (4, 5, 6)
            assert 4000 < refused.json["error"]["predicted_wait_ms"] < 5500

    run(test())


def test_a_wait_that_cannot_fit_its_budget_is_refused_at_once() -> None:
    async def test() -> None:
        engine = Busy(0.3)
        async with stand(engine, lanes=[_lane(running=1, queued=50, budgets={"queue": "500ms"})]) as s:
            await s.ask(request(chat_body(stream=False)))
            replies = await asyncio.gather(*(s.ask(request(chat_body(stream=False))) for _ in range(8)))
            refused = [reply for reply in replies if reply.status == 429]
            assert refused
            assert {reply.json["error"]["code"] for reply in refused} == {"predicted_wait"}

    run(test())


def test_the_queue_budget_ends_the_wait() -> None:
    async def test() -> None:
        engine = Busy()
        async with stand(engine, lanes=[_lane(running=1, budgets={"queue": "200ms"})]) as s:
            first = await s.client()
            await first.send(request(chat_body(stream=False)))
            await s.until(lambda: engine.now == 1)
            began = time.monotonic()
            reply = await s.ask(request(chat_body(stream=False)))
            assert 0.2 <= time.monotonic() - began < 0.5
            assert reply.status == 429
            assert reply.headers["retry-after"]
            record = await s.record()
            assert (record.outcome, record.reason) == (OutcomeKind.TIMED_OUT, Reason.QUEUE_TIMEOUT)
            assert (record.died_in, record.budget) == ("queue", "queue")
            assert record.queue_gateway_ns is not None
            assert record.queue_gateway_ns >= 200e6
            engine.free.set()
            assert (await first.reply()).status == 200
            assert len(s.engine.requests) == 1

    run(test())


def test_a_deadline_shortens_the_queue_too() -> None:
    async def test() -> None:
        engine = Busy()
        async with stand(engine, lanes=[_lane(running=1)]) as s:
            first = await s.client()
            await first.send(request(chat_body(stream=False)))
            await s.until(lambda: engine.now == 1)
            reply = await s.ask(request(chat_body(stream=False), headers={"X-Deadline-Ms": "150"}))
            assert (reply.status, reply.json["error"]["reason"]) == (504, "deadline")
            assert (await s.record()).reason is Reason.DEADLINE
            engine.free.set()
            await first.reply()

    run(test())


def test_requests_find_their_lane() -> None:
    lanes = [
        {"name": "batch", "match": {"header": {"x-lane": "batch"}}},
        {"name": "long", "match": {"min_prompt_tokens": 2001}},
        {"name": "chat", "match": {"stream": True}},
    ]

    async def script(incoming: Incoming) -> None:
        if incoming.json.get("stream"):
            await incoming.stream()
        else:
            await incoming.completion()

    async def test() -> None:
        async with stand(script, lanes=lanes) as s:
            long = {"messages": [{"role": "user", "content": LONG}]}
            for body, headers, lane in (
                (chat_body(), {"X-Lane": "batch"}, "batch"),
                (chat_body(**long), {}, "long"),
                (chat_body(), {}, "chat"),
                (chat_body(stream=False), {}, "default"),
            ):
                reply = await s.ask(request(body, headers=headers))
                assert reply.headers["x-tailrace-lane"] == lane
            await s.record(4)
            assert [record.lane for record in s.records.all] == ["batch", "long", "chat", "default"]

    run(test())


def test_a_full_lane_does_not_hold_up_another() -> None:
    lanes = [
        {"name": "long", "match": {"min_prompt_tokens": 2001}, "running": 1, "queued": 5},
        {"name": "chat", "running": 4, "queued": 5},
    ]

    async def test() -> None:
        engine = Busy()

        async def script(incoming: Incoming) -> None:
            if len(incoming.body) > 5000:
                await engine(incoming)
            else:
                await incoming.completion()

        async with stand(script, lanes=lanes) as s:
            long = request(chat_body(stream=False, messages=[{"role": "user", "content": LONG}]))
            clients = [await s.client() for _ in range(3)]
            for client in clients:
                await client.send(long)
            await s.until(lambda: engine.now == 1)
            began = time.monotonic()
            assert (await s.ask(request(chat_body(stream=False)))).status == 200
            assert time.monotonic() - began < 0.5
            engine.free.set()
            for client in clients:
                assert (await client.reply()).status == 200
            assert engine.peak == 1

    run(test())


def test_shortest_first() -> None:
    async def test() -> None:
        engine = Busy()
        lanes = [_lane(running=1, queued=9, order="shortest_first")]
        async with stand(engine, lanes=lanes) as s:
            clients = []
            for who, words in ((0, 1), (1, 3000), (2, 100), (3, 1000)):
                client = await s.client()
                clients.append(client)
                content = [{"role": "user", "content": "word " * words}]
                await client.send(request(chat_body(stream=False, who=who, messages=content)))
                await s.until(lambda who=who: len(s.gateway.in_flight) == who + 1)
                await asyncio.sleep(0.02)
            engine.free.set()
            for client in clients:
                await client.reply()
            assert engine.order == [0, 2, 3, 1]

    run(test())


def test_the_lanes_place_comes_back_however_a_request_ends() -> None:
    async def script(incoming: Incoming) -> None:
        how = incoming.json["how"]
        if how == "abort":
            incoming.abort()
        elif how == "error":
            await incoming.reply({"error": {"message": "x"}}, 500)
        elif how == "hang":
            await incoming.until_gone()
        else:
            await incoming.completion()

    async def test() -> None:
        budgets = {"unstreamed_total": "200ms"}
        async with stand(script, lanes=[_lane(running=1, queued=0, budgets=budgets)]) as s:
            for how in ("abort", "error", "hang", "fine", "error", "fine"):
                reply = await s.ask(request(chat_body(stream=False, how=how)))
                assert reply.status != 429, how
            await s.record(6)

    run(test())


def test_lanes_change_at_run_time_without_losing_a_request() -> None:
    async def test() -> None:
        engine = Busy()
        async with stand(engine, lanes=[_lane(running=1, queued=9)]) as s:
            clients = [await s.client() for _ in range(6)]
            for client in clients:
                await client.send(request(chat_body(stream=False)))
            await s.until(lambda: s.gateway.lanes.snapshot(0)["default"]["queued"] == 5)
            await s.until(lambda: engine.now == 1)
            plain = to_plain(s.gateway.config)
            plain["lanes"] = [{"name": "fast", "match": {"max_prompt_tokens": 100}, "running": 3, "queued": 9}]
            s.gateway.reconfigure(config_from(plain))
            await s.until(lambda: engine.now == 4)
            assert s.gateway.lanes.snapshot(0)["fast"]["queued"] == 2
            engine.free.set()
            for client in clients:
                assert (await client.reply()).status == 200
            await s.record(6)

    run(test())


def test_who_waited_goes_to_the_backends_that_its_lane_has_now() -> None:
    async def test() -> None:
        engine = Busy()
        lanes = [_lane(name="mine", running=1, queued=9, backends=["b"]), _lane(name="default")]
        async with several(2, engine, lanes=lanes) as (s, engines):
            clients = [await s.client() for _ in range(4)]
            for client in clients:
                await client.send(request(chat_body(stream=False)))
            await s.until(lambda: s.gateway.lanes.snapshot(0)["mine"]["queued"] == 3)
            plain = to_plain(s.gateway.config)
            plain["backends"][1]["name"] = "c"
            plain["lanes"] = [{**plain["lanes"][0], "name": "yours", "backends": ["c"]}, plain["lanes"][1]]
            s.gateway.reconfigure(config_from(plain))
            engine.free.set()
            statuses = [(await client.reply()).status for client in clients]
            for client in clients:
                client.close()
            assert statuses == [200] * 4
            await s.record(4)
            assert {(record.lane, record.backend) for record in s.records.all} == {("mine", "b"), ("yours", "c")}
            assert not engines[0].requests

    run(test())


def test_who_is_let_go_by_a_reload_goes_where_the_reload_says() -> None:
    """The rung that held it is taken back by the same change that renames every backend and its canary."""

    async def test() -> None:
        engine = Busy()
        ladder = {"enabled": True, "rungs": ["batch"], "pin": 1}
        canary = {"backends": ["b"], "steps": [0.5, 1.0]}
        lanes = [_lane(running=4, queued=20)]
        async with several(2, engine, lanes=lanes, degradation=ladder, canary=canary) as (s, _):
            await asyncio.sleep(0.6)
            clients = [await s.client() for _ in range(10)]
            for client in clients:
                await client.send(request(chat_body(stream=False)))
            await s.until(lambda: s.gateway.lanes.snapshot(0)["default"]["queued"] >= 7)
            plain = to_plain(s.gateway.config)
            for backend in plain["backends"]:
                backend["name"] += "2"
            plain["canary"] = {**plain["canary"], "backends": ["b2"]}
            plain["degradation"] = {"enabled": False}
            s.gateway.reconfigure(config_from(plain))
            engine.free.set()
            statuses = [(await client.reply()).status for client in clients]
            for client in clients:
                client.close()
            assert statuses == [200] * 10

    run(test())
