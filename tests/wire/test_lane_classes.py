"""Classification, keys, tenants, limits in tokens and in prefill, priorities: on real sockets."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from typing import Any

import pytest

from tailrace.gateway.admin import _without_secrets
from tailrace.gateway.config import config_from, to_plain
from tailrace.model.outcome import OutcomeKind, Reason
from tests.wire.client import chat_body, request
from tests.wire.scripted import DONE, SSE_HEAD, Incoming, finish, token, usage
from tests.wire.scripted import chunk as framed
from tests.wire.stand import Stand, run, stand
from tests.wire.test_backends import several
from tests.wire.test_lanes import Busy

SECRET = "sk-batch-0123456789"
WEB = "sk-web-9876543210"
LANES = [
    {"name": "batch", "match": {"header": {"x-lane": "batch"}}, "priority": "low"},
    {"name": "voice", "match": {"min_audio_seconds": 0.5}},
    {"name": "essays", "match": {"min_output_tokens": 1000, "path": "/v1/chat/*"}},
    {"name": "default"},
]
KEYS = {
    "nightly": {"value": SECRET, "tenant": "acme", "lanes": ["batch"]},
    "web": {"sha256": sha256(WEB.encode()).hexdigest()},
}


async def _lane(s: Stand, *, body: bytes | None = None, **headers: str) -> str:
    asked = request(body or chat_body(max_tokens=5), headers={name.replace("_", "-"): v for name, v in headers.items()})
    reply = await s.ask(asked)
    assert reply.status == 200, reply.body
    return reply.headers["x-tailrace-lane"]


def test_x_lane_is_honoured_only_for_a_key_that_may_ask_for_the_lane() -> None:
    async def test() -> None:
        async with stand(lanes=LANES, keys=KEYS) as s:
            assert await _lane(s, x_lane="batch", authorization=f"Bearer {SECRET}") == "batch"
            assert await _lane(s, x_lane="batch", x_api_key=SECRET) == "batch"
            assert await _lane(s, x_lane="batch", authorization=f"Bearer {WEB}") == "default"
            assert await _lane(s, x_lane="batch", authorization=f"Bearer {SECRET}x") == "default"
            assert await _lane(s, x_lane="batch") == "default"
            assert await _lane(s, x_lane="voice", authorization=f"Bearer {SECRET}") == "default"
            tenants = [record.tenant for record in s.records.all]
            assert tenants == ["acme", "acme", "web", "", "", "acme"]
            for record in s.records.all:
                assert SECRET not in str(record)
                assert WEB not in str(record)

    run(test())


def test_without_keys_a_match_on_x_lane_is_a_match_like_any_other() -> None:
    async def test() -> None:
        async with stand(lanes=LANES) as s:
            assert await _lane(s, x_lane="batch") == "batch"

    run(test())


def test_requested_output_sorts_requests_and_a_request_without_a_bound_counts_as_long() -> None:
    async def test() -> None:
        async with stand(lanes=LANES) as s:
            assert await _lane(s, body=chat_body(max_tokens=999)) == "default"
            assert await _lane(s, body=chat_body(max_tokens=1000)) == "essays"
            assert await _lane(s, body=chat_body()) == "essays"

    run(test())


def test_a_key_can_be_demanded_and_is_not_passed_on() -> None:
    async def test() -> None:
        seen: list[dict[str, str]] = []

        async def engine(incoming: Incoming) -> None:
            seen.append(incoming.headers)
            await incoming.completion()

        async with stand(engine, lanes=LANES, keys=KEYS, require_key=True) as s:
            for headers in ({}, {"authorization": "Bearer nobody"}, {"authorization": f"Basic {SECRET}"}):
                reply = await s.ask(request(chat_body(stream=False), headers=headers))
                assert reply.status == 401
                assert reply.json["error"]["code"] == "unauthorized"
            assert not seen
            ok = await s.ask(request(chat_body(stream=False), headers={"authorization": f"Bearer {WEB}"}))
            assert ok.status == 200
            assert (await s.ask(request(path="/v1/models", method="GET"))).status == 401
            assert "authorization" not in seen[0]
            reasons = {(r.outcome, r.reason) for r in s.records.all if r.http_status == 401}
            assert reasons == {(OutcomeKind.REJECTED, Reason.UNAUTHORIZED)}

    run(test())


def test_a_foreign_key_reaches_an_engine_that_has_keys_of_its_own() -> None:
    async def test() -> None:
        seen: list[dict[str, str]] = []

        async def engine(incoming: Incoming) -> None:
            seen.append(incoming.headers)
            await incoming.completion()

        async with stand(engine, keys={"web": KEYS["web"]}) as s:
            await s.ask(request(chat_body(stream=False), headers={"authorization": "Bearer engines-own"}))
            assert seen[0]["authorization"] == "Bearer engines-own"

    run(test())


def test_a_flood_of_one_tenant_holds_up_another_by_one_request_at_most() -> None:
    async def test() -> None:
        engine = Busy(0.03)
        lane = {"name": "default", "running": 1, "queued": 100, "budgets": {"queue": "30s"}}
        async with stand(engine, lanes=[lane], tenant_header="x-tenant") as s:

            async def ask(tenant: str, number: int) -> None:
                body = chat_body(stream=False, who=f"{tenant}{number}", max_tokens=10)
                assert (await s.ask(request(body, headers={"x-tenant": tenant}))).status == 200

            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(ask("flood", number))
                await asyncio.sleep(0.1)
                for number in range(3):
                    group.create_task(ask("modest", number))
            order = [str(who) for who in engine.order]
            last = order.index("modest2")
            assert last <= order.index("modest0") + 5
            assert last < 15, order
            assert {record.tenant for record in s.records.all} == {"flood", "modest"}

    run(test())


def _held(free: asyncio.Event, order: list[Any]) -> Any:
    """Streams whose first token comes when `free` says so, and whose end comes only with the next `free`."""

    async def engine(incoming: Incoming) -> None:
        order.append(incoming.json.get("who"))
        await incoming.send(SSE_HEAD)
        await free.wait()
        await incoming.send(framed(token()))
        await asyncio.sleep(0.3)
        await incoming.chunks(finish(), usage(7, 2), DONE)
        await incoming.end()

    return engine


def test_prefill_is_bounded_until_the_first_token_and_the_next_goes_while_others_decode() -> None:
    async def test() -> None:
        free, order = asyncio.Event(), []
        lane = {"name": "default", "running": 10, "prefill_requests": 2, "budgets": {"queue": "10s"}}
        async with stand(_held(free, order), lanes=[lane]) as s:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(s.ask(request(chat_body(who=number)))) for number in range(5)]
                await asyncio.sleep(0.2)
                assert len(order) == 2
                view = s.gateway.lanes.snapshot(0)["default"]
                assert (view["prefill_requests"], view["queued"]) == (2, 3)
                free.set()
                await asyncio.sleep(0.15)
                assert len(order) == 5, "the first tokens let the others in, long before the first stream ended"
            assert all(task.result().status == 200 for task in tasks)

    run(test())


def test_the_kv_limit_counts_prompt_and_output_and_what_is_refused_says_which_limit() -> None:
    async def test() -> None:
        engine = Busy()
        lane = {"name": "default", "running_kv_tokens": 400, "queued_tokens": 200, "budgets": {"queue": "10s"}}
        async with stand(engine, lanes=[lane]) as s:
            client = [
                asyncio.create_task(s.ask(request(chat_body(stream=False, who=number, max_tokens=190))))
                for number in range(3)
            ]
            await asyncio.sleep(0.2)
            assert engine.now == 2
            reply = await s.ask(request(chat_body(stream=False, max_tokens=190)))
            assert reply.status == 429
            assert reply.json["error"]["code"] == "token_backlog"
            assert "tokens" in reply.json["error"]["message"]
            assert int(reply.headers["retry-after"]) >= 1
            engine.free.set()
            assert [(await one).status for one in client] == [200, 200, 200]

    run(test())


def test_a_lane_uses_only_its_backends_and_is_refused_with_503_when_they_are_away() -> None:
    async def test() -> None:
        async def engine(incoming: Incoming) -> None:
            await incoming.completion()

        lanes = [{"name": "big", "match": {"header": {"x-size": "big"}}, "backends": ["b"]}, {"name": "default"}]
        async with several(2, engine, lanes=lanes) as (s, _):
            big = request(chat_body(stream=False), headers={"x-size": "big"})
            for _ in range(4):
                assert (await s.ask(big)).status == 200
            assert {record.backend for record in s.records.all} == {"b"}
            backend = s.gateway.backends.named("b")
            assert backend is not None
            backend.engine.drain(on=True)
            await asyncio.sleep(0.12)
            gone = await s.ask(big)
            assert gone.status == 503
            assert gone.json["error"]["code"] == "no_backend"
            assert int(gone.headers["retry-after"]) >= 1
            assert (await s.ask(request(chat_body(stream=False)))).status == 200

    run(test())


@pytest.mark.parametrize(
    ("engine", "mode", "sent", "headers", "expected"),
    [
        ("vllm", True, {}, {}, 10),
        ("sglang", True, {}, {}, -10),
        ("llamacpp", True, {}, {}, None),
        ("vllm", False, {}, {}, None),
        ("vllm", True, {"priority": 3}, {}, 3),
        ("vllm", "override", {"priority": 3}, {}, 10),
        ("vllm", True, {}, {"x-vllm-priority": "2"}, None),
        ("vllm", "override", {}, {"x-vllm-priority": "2"}, 10),
        ("vllm", True, {"metadata": {"priority": "no member of the request's own"}}, {}, 10),
    ],
    ids=str,
)
def test_a_lane_tells_the_engine_its_priority_in_the_engines_sign(engine, mode, sent, headers, expected) -> None:
    async def test() -> None:
        seen: list[Incoming] = []

        async def script(incoming: Incoming) -> None:
            seen.append(incoming)
            await incoming.completion()

        backend = {"engine": engine, "forward_priority": mode}
        async with stand(script, lanes=LANES, backend=backend) as s:
            asked = request(chat_body(stream=False, **sent), headers={"x-lane": "batch", **headers})
            assert (await s.ask(asked)).status == 200
            assert seen[0].json.get("priority") == expected
            assert seen[0].json["messages"][0]["content"] == "hello there"
            if mode == "override":
                assert "x-vllm-priority" not in seen[0].headers

    run(test())


def test_triton_gets_levels_from_one() -> None:
    async def test() -> None:
        seen: list[dict] = []

        async def script(incoming: Incoming) -> None:
            seen.append(incoming.json)
            await incoming.reply({"model_name": "m", "text_output": "hello"})

        backend = {"engine": "triton", "forward_priority": True}
        async with stand(script, lanes=LANES, backend=backend) as s:
            path = "/v2/models/m/generate"
            for headers in ({}, {"x-lane": "batch"}):
                body = json.dumps({"text_input": "hello", "parameters": {"max_tokens": 5}}).encode()
                assert (await s.ask(request(body, path=path, headers=headers))).status == 200
            assert [one["parameters"] for one in seen] == [
                {"max_tokens": 5, "priority": 1},
                {"max_tokens": 5, "priority": 2},
            ]

    run(test())


def test_the_engines_own_queue_is_a_limit_where_that_is_wanted() -> None:
    async def test() -> None:
        engine = Busy()
        metrics = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 9\nvllm:kv_cache_usage_perc 0.1\n"
        lane = {"name": "default", "budgets": {"queue": "300ms"}}
        room = {"max_waiting": 2}
        async with stand(
            engine,
            side={"/metrics": metrics},
            lanes=[lane],
            engine_room=room,
            scrape={"period": "100ms"},
            backend={"engine": "vllm"},
        ) as s:
            await asyncio.sleep(0.3)
            first = asyncio.create_task(s.ask(request(chat_body(stream=False))))
            await asyncio.sleep(0.1)
            assert engine.now == 1, "with none of ours there, one may go"
            late = await s.ask(request(chat_body(stream=False)))
            assert late.status == 429
            assert late.json["error"]["code"] == "queue_timeout"
            engine.free.set()
            assert (await first).status == 200

    run(test())


def test_views_show_names_and_no_secrets() -> None:
    plain = to_plain(config_from({"backends": [{"url": "http://127.0.0.1:1"}], "lanes": LANES, "keys": KEYS}))
    assert SECRET not in str(_without_secrets(plain))
    assert "nightly" in str(_without_secrets(plain))


def test_a_burst_of_forty_at_four_and_four_is_four_at_work_four_queued_and_the_rest_told_at_once() -> None:
    async def test() -> None:
        engine = Busy(0.2)
        lane = {"name": "default", "running": 4, "queued": 4, "budgets": {"queue": "30s"}}
        async with stand(engine, lanes=[lane]) as s:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(s.ask(request(chat_body(stream=False)))) for _ in range(40)]
            statuses = [task.result().status for task in asked]
            assert (statuses.count(200), statuses.count(429)) == (8, 32)
            assert engine.peak == 4
            for task in asked:
                assert task.result().status == 200 or int(task.result().headers["retry-after"]) >= 1
            refused = [record.e2e_ns for record in s.records.all if record.http_status == 429]
            assert sorted(refused)[len(refused) // 2] < 50e6, "the machine was busy, but half of them not that busy"

    run(test())
