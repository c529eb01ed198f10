"""What the gateway makes of an engine's metrics while it serves: frozen, drained, foreign, its counts beside ours."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from tests.wire.client import chat_body, request
from tests.wire.scripted import Incoming
from tests.wire.stand import run, stand
from tests.wire.test_admin import admin_of


class Metrics(dict[str, bytes]):
    """`/metrics` of a vLLM that tests set."""

    def __init__(self) -> None:
        super().__init__({"/metrics": b""})
        self.running, self.waiting, self.tokens, self.kv = 0, 0, 0, 0.1
        self.moves = False
        """Every scrape shows one token more."""

    def __getitem__(self, path: str) -> bytes:
        self.tokens += self.moves
        return (
            b"vllm:num_requests_running %d\nvllm:num_requests_waiting %d\nvllm:kv_cache_usage_perc %f\n"
            b"vllm:generation_tokens_total %d\nvllm:num_preemptions_total 0\n"
            % (self.running, self.waiting, self.kv, self.tokens)
        )


FAST: dict[str, Any] = {"period": "20ms", "frozen": "150ms"}


def test_health_200_but_frozen_is_not_ready(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        side: Any = Metrics()
        side.running, side.moves = 3, True
        async with stand(side=side, scrape=FAST) as s, admin_of(s.gateway) as admin:
            await s.until(lambda: s.gateway.backends.first.engine.watch.scrapes > 10)
            assert (await admin.get("/readyz"))[0] == 200
            side.moves = False
            await s.until(lambda: s.gateway.backends.first.engine.judge.frozen is not None)
            status, ready = await admin.get("/readyz")
            assert status == 503
            assert "is frozen: the engine runs 3 requests and has computed nothing for" in ready["why"]
            (backend,) = (await admin.get("/backends"))[1]["backends"]
            assert backend["frozen"].startswith("the engine runs 3 requests")
            assert backend["reachable"] is True
            scrapes = s.gateway.backends.first.engine.watch.scrapes
            await s.until(lambda: s.gateway.backends.first.engine.watch.scrapes > scrapes + 5)
            side.moves = True
            await s.until(lambda: s.gateway.backends.first.engine.judge.frozen is None)
            assert (await admin.get("/readyz"))[0] == 200

    with caplog.at_level(logging.WARNING):
        run(test())
    said = [record.message for record in caplog.records if "frozen" in record.message]
    assert len(said) == 2, said
    assert "is frozen" in said[0]
    assert "not frozen any more" in said[1]


def test_draining_200() -> None:
    """The engine says 200 while it drains; an operator keeps new requests away, and those under way end."""

    go = asyncio.Event()

    async def answer(incoming: Incoming) -> None:
        if incoming.body and incoming.json.get("user") == "slow":
            await go.wait()
        await incoming.stream()

    async def test() -> None:
        async with stand(answer) as s, admin_of(s.gateway) as admin:
            under_way = await s.client()
            await under_way.send(request(chat_body(user="slow")))
            await s.until(lambda: len(s.engine.requests) == 1)
            status, said = await admin.post("/backends/default", {"drain": True})
            assert status == 200
            assert said["backends"][0]["draining"] is True
            status, ready = await admin.get("/readyz")
            assert (status, "an operator drains" in ready["why"]) == (503, True)
            # A connection that is known already, and one that is not.
            for _ in range(2):
                reply = await s.ask(request(chat_body()))
                assert reply.status == 503
                assert json.loads(reply.body)["error"]["code"] == "no_backend"
                assert s.engine.url.encode() not in reply.body
                assert reply.headers["retry-after"] == "5"
            assert len(s.engine.requests) == 1
            go.set()
            reply = await under_way.reply()
            assert (reply.status, b"[DONE]" in reply.body) == (200, True)
            assert (await admin.post("/backends/default", {"drain": False}))[0] == 200
            assert (await s.ask(request(chat_body()))).status == 200
            for name, body in (("nobody", {"drain": True}), ("default", {"drain": 1}), ("default", {})):
                status, error = await admin.post(f"/backends/{name}", body)
                assert status == 400
                assert error["error"]["remedy"]
            await s.record(4)

    run(test())


def models(*names: str) -> bytes:
    return json.dumps({"object": "list", "data": [{"id": name, "object": "model"} for name in names]}).encode()


def test_foreign_server_on_port(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        side = {"/v1/models": models("somebody/else"), "/health": b"{}"}
        async with stand(side=side, backend={"model": "mine"}) as s, admin_of(s.gateway) as admin:
            await s.until(lambda: s.gateway.backends.first.engine.shut != "")
            status, ready = await admin.get("/readyz")
            assert status == 503
            assert "is not the engine: it lists 'somebody/else', not 'mine'" in ready["why"]
            reply = await s.ask(request(chat_body()))
            assert reply.status == 503
            assert b"somebody/else" not in reply.body
            assert s.engine.requests == []
            side["/v1/models"] = models("other", "mine")
            s.gateway.backends.first.engine.identity.again()
            s.gateway.backends.first.engine.watch.wake()
            await s.until(lambda: s.gateway.backends.first.engine.shut == "")
            assert (await admin.get("/readyz"))[0] == 200
            assert (await s.ask(request(chat_body()))).status == 200
            await s.record(2)

    with caplog.at_level(logging.WARNING):
        run(test())
    said = [record.message for record in caplog.records if "backend default" in record.message]
    assert len(said) == 2, said


def test_without_a_model_to_look_for_what_is_found_is_shown() -> None:
    async def test() -> None:
        async with stand(side={"/v1/models": models("a", "b")}) as s, admin_of(s.gateway) as admin:
            await s.until(lambda: s.gateway.backends.first.engine.identity.models is not None)
            (backend,) = (await admin.get("/backends"))[1]["backends"]
            assert backend["models"] == ["a", "b"]
            assert backend["shut"] == ""
        async with stand() as s:
            await s.until(lambda: s.gateway.backends.first.engine.watch.scrapes > 0)
            assert (await s.ask(request(chat_body()))).status == 200
            assert s.gateway.backends.first.engine.identity.models is None

    run(test())


def test_a_record_says_how_old_the_state_was() -> None:
    async def test() -> None:
        side: Any = Metrics()
        side.running, side.waiting, side.kv = 5, 2, 0.5
        async with stand(side=side, scrape={"period": "30s", "stale": "60s"}) as s:
            await s.until(lambda: s.gateway.backends.first.engine.watch.counts)
            await s.ask(request(chat_body()))
            record = await s.record()
            assert (record.running_at_admission, record.waiting_at_admission) == (5, 2)
            assert record.kv_usage_at_first_token == 0.5
            assert record.engine_state_age_ns is not None
            assert 0 < record.engine_state_age_ns < 20 * 10**9
        async with stand() as s:
            await s.ask(request(chat_body()))
            record = await s.record()
            assert (record.running_at_admission, record.engine_state_age_ns) == (None, None)

    run(test())


def test_suspected_preemption_is_shown() -> None:
    async def test() -> None:
        side: Any = Metrics()
        side.running, side.waiting, side.kv, side.moves = 4, 4, 0.98, True
        async with stand(side=side, scrape=FAST) as s, admin_of(s.gateway) as admin:
            await s.until(lambda: s.gateway.backends.first.engine.watch.scrapes > 3)
            (backend,) = (await admin.get("/backends"))[1]["backends"]
            assert backend["preemption"].startswith("preemption is suspected: 4 requests wait")
            assert backend["window"]["signals"]["preemptions"]["n"] == 0

    run(test())
