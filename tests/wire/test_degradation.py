"""The degradation ladder on real sockets: an engine with two places, more clients than it serves, and calm after."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from typing import Any

import pytest

from tailrace.app.gateway_process import GatewayProcess
from tailrace.gateway.config import config_from
from tailrace.govern.ladder import Signal
from tailrace.model.outcome import OutcomeKind, Reason
from tailrace.web.source import rungs_in_force
from tests.wire.client import Reply, chat_body, request
from tests.wire.scripted import DONE, SSE_HEAD, Incoming, finish, token
from tests.wire.stand import Stand, run, stand
from tests.wire.test_admin import admin_of


class Narrow:
    """Serves two at a time, each for a while; the others wait inside it, as in an engine."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.places = asyncio.Semaphore(2)
        self.models: list[str] = []

    async def __call__(self, incoming: Incoming) -> None:
        self.models.append(incoming.json["model"])
        async with self.places:
            await asyncio.sleep(self.seconds)
            await incoming.send(SSE_HEAD)
            await incoming.chunks(token(), finish(), DONE)
            await incoming.end()


def ladder(*rungs: str, **more: Any) -> dict[str, Any]:
    quick = {"confirm": "50ms", "dwell": "1s", "calm": "1s", "window": "2s"}
    return {"enabled": True, "rungs": list(rungs), **quick, **more}


LANES = [
    {"name": "background", "match": {"header": {"x-lane": "background"}}, "priority": "low", "running": 16},
    {"name": "default", "running": 16, "objectives": {"ttft_p99": "200ms"}},
]


@contextlib.asynccontextmanager
async def crowd(s: Stand, clients: int, replies: list[Reply], lanes: Iterable[str] = ("default",)) -> Any:
    """So many clients that ask again as soon as they are answered, until the block ends."""
    stop = asyncio.Event()
    names = list(lanes)

    async def one(number: int) -> None:
        headers = {"X-Lane": names[number % len(names)]}
        while not stop.is_set():
            replies.append(await s.ask(request(chat_body(), headers=headers)))
            if replies[-1].status == 429:
                await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(one(number))
        try:
            yield
        finally:
            stop.set()


def step(s: Stand) -> int:
    assert s.gateway.degradation is not None
    return s.gateway.degradation.ladder.step


def test_overload_takes_the_rungs_and_calm_gives_them_back() -> None:
    replies: list[Reply] = []

    async def test() -> None:
        engine = Narrow(0.15)
        async with (
            # A long queue budget: what is refused, the ladder refuses.
            stand(engine, lanes=LANES, budgets={"queue": "600s"}, degradation=ladder("batch", "refuse")) as s,
            admin_of(s.gateway) as admin,
        ):
            async with crowd(s, 12, replies, ("default", "default", "background")):
                await s.until(lambda: step(s) == 2, within=6)
                view = (await admin.get("/degradation"))[1]["degradation"][0]
                assert [rung["on"] for rung in view["rungs"]] == [True, True]
                assert rungs_in_force([{"enabled": False}, view, view]) == ["batch", "refuse"]
                assert [event["rung"] for event in view["events"]] == ["batch", "refuse"]
                assert {event["signal"] for event in view["events"]} <= {"ttft", "queue_wait", "predicted_wait"}
                assert all(event["value"] >= event["threshold"] for event in view["events"])
                await s.until(lambda: any(reply.status == 429 for reply in replies))
                await asyncio.sleep(0.5)
            refused = next(reply for reply in replies if reply.status == 429)
            error = refused.json["error"]
            assert error["reason"] == "degraded"
            assert int(refused.headers["retry-after"]) == error["retry_after_s"] >= 1
            assert "heavy load" in error["message"]
            assert "Try again in" in error["message"]
            assert {reply.status for reply in replies} == {200, 429}
            records = s.records.all
            assert {r.degradation for r in records} == {"", "batch", "batch,refuse", "refuse"}
            degraded = [r for r in records if r.reason is Reason.DEGRADED]
            assert {(r.outcome, r.degradation) for r in degraded} == {(OutcomeKind.REJECTED, "refuse")}
            assert "background" in {r.lane for r in degraded}
            # All is quiet: the rungs go, and with them every limit.
            await s.until(lambda: step(s) == 0, within=8)
            assert (await s.ask(request(chat_body(), headers={"X-Lane": "background"}))).status == 200
            assert s.records.all[-1].degradation == ""
            view = (await admin.get("/degradation"))[1]["degradation"][0]
            assert (view["step"], view["steps_up"], view["steps_down"]) == (0, 2, 2)

    run(test())


def test_a_full_lane_does_not_take_its_places_from_one_that_has_room() -> None:
    """Somebody always waits for the one place for documents: chat beside it, on an engine with room, loses nothing."""
    replies: list[Reply] = []

    async def script(incoming: Incoming) -> None:
        await asyncio.sleep(0.3)
        await incoming.stream(1)

    async def test() -> None:
        lanes = [
            {"name": "documents", "match": {"header": {"x-lane": "documents"}}, "running": 1, "queued": 8},
            {"name": "default", "running": 16},
        ]
        for lane in lanes:
            lane["objectives"] = {"ttft_p99": "400ms"}
        async with stand(script, lanes=lanes, budgets={"queue": "5s"}, degradation=ladder("batch", "refuse")) as s:
            async with crowd(s, 3, [], ("documents",)), crowd(s, 6, replies):
                await s.until(lambda: step(s) >= 1, within=6)
                assert s.gateway.degradation is not None
                assert s.gateway.degradation.ladder.events[0].signal in (Signal.QUEUE_WAIT, Signal.PREDICTED_WAIT)
                await asyncio.sleep(2)
            assert len(replies) > 20
            assert {reply.status for reply in replies} == {200}
            waits = [r.queue_gateway_ns or 0 for r in s.records.all if r.lane == "default"]
            assert max(waits) < 100_000_000

    run(test())


def test_a_pin_holds_it_and_a_smaller_model_answers() -> None:
    async def test() -> None:
        engine = Narrow(0.0)
        config = ladder("smaller_model", "refuse", models={"m": "m-small"})
        async with stand(engine, lanes=LANES, degradation=config) as s, admin_of(s.gateway) as admin:
            await s.ask(request(chat_body()))
            status, body = await admin.post("/degradation", {"pin": 1})
            assert status == 200
            assert (body["degradation"][0]["step"], body["degradation"][0]["pinned"]) == (1, True)
            assert body["degradation"][0]["events"][-1]["cause"] == "pinned"
            await s.ask(request(chat_body()))
            assert engine.models == ["m", "m-small"]
            record = await s.record(2)
            assert (record.model, record.requested_model, record.degradation) == ("m-small", "m", "smaller_model")
            # Calm does not move what is pinned; letting go does.
            await asyncio.sleep(1.6)
            assert step(s) == 1
            await admin.post("/degradation", {"pin": None})
            await s.until(lambda: step(s) == 0, within=5)
            for wrong in ({"pin": 3}, {"pin": "high"}, {"step": 1}, {}):
                status, body = await admin.post("/degradation", wrong)
                assert status == 400
                assert body["error"]["remedy"]

    run(test())


def test_answers_are_capped_and_long_prompts_shortened_while_the_rungs_are_on() -> None:
    asked: list[dict[str, Any]] = []

    async def script(incoming: Incoming) -> None:
        asked.append(incoming.json)
        await incoming.stream(1)

    long = [{"role": "user", "content": f"part {number}: " + "words and more words. " * 20} for number in range(40)]

    async def test() -> None:
        config = ladder("cap", "shrink", cap=64, shrink=500, pin=2)
        async with stand(script, degradation=config) as s, admin_of(s.gateway) as admin:
            for body in (
                chat_body(max_tokens=1000),
                chat_body(max_tokens=10),
                chat_body(),
                chat_body(n=4),
                chat_body(messages=long, max_tokens=10),
            ):
                await s.ask(request(body))
            await s.record(5)
            assert [body.get("max_tokens", body.get("max_completion_tokens")) for body in asked] == [64, 10, 64, 16, 10]
            assert [r.degradation for r in s.records.all] == ["cap", "", "cap", "cap", "shrink"]
            assert s.records.all[0].capped_to == 64
            shortened = s.records.all[4]
            assert shortened.truncated_from is not None
            assert shortened.truncated_from > 500
            assert len(asked[4]["messages"]) < len(long)
            # The first rung alone, and none.
            await admin.post("/degradation", {"pin": 1})
            await s.ask(request(chat_body(messages=long, max_tokens=1000)))
            assert (len(asked[5]["messages"]), asked[5]["max_tokens"]) == (40, 64)
            await admin.post("/degradation", {"pin": 0})
            await s.ask(request(chat_body(max_tokens=1000)))
            assert asked[6]["max_tokens"] == 1000
            assert (await s.record(7)).degradation == ""

    run(test())


def test_old_answers_are_good_enough_while_the_rung_is_on() -> None:
    engine = Narrow(0.0)
    ask = request(chat_body(temperature=0))

    async def test() -> None:
        cache = {"routes": [{"ttl": "1s"}]}
        async with stand(engine, cache=cache, degradation=ladder("cached", pin=0)) as s, admin_of(s.gateway) as admin:
            await s.ask(ask)
            assert (await s.ask(ask)).headers["x-tailrace-cache"].startswith("hit")
            await asyncio.sleep(1.6)  # it is too old, and kept for the rung
            await admin.post("/degradation", {"pin": 1})
            assert (await s.ask(ask)).headers["x-tailrace-cache"].startswith("hit")
            assert [r.degradation for r in (await s.record(3), *s.records.all)] == ["cached", "", "", "cached"]
            assert len(engine.models) == 1
            await admin.post("/degradation", {"pin": 0})
            assert (await s.ask(ask)).headers["x-tailrace-cache"] == "miss"
            assert len(engine.models) == 2

    run(test())


def test_it_is_off_unless_asked_for_and_can_be_switched_while_it_serves() -> None:
    async def test() -> None:
        async with stand(lanes=LANES) as s, admin_of(s.gateway) as admin:
            assert s.gateway.degradation is None
            assert (await admin.get("/degradation"))[1]["degradation"][0]["enabled"] is False
            status, body = await admin.post("/degradation", {"pin": 1})
            assert (status, body["error"]["place"]) == (400, "degradation.enabled")
            await admin.post("/config", {"degradation": ladder("refuse", pin=1)})
            reply = await s.ask(request(chat_body(), headers={"X-Lane": "background"}))
            assert (reply.status, reply.json["error"]["reason"]) == (429, "degraded")
            await admin.post("/config", {"degradation": {"enabled": False}})
            assert s.gateway.degradation is None
            assert (await s.ask(request(chat_body(), headers={"X-Lane": "background"}))).status == 200
            assert s.gateway.gaps.listeners == []

    run(test())


def test_low_priority_goes_only_when_nobody_waits() -> None:
    """Both lanes full. The first place that comes free is for the one that came later and is no background work."""
    order: list[str] = []

    async def script(incoming: Incoming) -> None:
        order.append(incoming.json["model"])
        await asyncio.sleep(0.4)
        await incoming.stream(1)

    async def test() -> None:
        lanes = [{**lane, "running": 1} for lane in LANES]
        config = ladder("low_waits", pin=1)
        async with stand(script, lanes=lanes, degradation=config) as s:
            async with asyncio.TaskGroup() as group:

                async def ask(model: str, lane: str) -> None:
                    await s.ask(request(chat_body(model=model), headers={"X-Lane": lane}))

                for model, lane in (("b1", "background"), ("d1", "default")):
                    group.create_task(ask(model, lane))
                await s.until(lambda: len(order) == 2)
                for model, lane in (("b2", "background"), ("d2", "default"), ("d3", "default")):
                    group.create_task(ask(model, lane))
                    await asyncio.sleep(0.05)
            # With lanes that know nothing of one another b2 would have followed b1 at once.
            assert order.index("b2") > order.index("d2")
            assert {r.outcome for r in (await s.record(5), *s.records.all)} == {OutcomeKind.COMPLETED}

    run(test())


def test_who_never_gets_a_token_is_seen_while_he_waits() -> None:
    """An engine that hangs has no finished request to be measured by."""

    async def script(incoming: Incoming) -> None:
        await incoming.until_gone()

    async def test() -> None:
        budgets = {"first_token": "2500ms"}
        async with stand(script, lanes=LANES, budgets=budgets, degradation=ladder("batch", "refuse")) as s:
            began = time.monotonic()
            tasks = [asyncio.ensure_future(s.ask(request(chat_body()))) for _ in range(6)]
            await s.until(lambda: step(s) >= 1, within=2.4)
            assert s.gateway.degradation is not None
            assert s.gateway.degradation.ladder.signals[Signal.TTFT] > 1
            assert time.monotonic() - began < 2.5
            assert {reply.status for reply in await asyncio.gather(*tasks)} == {504}

    run(test())


@pytest.mark.parametrize("enabled", [True, False])
def test_metrics_show_the_step(enabled: bool, tmp_path: Any) -> None:
    config = config_from(
        {
            "backends": [{"url": "http://127.0.0.1:9"}],
            "degradation": ladder("cap", "refuse", enabled=enabled, pin=2),
            "records": {"dir": str(tmp_path)},
        }
    )
    process = GatewayProcess(config)
    try:
        text = process.metrics.render()[0].decode()
        assert ("tailrace_degradation_step 2.0" in text) is enabled
        assert ('tailrace_degradation_steps_total{direction="up"} 1.0' in text) is enabled
    finally:
        process.writer.close()
