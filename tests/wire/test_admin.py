"""The admin API over HTTP, beside a gateway that serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from tailrace.gateway.admin import AdminParts, admin_runner, make_admin
from tailrace.gateway.gateway import Gateway
from tailrace.gateway.served import OneGateway
from tailrace.model.errors import StoreError
from tailrace.model.record import RequestRecord
from tests.wire.client import chat_body, request
from tests.wire.scripted import Incoming, token
from tests.wire.stand import run, stand


class Admin:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url

    async def get(self, path: str, **options: Any) -> tuple[int, Any]:
        async with self.session.get(self.url + path, **options) as answer:
            body = await answer.read()
            return answer.status, msgspec.json.decode(body) if answer.content_type == "application/json" else body

    async def post(self, path: str, value: Any, **options: Any) -> tuple[int, Any]:
        async with self.session.post(self.url + path, json=value, **options) as answer:
            return answer.status, msgspec.json.decode(await answer.read())

    async def records(self, query: str = "") -> list[dict[str, Any]]:
        _, body = await self.get("/records" + query)
        return [msgspec.json.decode(line) for line in body.splitlines()]


@asynccontextmanager
async def admin_of(gateway: Gateway, **parts: Any) -> AsyncIterator[Admin]:
    added = AdminParts(
        **{name: parts.pop(name) for name in ("diagnose", "latest", "alerts", "spans", "of_engine") if name in parts}
    )
    admin = make_admin(OneGateway(gateway, **parts), added)
    runner = admin_runner(admin)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    async with aiohttp.ClientSession() as session:
        try:
            yield Admin(session, f"http://{host}:{port}")
        finally:
            await runner.cleanup()


def test_health_readiness_and_backends() -> None:
    async def test() -> None:
        async with stand() as s, admin_of(s.gateway, store_counters=lambda: {"acknowledged": 4}) as admin:
            await s.until(lambda: s.gateway.backends.first.engine.reachable is True)
            status, health = await admin.get("/healthz")
            assert (status, health["status"], health["in_flight"]) == (200, "ok", 0)
            assert health["store"] == {"acknowledged": 4}
            assert (await admin.get("/readyz"))[0] == 200
            _, backends = await admin.get("/backends")
            assert backends["backends"][0]["url"] == s.engine.url
            s.gateway.backends.first.engine.watch.unreachable()
            status, ready = await admin.get("/readyz")
            assert status == 503
            assert s.engine.url in ready["why"]

    run(test())


def test_records_by_time_limit_and_id() -> None:
    async def test() -> None:
        async with stand() as s, admin_of(s.gateway) as admin:
            for index in range(5):
                await s.ask(request(chat_body(), headers={"X-Request-Id": f"mine-{index}"}))
            await s.record(5)
            found = await admin.records()
            assert [record["client_request_id"] for record in found] == [f"mine-{index}" for index in range(5)]
            assert [r["request_id"] for r in await admin.records("?limit=2")] == [r["request_id"] for r in found[-2:]]
            since = found[2]["start_unix_ns"]
            assert len(await admin.records(f"?since={since}")) == 2
            # The same instant in ms and in s, rounded down: nothing is lost.
            assert len(await admin.records(f"?since={since // 10**6}")) >= 2
            assert len(await admin.records(f"?since={since / 1e9 - 60}")) == 5
            status, one = await admin.get("/records/" + found[0]["request_id"])
            assert status == 200
            assert one["outcome"] == "completed"
            assert (await admin.get("/records/mine-3"))[1]["request_id"] == found[3]["request_id"]
            assert (await admin.get("/records/nobody"))[0] == 404
            for query in ("?limit=x", "?since=yesterday", "?limit=-1", f"?since={2**63}", f"?since={10**20 - 1}"):
                status, body = await admin.get("/records" + query)
                assert status == 400
                assert body["error"]["remedy"]

    run(test())


def test_records_older_than_memory_come_from_the_store() -> None:
    class Older:
        def __init__(self) -> None:
            self.all: list[RequestRecord] = []

        def records(self, since_unix_ns: int | None, limit: int, vantage: str) -> list[RequestRecord]:
            mine = [r for r in self.all if r.vantage == vantage]
            return [r for r in mine if since_unix_ns is None or r.start_unix_ns > since_unix_ns][-limit:]

        def get(self, request_id: str, vantage: str | None) -> RequestRecord | None:
            return next((r for r in self.all if r.request_id == request_id and vantage in (None, r.vantage)), None)

    async def test() -> None:
        older = Older()
        async with stand() as s, admin_of(s.gateway, history=older) as admin:
            await s.ask(request(chat_body()))
            record = await s.record()
            old = msgspec.structs.replace(record, request_id="old", start_unix_ns=record.start_unix_ns - 10**12)
            older.all = [old, record]
            assert [r["request_id"] for r in await admin.records()] == ["old", record.request_id]
            assert [r["request_id"] for r in await admin.records("?limit=1")] == [record.request_id]
            assert (await admin.get("/records/old"))[0] == 200

    run(test())


def test_a_damaged_store_is_said_in_a_sentence() -> None:
    class Damaged:
        def records(self, since_unix_ns: int | None, limit: int, vantage: str) -> list[RequestRecord]:
            raise StoreError("segment 7 is damaged")

        def get(self, request_id: str, vantage: str | None) -> RequestRecord | None:
            raise StoreError("segment 7 is damaged")

    async def test() -> None:
        async with stand() as s, admin_of(s.gateway, history=Damaged()) as admin:
            status, body = await admin.get("/records/nobody")
            assert status == 500
            assert "segment 7 is damaged" in str(body)

    run(test())


def test_streams_show_what_is_in_flight() -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.sse(token(), token())
        await incoming.until_gone()

    async def test() -> None:
        async with stand(script) as s, admin_of(s.gateway) as admin:
            client = await s.client()
            await client.send(request(chat_body(), headers={"X-Request-Id": "mine"}))
            await client.head()
            await asyncio.sleep(0.05)
            _, body = await admin.get("/streams")
            (stream,) = body["streams"]
            assert (stream["stage"], stream["tokens"], stream["client_request_id"]) == ("decode", 2, "mine")
            assert stream["age_ms"] >= 50
            assert stream["lane"] == "default"
            client.abort()
            await s.record()
            assert (await admin.get("/streams"))[1] == {"streams": []}

    run(test())


def test_events_follow_finished_requests() -> None:
    async def test() -> None:
        async with stand() as s, admin_of(s.gateway) as admin, admin.session.get(admin.url + "/events") as answer:
            assert answer.content_type == "text/event-stream"
            assert await answer.content.readuntil(b"\n\n") == b": following\n\n"
            await s.ask(request(chat_body()))
            block = await answer.content.readuntil(b"\n\n")
            assert block.startswith(b"event: record\n")
            data = msgspec.json.decode(block.partition(b"data: ")[2])
            assert data["request_id"] == s.records.all[0].request_id

    run(test())


def test_lanes_are_changed_by_a_post() -> None:
    async def test() -> None:
        async with stand() as s, admin_of(s.gateway) as admin:
            _, body = await admin.get("/lanes")
            assert body["lanes"]["default"]["running_limit"] == 256
            assert body["lanes"]["default"]["budgets_ms"]["queue"] == 2000
            status, body = await admin.post("/lanes", {"name": "default", "running": 3})
            assert (status, body["lanes"]["default"]["running_limit"]) == (200, 3)
            lanes = [{"name": "long", "match": {"min_prompt_tokens": 2001}, "running": 2}, {"name": "chat"}]
            status, body = await admin.post("/lanes", {"lanes": lanes})
            assert status == 200
            assert set(body["lanes"]) >= {"long", "chat"}
            assert body["lanes"]["long"]["running_limit"] == 2
            status, body = await admin.post("/lanes", {"name": "long", "running": 5, "budgets": {"queue": "9s"}})
            assert body["lanes"]["long"]["running_limit"] == 5
            assert body["lanes"]["long"]["budgets_ms"]["queue"] == 9000
            reply = await s.ask(request(chat_body()))
            assert reply.headers["x-tailrace-lane"] == "chat"
            for wrong in ({}, {"name": "nobody", "running": 1}, {"lanes": [{"name": "x", "running": 0}]}, [1]):
                status, body = await admin.post("/lanes", wrong)
                assert status == 400, wrong
                assert body["error"]["message"]
            assert (await admin.get("/lanes"))[1]["lanes"]["long"]["running_limit"] == 5

    run(test())


def test_configuration_is_shown_without_secrets_and_changed_where_it_can_be() -> None:
    async def test() -> None:
        async with stand(admin_token="hush") as s, admin_of(s.gateway) as admin:
            assert (await admin.get("/config"))[0] == 401
            assert (await admin.get("/healthz"))[0] == 200
            mine = {"headers": {"Authorization": "Bearer hush"}}
            status, config = await admin.get("/config", **mine)
            assert status == 200
            assert config["admin_token"] == "***"
            status, config = await admin.post("/config", {"slow": {"ttft": "1s"}}, **mine)
            assert (status, config["slow"]["ttft"]) == (200, "1s")
            assert s.gateway.thresholds.ttft_ns == 10**9
            fixed = {"listen": "127.0.0.1:1"}, {"scrape": {"period": "9s"}}, {"records": {"dir": "/elsewhere"}}
            for change in fixed:
                status, body = await admin.post("/config", change, **mine)
                assert status == 400
            assert "Restart" in body["error"]["remedy"]
            status, body = await admin.post("/config", {"lanez": []}, **mine)
            assert (status, "lanes" in body["error"]["remedy"]) == (400, True)

    run(test())


def test_a_foreign_page_cannot_post() -> None:
    async def test() -> None:
        async with stand() as s, admin_of(s.gateway) as admin:
            async with admin.session.post(admin.url + "/lanes", data=b'{"name":"default","running":1}') as answer:
                assert answer.status == 415
            status, _ = await admin.post("/lanes", {"name": "default", "running": 1}, headers={"Host": "evil.example"})
            assert status == 403
            assert s.gateway.lanes.snapshot(0)["default"]["running_limit"] == 256

    run(test())


def test_what_is_not_wired_says_so() -> None:
    async def test() -> None:
        async with stand() as s, admin_of(s.gateway) as admin:
            status, body = await admin.get("/diagnosis")
            assert (status, body["action"]) == (501, "collect")
            assert (await admin.get("/canary"))[1]["configured"] is False
            assert (await admin.get("/metrics"))[0] == 501
            assert (await admin.get("/alerts"))[0] == 501

    run(test())


def test_what_is_wired_answers() -> None:
    async def test() -> None:
        asked = []

        async def diagnose(since: int | None, limit: int) -> dict[str, int]:
            asked.append(since)
            return {"n": limit}

        parts = {
            "diagnose": diagnose,
            "latest": lambda: {"n": "the last minute's"},
            "alerts": lambda: {"firing": []},
            "metrics": lambda accept: (b"up 1\n", "text/plain; version=0.0.4; charset=utf-8"),
        }
        async with stand() as s, admin_of(s.gateway, **parts) as admin:
            await s.ask(request(chat_body()))
            assert (await admin.get("/diagnosis"))[1] == {"n": "the last minute's"}
            assert (await admin.get("/diagnosis?limit=7"))[1] == {"n": 7}
            assert (await admin.get("/diagnosis?now&since=1700000000"))[0] == 200
            assert asked == [None, 1_700_000_000 * 10**9]
            assert (await admin.get("/alerts"))[1] == {"firing": []}
            assert (await admin.get("/metrics"))[1] == b"up 1\n"

    run(test())


def test_knobs_are_the_engines() -> None:
    async def test() -> None:
        side = {"/knobs": b'{"max_num_seqs": 8}'}
        async with stand(side=side) as s, admin_of(s.gateway) as admin:
            assert (await admin.get("/knobs"))[1]["knobs"] == {"max_num_seqs": 8}

    run(test())


def test_a_foreign_host_reads_nothing_without_a_token() -> None:
    """A name that a page had resolved to this machine: its browser would let it read records and configuration."""

    async def test() -> None:
        async with stand() as s, admin_of(s.gateway) as admin:
            for path in ("/records", "/config", "/metrics"):
                status, _ = await admin.get(path, headers={"Host": "evil.example"})
                assert status == 403, path
            assert (await admin.get("/config"))[0] == 200

    run(test())
