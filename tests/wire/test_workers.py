"""`tailrace serve --workers N` as processes: limits, failures, changes and views are those of one gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from tailrace.store.query import RecordStore
from tests.children import child_env
from tests.wire.client import chat_body, request
from tests.wire.fleet_stand import Engine, alive, ends_well, fleet, until_gone, until_inside
from tests.wire.scripted import ScriptedEngine
from tests.wire.stand import run

pytestmark = pytest.mark.long(reason="starts three processes or more, several seconds on a busy machine")

LANE_4_4 = [{"name": "default", "running": 4, "queued": 4}]


def test_a_burst_sees_the_limits_of_one_gateway_and_is_counted_once(tmp_path: Path) -> None:
    async def test() -> None:
        engine = Engine()
        async with ScriptedEngine(engine.answer) as upstream, fleet(tmp_path, upstream, lanes=LANE_4_4) as served:
            assert served.ready["pid"] == served.process.pid
            assert len(set(served.workers)) == 2
            began = time.monotonic()
            asking = [asyncio.ensure_future(served.ask(request(chat_body(stream=False)))) for _ in range(40)]
            while sum(one.done() for one in asking) < 32:
                await asyncio.sleep(0.005)
                assert time.monotonic() - began < 5
            refused = [one.result() for one in asking if one.done()]
            lane = (await served.get("/lanes"))["lanes"]["default"]
            assert (lane["running"], lane["queued"]) == (4, 4)
            assert (lane["running_limit"], lane["queued_limit"]) == (4, 4)
            assert {reply.status for reply in refused} == {429}
            assert all(
                reply.headers["retry-after"] and "is full" in reply.json["error"]["message"] for reply in refused
            )
            assert await served.metric("tailrace_requests_in_flight") == 4
            engine.go.set()
            replies = await asyncio.gather(*asking)
            assert Counter(reply.status for reply in replies) == {200: 8, 429: 32}
            assert engine.peak == 4

            # Counted once, whichever worker it was; and the records of all are one list.
            assert await served.metric("tailrace_requests_total") == 40
            assert await served.metric("tailrace_requests_total", outcome="completed") == 8
            assert await served.metric("tailrace_e2e_seconds_count") == 40
            assert await served.metric("tailrace_workers") == 2
            records = await served.records()
            ids = {reply.headers["x-request-id"] for reply in replies}
            assert {record["request_id"] for record in records} == ids
            assert len(records) == 40
            health = await served.get("/healthz")
            assert health["counters"]["records"] == health["store"]["acknowledged"] == 40
            assert [worker["answers"] for worker in health["workers"]] == [True, True]
            some = records[0]["request_id"]
            assert (await served.get(f"/records/{some}"))["request_id"] == some

            # A change is for all workers, or for none. The burst may still be the recent peak: then it has to be meant.
            status, _ = await served.post("/lanes", {"name": "default", "running": 1, "queued": 9, "force": True})
            assert status == 200
            engine.peak = 0
            replies = await asyncio.gather(*(served.ask(request(chat_body(stream=False))) for _ in range(10)))
            assert [reply.status for reply in replies] == [200] * 10
            assert engine.peak == 1
            status, error = await served.post("/config", {"admin_token": "new", "force": True})
            assert (status, error["error"]["place"]) == (400, "admin_token")

            began = time.monotonic()
            served.signal(signal.SIGTERM)
            assert await served.process.wait() == 0
            assert time.monotonic() - began < 3
            assert "50 requests recorded, 0 cut" in await served.heard("requests recorded")
            assert len(RecordStore(tmp_path / "records").records()) == 50

    run(test(), within=50)


def test_one_place_for_three_workers_comes_to_everybody(tmp_path: Path) -> None:
    async def test() -> None:
        engine = Engine()
        lanes = [{"name": "default", "running": 1, "queued": 50}]
        async with (
            ScriptedEngine(engine.answer) as upstream,
            fleet(tmp_path, upstream, workers=3, lanes=lanes) as served,
        ):
            engine.go.set()
            replies = await asyncio.gather(*(served.ask(request(chat_body(stream=False))) for _ in range(45)))
            assert [reply.status for reply in replies] == [200] * 45
            assert engine.peak == 1

    run(test(), within=50)


def test_a_killed_worker_takes_only_its_own_streams_along(tmp_path: Path) -> None:
    async def test() -> None:
        engine = Engine()
        lanes = [{"name": "default", "running": 2, "queued": 4}]
        async with ScriptedEngine(engine.answer) as upstream, fleet(tmp_path, upstream, lanes=lanes) as served:
            first, second = served.workers
            staying, dying = await served.stream(first), await served.stream(second)
            waiting = await served.in_worker(first, request(chat_body(stream=False)), begun=False)
            begun = engine.begun
            before = await served.records()
            await asyncio.sleep(0.2)
            assert engine.begun == begun, "both places are taken"

            os.kill(second, signal.SIGKILL)
            assert not await ends_well(dying), "its own client sees that the stream was cut"
            await until_inside(engine, 2)
            async with asyncio.timeout(5):
                while engine.begun == begun:  # noqa: ASYNC110  (the place that it held is free for who waits)
                    await asyncio.sleep(0.005)
            assert "SIGKILL" in await served.heard(f"worker {second}")

            async def restarted() -> bool:
                workers = (await served.get("/healthz"))["workers"]
                pids = [worker["pid"] for worker in workers if worker["state"] == "serving"]
                return len(pids) == 2 and second not in pids

            await served.until(restarted)
            health = await served.get("/healthz")
            assert health["restarts"] == await served.metric("tailrace_worker_restarts_total") == 1
            async with asyncio.timeout(5):
                while engine.inside != 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            engine.go.set()
            assert await ends_well(staying)
            assert (await waiting.reply()).status == 200
            new = next(worker["pid"] for worker in health["workers"] if worker["pid"] != first)
            engine.go.clear()
            fresh = await served.stream(new)
            engine.go.set()
            assert await ends_well(fresh)
            known = {record["request_id"] for record in await served.records()}
            assert {record["request_id"] for record in before} <= known, "an acknowledged record survives"

    run(test(), within=50)


def test_reloading_and_replacing_drop_no_stream(tmp_path: Path) -> None:
    async def test() -> None:
        engine = Engine()
        lanes = [{"name": "default", "running": 3, "queued": 0}]
        async with ScriptedEngine(engine.answer) as upstream, fleet(tmp_path, upstream, lanes=lanes) as served:
            first, second = served.workers
            clients = [await served.stream(first), await served.stream(second)]

            served.rewrite(lanes=[{"name": "default", "running": 2, "queued": 0}])
            served.signal(signal.SIGHUP)
            await served.heard("configuration was reloaded")
            assert (await served.ask(request(chat_body()))).status == 429

            served.rewrite(workers=3)
            served.signal(signal.SIGHUP)
            assert "workers: cannot be changed" in await served.heard("was not reloaded")

            # `records.queue` is fixed for the life of a process: new processes have it, and the streams go on.
            records = {"dir": str(tmp_path / "records"), "queue": 777}
            served.rewrite(workers=2, records=records, lanes=[{"name": "default", "running": 4, "queued": 0}])
            served.signal(signal.SIGUSR2)
            await served.heard("workers were replaced", within=30)
            health = await served.get("/healthz")
            states = {worker["pid"]: worker["state"] for worker in health["workers"]}
            assert states[first] == states[second] == "retiring"
            serving = [pid for pid, state in states.items() if state == "serving"]
            assert len(serving) == 2
            assert (await served.get("/config"))["records"]["queue"] == 777
            assert await served.metric("tailrace_workers") == 2
            clients += [await served.stream(pid) for pid in serving]
            # The old ones' streams hold their places: four run, and the limit is four over all six processes.
            assert (await served.ask(request(chat_body()))).status == 429
            engine.go.set()
            for client in clients:
                assert await ends_well(client)
            await until_gone(first)
            await until_gone(second)
            assert (await served.get("/healthz"))["restarts"] == 0
            completed = await served.metric("tailrace_requests_total", outcome="completed")
            assert completed == 4, "what the old ones counted is not forgotten"

    run(test(), within=60)


def test_a_worker_that_cannot_start_is_tried_again_and_not_in_a_spin(tmp_path: Path) -> None:
    async def test() -> None:
        engine = Engine()
        engine.go.set()
        async with ScriptedEngine(engine.answer) as upstream, fleet(tmp_path, upstream) as served:
            records, aside = tmp_path / "records", tmp_path / "aside"
            records.rename(aside)
            records.write_text("in the way")
            os.kill(served.workers[1], signal.SIGKILL)
            await served.heard("records cannot be written there")
            await asyncio.sleep(1.5)
            tries = sum("cannot be written" in said for said in served.said)
            assert 1 <= tries <= 5, "100 ms, 200 ms, 400 ms, ... between two tries, and each start takes its time"
            assert (await served.ask(request(chat_body()))).status == 200, "the other serves meanwhile"
            records.unlink()
            aside.rename(records)

            async def whole() -> bool:
                workers = (await served.get("/healthz"))["workers"]
                return [worker["state"] for worker in workers] == ["serving", "serving"]

            await served.until(whole)

    run(test(), within=50)


def test_a_replacement_that_cannot_start_leaves_the_old_ones(tmp_path: Path) -> None:
    async def test() -> None:
        engine = Engine()
        async with ScriptedEngine(engine.answer) as upstream, fleet(tmp_path, upstream) as served:
            client = await served.stream(served.workers[0])
            (tmp_path / "blocked").write_text("")
            served.rewrite(records={"dir": str(tmp_path / "blocked" / "records")})
            served.signal(signal.SIGUSR2)
            assert "records cannot be written there" in await served.heard("workers were not replaced", within=30)
            health = await served.get("/healthz")
            assert {worker["pid"]: worker["state"] for worker in health["workers"]} == dict.fromkeys(
                served.workers, "serving"
            )
            assert health["restarts"] == 0
            engine.go.set()
            assert await ends_well(client)
            assert (await served.ask(request(chat_body()))).status == 200

    run(test(), within=50)


def test_a_frozen_worker_delays_nobody_elsewhere(tmp_path: Path) -> None:
    async def test() -> None:
        engine = Engine()
        async with ScriptedEngine(engine.answer) as upstream, fleet(tmp_path, upstream, lanes=LANE_4_4) as served:
            first, second = served.workers
            streams = [await served.stream(second), await served.stream(second)]
            # What had landed elsewhere and was taken back is noticed by the engine at its next token.
            async with asyncio.timeout(5):
                while engine.inside != 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            engine.peak = 2
            os.kill(first, signal.SIGSTOP)
            try:
                # What it held is out of reach, and nothing hangs for it: views leave it out, limits hold.
                began = time.monotonic()
                health = await served.get("/healthz")
                assert {worker["pid"]: worker["answers"] for worker in health["workers"]} == {
                    first: False,
                    second: True,
                }
                assert await served.metric("tailrace_requests_in_flight") == 2
                status, error = await served.post("/lanes", {"name": "default", "running": 9})
                assert (status, error["error"]["place"]) == (400, f"worker {first}")
                assert time.monotonic() - began < 8
            finally:
                os.kill(first, signal.SIGCONT)
            engine.go.set()
            for client in streams:
                assert await ends_well(client)
            assert (await served.get("/lanes"))["lanes"]["default"]["running_limit"] == 4
            assert engine.peak <= 4

    run(test(), within=50)


def test_workers_without_a_supervisor_serve_to_the_end_and_leave(tmp_path: Path) -> None:
    async def test() -> None:
        engine = Engine()
        async with ScriptedEngine(engine.answer) as upstream, fleet(tmp_path, upstream, drain="5s") as served:
            client = await served.stream(served.workers[0])
            served.signal(signal.SIGKILL)
            await served.process.wait()
            await until_gone(served.workers[1], within=4)  # it had nothing to do
            assert alive(served.workers[0])
            engine.go.set()
            assert await ends_well(client)
            await until_gone(served.workers[0], within=4)
            assert [record.outcome for record in RecordStore(tmp_path / "records").records()][-1] == "completed"

    run(test(), within=50)


def test_finished_requests_of_all_workers_are_followed(tmp_path: Path) -> None:
    async def test() -> None:
        engine = Engine()
        engine.go.set()
        async with (
            ScriptedEngine(engine.answer) as upstream,
            fleet(tmp_path, upstream) as served,
            aiohttp.ClientSession() as session,
            session.get(served.admin + "/events") as events,
        ):
            assert await events.content.readline() == b": following\n"
            replies = await asyncio.gather(*(served.ask(request(chat_body(stream=False))) for _ in range(12)))
            wanted = {reply.headers["x-request-id"] for reply in replies}
            seen: set[str] = set()
            async with asyncio.timeout(5):
                while seen != wanted:
                    line = await events.content.readline()
                    if line.startswith(b"id: "):
                        seen.add(line[4:].strip().decode())

    run(test(), within=50)


def test_a_port_that_another_gateway_shares_among_its_workers_is_in_use(tmp_path: Path) -> None:
    async def test() -> None:
        engine = Engine()
        async with ScriptedEngine(engine.answer) as upstream, fleet(tmp_path, upstream) as served:
            port = served.url.rpartition(":")[2]
            second = await asyncio.to_thread(
                subprocess.run,
                [
                    *(sys.executable, "-m", "tailrace", "serve", "--upstream", upstream.url, "--workers", "2"),
                    *("--listen", f"127.0.0.1:{port}", "--admin", "127.0.0.1:0", "--data-dir", str(tmp_path / "b")),
                ],
                env=child_env(),
                capture_output=True,
                text=True,
                check=False,
            )
            assert second.returncode == 2
            assert f"port {port} is in use" in second.stderr
            assert "Traceback" not in second.stderr

    run(test(), within=50)


def test_a_directory_that_no_worker_can_write_is_said_once(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tailrace", "serve", "--upstream", "http://127.0.0.1:9", "--workers", "2"),
            *("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir", str(blocked / "records")),
        ],
        env=child_env(),
        capture_output=True,
        text=True,
        check=False,
        timeout=40,
    )
    assert done.returncode == 2
    assert "records cannot be written there" in done.stderr
    assert "--data-dir" in done.stderr
    assert "Traceback" not in done.stderr
