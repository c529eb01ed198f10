"""A canary and a shadow on real sockets: who gets which request, what is rolled back, what never waits."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tailrace.gateway.config import config_from
from tailrace.gateway.gateway import Gateway
from tailrace.govern.canary_policy import CanaryState
from tailrace.model.outcome import OutcomeKind, Reason
from tests.children import Child, tailrace_command
from tests.wire.client import RawClient, chat_body, request
from tests.wire.scripted import Incoming, Script, ScriptedEngine, finish, token
from tests.wire.stand import Records, Stand, run
from tests.wire.test_admin import admin_of


async def _quick(incoming: Incoming) -> None:
    await incoming.stream()


@asynccontextmanager
async def routes(
    scripts: dict[str, Script], *, urls: dict[str, str] | None = None, **config: Any
) -> AsyncIterator[tuple[Stand, dict[str, ScriptedEngine]]]:
    """A gateway in front of scripted engines by name (or of what listens at `urls`)."""
    async with AsyncExitStack() as stack:
        engines = {name: await stack.enter_async_context(ScriptedEngine(script)) for name, script in scripts.items()}
        where = urls or {name: engine.url for name, engine in engines.items()}
        plain = {
            "listen": "127.0.0.1:0",
            "backends": [{"name": name, "url": url, "metrics_url": url + "/metrics"} for name, url in where.items()],
            "scrape": {"period": "60s"},
            "records": {"sample": 1.0},
            "traces": {"share": 0.0},
            **config,
        }
        records = Records()
        gateway = Gateway(config_from(plain), records)
        await gateway.start()
        try:
            yield Stand(gateway, next(iter(engines.values()), None), records), engines  # type: ignore[arg-type]
        finally:
            await gateway.close(0.2)
        assert not gateway.in_flight
        assert gateway.counters.record_errors == 0
        for backend in gateway.backends:
            assert not backend.pool.open


async def _ask(s: Stand, sessions: list[str]) -> None:
    client = await RawClient.connect(s.gateway.url)
    try:
        for session in sessions:
            reply = await client.ask(request(chat_body(), headers={"x-session-id": session} if session else {}))
            assert reply.status == 200
    finally:
        client.close()


def _routing(s: Stand) -> Any:
    assert s.gateway.routing is not None
    return s.gateway.routing


def test_a_session_goes_to_one_route_and_its_records_say_which() -> None:
    async def scenario() -> None:
        canary = {"backends": ["new"], "steps": [0.5, 1.0]}
        async with routes({"old": _quick, "new": _quick}, canary=canary) as (s, engines):
            names = [f"s{at}" for at in range(30)]
            await _ask(s, names * 3)
            await s.until(lambda: len(s.records.all) == 90)
            by_session: dict[str, set[str]] = {}
            for record in s.records.all:
                by_session.setdefault(record.session_id, set()).add(record.route)
                assert record.backend == {"stable": "old", "canary": "new"}[record.route]
            assert all(len(taken) == 1 for taken in by_session.values())
            counted = Counter(record.route for record in s.records.all)
            assert 15 < counted["canary"] < 75
            asked = sum(1 for one in engines["new"].requests if one.target.startswith("/v1"))
            assert asked == counted["canary"]
            assert _routing(s).canary.heard == [counted["stable"], counted["canary"]]

    run(scenario())


def test_the_share_of_a_canary_is_no_skew() -> None:
    async def scenario() -> None:
        scripts = {"old": _quick, "older": _quick, "new": _quick}
        async with routes(scripts, canary={"backends": ["new"]}) as (s, _):
            for backend in s.gateway.backends:
                backend.standing.tokens = 10 if backend.name == "new" else 450
            balancing = s.gateway.backends.balancing
            balancing.sweep(time.monotonic_ns())
            assert balancing.whole_view(time.monotonic_ns())["skew"] == {"skew_cv": 0.0, "skew_max_over_mean": 1.0}
            for backend in s.gateway.backends:
                backend.standing.tokens = 0

    run(scenario())


def test_a_failing_canary_is_rolled_back_in_seconds_and_streams_in_flight_are_not_cut() -> None:
    async def failing(incoming: Incoming) -> None:
        if incoming.headers.get("x-long"):
            await incoming.stream(40, gap=0.1)
        else:
            await incoming.reply({"error": {"message": "broken"}}, 500)

    async def scenario() -> None:
        canary = {"backends": ["new"], "steps": [0.5, 1.0], "look": "100ms"}
        async with routes({"old": _quick, "new": failing}, canary=canary) as (s, _):
            mine = next(f"s{at}" for at in range(99) if _routing(s).canary.takes(f"s{at}"))
            client = await s.client()
            long = asyncio.ensure_future(
                client.ask(request(chat_body(), headers={"x-session-id": mine, "x-long": "1"}))
            )
            began = time.monotonic()
            other = await RawClient.connect(s.gateway.url)
            while _routing(s).canary.state is CanaryState.RUNNING:
                await other.ask(request(chat_body()))
                assert time.monotonic() - began < 10
            other.close()
            assert _routing(s).canary.state is CanaryState.ROLLED_BACK
            said = [one["text"] for one in s.gateway.happenings.view() if one["kind"] == "canary"]
            assert "rolled_back" in said[-1]
            assert "failed" in _routing(s).canary.decision
            assert not long.done()
            reply = await long
            assert reply.status == 200
            assert reply.tokens == 40
            await _ask(s, [mine])  # its next request goes to the stable route
            await s.until(lambda: s.records.all[-1].backend == "old")
            client.close()

    run(scenario())


def test_a_route_without_a_living_backend_is_served_by_the_other() -> None:
    async def scenario() -> None:
        canary = {"backends": ["new"], "steps": [0.5, 1.0]}
        async with routes({"old": _quick, "new": _quick}, canary=canary) as (s, _):
            for name, route in (("new", "stable"), ("old", "canary")):
                backend = s.gateway.backends.named(name)
                assert backend is not None
                backend.engine.drain(on=True)
                before = len(s.records.all)
                await _ask(s, [""] * 10)
                await s.until(lambda before=before: len(s.records.all) == before + 10)  # type: ignore[misc]
                assert {record.route for record in s.records.all[before:]} == {route}
                backend.engine.drain(on=False)
            assert _routing(s).astray > 0

    run(scenario())


def test_the_admin_port_shows_and_steers_it_and_a_reload_keeps_its_place() -> None:
    async def scenario() -> None:
        canary = {"backends": ["new"], "requests_per_s": 20.0}
        async with (
            routes({"old": _quick, "new": _quick}, canary=canary) as (s, _),
            admin_of(s.gateway) as admin,
        ):
            status, said = await admin.get("/canary")
            assert status == 200
            view = said["canary"]
            assert (view["state"], view["share"], view["backends"]) == ("running", 0.1, ["new"])
            assert view["stable_backends"] == ["old"]
            assert "slowest 2 %" in view["events"][0]["text"]
            assert view["foresight"]["uniform_30_pct_s"] > 0
            _, said = await admin.post("/canary", {"action": "pin", "share": 0.4})
            assert (said["canary"]["state"], said["canary"]["share"]) == ("pinned", 0.4)
            _, known = await admin.get("/happenings")
            steps = [one["text"] for one in known["happenings"] if one["kind"] == "canary"]
            assert steps[-1].endswith("pinned: at 40% by an operator")
            _, config = await admin.get("/config")
            changed = {"canary": {**config["canary"], "min_requests": 7}}
            status, _ = await admin.post("/config", changed)
            assert status == 200
            _, said = await admin.get("/canary")
            assert (said["canary"]["share"], said["canary"]["min_requests"]) == (0.4, 7)
            for body in ({"action": "fly"}, {"share": 1}, {"action": "pin", "share": 2.0}, {"action": "pin", "x": 1}):
                status, said = await admin.post("/canary", body)
                assert status == 400, body
                assert said["error"]["remedy"]
            await admin.post("/canary", {"action": "abort"})
            status, said = await admin.post("/canary", {"action": "pause"})
            assert status == 400
            assert "resume" in said["error"]["message"]
            await _ask(s, [""] * 20)
            await s.until(lambda: len(s.records.all) == 20)
            assert {record.backend for record in s.records.all} == {"old"}
            _, config = await admin.get("/config")
            await admin.post("/config", {"canary": {**config["canary"], "name": "next"}})
            _, said = await admin.get("/canary")
            assert (said["canary"]["name"], said["canary"]["state"]) == ("next", "running")
            await admin.post("/config", {"canary": None})
            _, said = await admin.get("/canary")
            assert said["configured"] is False
            assert (await admin.post("/canary", {"action": "pause"}))[0] == 400

    run(scenario())


def test_started_paused_it_gets_nothing_until_it_is_resumed() -> None:
    async def scenario() -> None:
        canary = {"backends": ["new"], "steps": [0.5, 1.0], "start": "paused"}
        async with routes({"old": _quick, "new": _quick}, canary=canary) as (s, _):
            await _ask(s, [""] * 20)
            await s.until(lambda: len(s.records.all) == 20)
            assert {record.route for record in s.records.all} == {"stable"}
            assert _routing(s).view()["canary"]["share"] == 0.0
            _routing(s).command("resume", None)
            await _ask(s, [""] * 40)
            await s.until(lambda: len(s.records.all) == 60)
            assert {record.route for record in s.records.all[20:]} == {"stable", "canary"}

    run(scenario())


def test_without_routes_there_is_nothing_to_pay() -> None:
    async def scenario() -> None:
        async with routes({"old": _quick, "new": _quick}) as (s, _):
            assert s.gateway.routing is None

    run(scenario())


@pytest.mark.long("a slow-down of 30 % shows in some hundred requests of two engines in real time", timeout=90)
def test_of_two_simulated_engines_the_one_that_is_30_percent_slower_is_rolled_back(
    start_child: Callable[..., Child],
) -> None:
    usual = ["engine", "--port", "0", "--json"]
    old = start_child(*tailrace_command(*usual, "--time-scale", "0.5")).wait_ready(30)
    new = start_child(*tailrace_command(*usual, "--time-scale", str(0.5 / 1.3))).wait_ready(30)
    urls = {"old": old.url, "new": new.url}

    async def scenario() -> None:
        canary = {"backends": ["new"], "steps": [0.5, 1.0], "hold": "600s", "look": "250ms"}
        async with routes({}, urls=urls, canary=canary) as (s, _):
            cut = 0

            async def client(number: int, session: aiohttp.ClientSession) -> None:
                nonlocal cut
                body = {
                    "model": "llama3-8b-simulated",
                    "stream": True,
                    "max_tokens": 10,
                    "messages": [{"role": "user", "content": "say something " * (5 + number)}],
                }
                while _routing(s).canary.state is CanaryState.RUNNING:
                    async with session.post(s.gateway.url + "/v1/chat/completions", json=body) as answer:
                        said = await answer.text()
                    cut += answer.status != 200 or "[DONE]" not in said

            async with aiohttp.ClientSession() as session, asyncio.timeout(75):
                await asyncio.gather(*(client(number, session) for number in range(8)))
            assert _routing(s).canary.state is CanaryState.ROLLED_BACK
            assert cut == 0
            assert "longer among like requests" in _routing(s).canary.decision
            await s.until(lambda: not s.gateway.in_flight)
            assert {record.outcome for record in s.records.all} == {OutcomeKind.COMPLETED}

    run(scenario(), within=80)


# -- shadow


def test_copies_are_recorded_apart_and_answer_nobody() -> None:
    async def other(incoming: Incoming) -> None:
        await incoming.sse(token("shadow"), finish(), b"data: [DONE]\n\n")
        await incoming.end()

    async def scenario() -> None:
        shadow = {"backends": ["test"], "share": 1.0, "at_once": 8}
        async with routes({"old": _quick, "test": other}, shadow=shadow) as (s, engines):
            reply = await s.ask(request(chat_body()))
            assert b"shadow" not in reply.body
            plain = await s.ask(request(chat_body(stream=False)))
            assert plain.status == 200
            await s.until(lambda: len(s.records.all) == 4)
            copies = [record for record in s.records.all if record.route == "shadow"]
            originals = [record for record in s.records.all if record.route != "shadow"]
            assert {record.backend for record in originals} == {"old"}
            assert {record.backend for record in copies} == {"test"}
            assert {record.client_request_id for record in copies} == {record.request_id for record in originals}
            assert copies[0].ttft_ns is not None
            assert copies[0].outcome is OutcomeKind.COMPLETED
            sent = [one for one in engines["test"].requests if one.target.startswith("/v1")]
            assert [one.json["messages"] for one in sent] == [
                one.json["messages"] for one in engines["old"].requests if one.target.startswith("/v1")
            ]
            assert _routing(s).shadow.view()["outcomes"] == {"completed": 2}

    run(scenario())


def test_a_copy_ends_with_its_original() -> None:
    async def endless(incoming: Incoming) -> None:
        await incoming.sse(token())
        await incoming.until_gone()

    async def scenario() -> None:
        async with routes({"old": endless, "test": endless}, shadow={"backends": ["test"], "share": 1.0}) as (
            s,
            engines,
        ):
            client = await s.client()
            await client.send(request(chat_body()))
            await s.until(lambda: len(_routing(s).shadow.copies) == 1)
            await s.until(lambda: any(one.target.startswith("/v1") for one in engines["test"].requests))
            await client.head()
            client.abort()
            await s.until(lambda: not _routing(s).shadow.copies, within=1.0)
            copied = next(one for one in engines["test"].requests if one.target.startswith("/v1"))
            await s.until(lambda: copied.gone_at is not None, within=1.0)
            await s.until(lambda: len(s.records.all) == 2)
            assert {record.reason for record in s.records.all} == {Reason.CLIENT_DISCONNECT}

    run(scenario())


def test_a_shadow_that_hangs_or_is_not_there_delays_nobody() -> None:
    async def silent(incoming: Incoming) -> None:
        await incoming.until_gone(within=15.0)

    async def scenario() -> None:
        shadow = {"backends": ["test"], "share": 1.0, "at_once": 2}
        async with routes({"old": _quick, "test": silent}, shadow=shadow) as (s, _):
            began = time.monotonic()
            await _ask(s, [""] * 20)
            assert time.monotonic() - began < 5.0
            await s.until(lambda: len(s.records.all) >= 20)
            view = _routing(s).shadow.view()
            assert (view["in_flight"], view["sent"], view["skipped"]) == (2, 2, 18)
        urls = {"old": "", "test": "http://127.0.0.1:9"}
        async with ScriptedEngine(_quick) as engine:
            urls["old"] = engine.url
            async with routes({}, urls=urls, shadow=shadow) as (s, _):
                await _ask(s, [""] * 10)
                await s.until(lambda: _routing(s).shadow.view()["in_flight"] == 0)
                originals = [record for record in s.records.all if record.route != "shadow"]
                assert len(originals) == 10
                assert {record.outcome for record in originals} == {OutcomeKind.COMPLETED}

    run(scenario())


# -- changes near the peak


def test_a_change_of_policy_near_the_peak_load_needs_force() -> None:
    async def scenario() -> None:
        canary = {"backends": ["new"]}
        async with (
            routes({"old": _quick, "new": _quick}, canary=canary) as (s, _),
            admin_of(s.gateway) as admin,
        ):
            s.gateway.peak_load.saw(100, time.monotonic_ns())
            change = {"name": "default", "running": 5}
            for path, body in (("/lanes", change), ("/config", {"drain": "2s"}), ("/canary", {"action": "promote"})):
                s.gateway.peak_load.now = s.gateway.peak_load.peak
                status, said = await admin.post(path, body)
                assert status == 409, path
                assert "of the peak" in said["error"]["message"]
                assert "force" in said["error"]["remedy"]
                s.gateway.peak_load.now = s.gateway.peak_load.peak
                assert (await admin.post(path, {**body, "force": True}))[0] == 200, path
            s.gateway.peak_load.now = s.gateway.peak_load.peak
            assert (await admin.post("/canary", {"action": "abort"}))[0] == 200  # the way back is never barred

    run(scenario())
