"""Workers behind every kind of address: what one process does on a Unix socket, with TLS, by gRPC, several do too."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.kserve_messages import SERVICE, ask, whole
from tests.wire.certificates import Authority
from tests.wire.client import RawClient, chat_body, request
from tests.wire.fleet_stand import Engine, Fleet, ends_well, fleet, until_gone
from tests.wire.scripted import Incoming, ScriptedEngine
from tests.wire.sockets import aiohttp_engine, echo
from tests.wire.stand import run

try:
    from grpc import aio

    from tests.wire.grpc_stand import LARGE, GrpcEngine
except ModuleNotFoundError:  # the test here says that it needs it
    aio = None

pytestmark = pytest.mark.long(reason="starts three processes or more, several seconds on a busy machine")


async def begin(served: Fleet) -> RawClient:
    """A stream that has begun, in whatever worker."""
    client = await served.connect()
    await client.send(request(chat_body()))
    assert (await client.head()).status == 200
    await client.next_chunk()
    return client


async def begin_beside(served: Fleet, frozen: int) -> RawClient:
    """A stream that has begun while this worker could not take it from the socket of both: it is in the other."""
    os.kill(frozen, signal.SIGSTOP)
    try:
        return await begin(served)
    finally:
        os.kill(frozen, signal.SIGCONT)


async def replaced(served: Fleet, old: list[int]) -> bool:
    workers = (await served.get("/healthz"))["workers"]
    serving = [worker["pid"] for worker in workers if worker["state"] == "serving"]
    return len(serving) == 2 and not set(serving) & set(old)


def test_one_unix_socket_for_all_workers_outlives_each_of_them(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "tailrace.sock"
        engine = Engine()
        async with (
            ScriptedEngine(engine.answer) as upstream,
            fleet(tmp_path, upstream, listen=f"unix:{path}", listen_mode="600") as served,
        ):
            assert served.url == f"unix:{path}" == (await served.get("/healthz"))["url"]
            assert path.stat().st_mode & 0o777 == 0o600
            first, second = served.workers
            staying, dying = await begin_beside(served, second), await begin_beside(served, first)
            assert {one["worker"] for one in (await served.get("/streams"))["streams"]} == {first, second}

            os.kill(second, signal.SIGKILL)
            assert not await ends_well(dying)
            assert path.is_socket(), "it is not the worker's to take away"
            another = await begin(served)
            await served.heard(f"worker {second} was ended by SIGKILL")
            old = [first, second]
            served.signal(signal.SIGUSR2)
            await served.heard("the workers were replaced")
            known = (await served.get("/happenings"))["happenings"]
            told = {one["text"].split()[1]: one["by"] for one in known if "is replaced by worker" in one["text"]}
            assert told[str(first)] == "SIGUSR2", "who wanted it stands with each worker that served"
            assert path.is_socket()
            await served.until(lambda: replaced(served, old))
            engine.go.set()
            assert await ends_well(staying)
            assert await ends_well(another)
            assert (await served.ask(request(chat_body(stream=False)))).status == 200
            await until_gone(first)

            served.signal(signal.SIGTERM)
            assert await served.process.wait() == 0
            assert not path.exists()

    run(test(), within=50)


@pytest.mark.needs("openssl")
def test_all_workers_take_a_renewed_certificate_or_none_does(tmp_path: Path) -> None:
    async def serials(served: Fleet) -> set[Any]:
        found = set()
        for _ in range(24):
            client = await served.connect()
            found.add(client.writer.get_extra_info("peercert")["serialNumber"])
            client.abort()
        return found

    async def test() -> None:
        authority = Authority(tmp_path / "ca")
        leaf, other = authority.issue("gateway"), authority.issue("renewed")
        engine = Engine()
        async with (
            ScriptedEngine(engine.answer) as upstream,
            fleet(tmp_path, upstream, tls={"cert": leaf.cert, "key": leaf.key}) as served,
        ):
            assert served.url.startswith("https://")
            served.tls = ssl.create_default_context(cafile=authority.cert)
            stream = await begin(served)
            before = await serials(served)
            assert len(before) == 1

            served.rewrite(tls={"cert": leaf.cert, "key": other.key})
            served.signal(signal.SIGHUP)
            assert "does not belong to the certificate" in await served.heard("was not reloaded")
            assert await serials(served) == before

            served.rewrite(tls={"cert": other.cert, "key": other.key})
            served.signal(signal.SIGHUP)
            await served.heard("the configuration was reloaded")
            after = await serials(served)
            assert len(after) == 1
            assert after != before

            served.rewrite(tls=None)
            served.signal(signal.SIGUSR2)
            assert "tls" in await served.heard("the workers were not replaced")
            served.rewrite(tls={"cert": leaf.cert, "key": leaf.key})
            served.signal(signal.SIGUSR2)
            await served.heard("the workers were replaced")
            assert await serials(served) == before
            engine.go.set()
            assert await ends_well(stream), "it was begun in a worker that has been replaced"

    run(test(), within=50)


@pytest.mark.tier("ci")
def test_the_slot_of_a_cancelled_request_is_seen_free_whichever_worker_had_it(tmp_path: Path) -> None:
    async def test() -> None:
        engine = Engine()

        class Metrics(dict[str, bytes]):
            def __getitem__(self, path: str) -> bytes:
                return b"vllm:num_requests_running %d\nvllm:num_requests_waiting 0\n" % engine.inside

        side: Any = Metrics({"/metrics": b""})
        async with (
            ScriptedEngine(engine.answer, side=side) as upstream,
            fleet(tmp_path, upstream, scrape={"period": "200ms"}) as served,
        ):
            first, second = served.workers
            stays = await served.stream(first)
            await served.stream(second)
            ids = {one["worker"]: one["request_id"] for one in (await served.get("/streams"))["streams"]}
            # Clients that came to the wrong worker have left; the burst of scrapes that followed them is over.
            await asyncio.sleep(1.5)
            assert (await served.delete(f"/streams/{ids[second]}"))[0] == 200

            async def seen() -> dict[str, Any]:
                """The cancel, once its slot was seen free."""
                while True:
                    cancels = (await served.get("/cancels"))["cancels"]
                    cancel: dict[str, Any] = next(one for one in cancels if one["request_id"] == ids[second])
                    assert not cancel["unseen"]
                    if cancel["cancel_slot_ms"]:
                        return cancel
                    await asyncio.sleep(0.05)

            cancel = await asyncio.wait_for(seen(), 10)
            assert cancel["worker"] == second
            # Written by the supervisor, about a record that a worker wrote.
            record = await served.get(f"/records/{ids[second]}")
            assert record["cancel_slot_ms"] == cancel["cancel_slot_ms"]
            assert record["fact_sources"]["cancel_slot_ns"] == "the engine's count of its requests"
            assert await served.metric("tailrace_cancel_slot_seconds_count", reason="operator") == 1
            assert await served.metric("tailrace_amendments_acknowledged_total") >= 1
            engine.go.set()
            assert await ends_well(stays)

    run(test(), within=50)


def test_a_request_is_cancelled_in_whichever_worker_it_is(tmp_path: Path) -> None:
    async def test() -> None:
        engine = Engine()
        metrics = b"vllm:num_requests_running 2\nvllm:num_requests_waiting 0\n"
        async with (
            ScriptedEngine(engine.answer, side={"/metrics": metrics}) as upstream,
            fleet(tmp_path, upstream) as served,
        ):
            unseen = "the engine's count did not fall within 1 s"
            rests = "not looked at: the engine's metrics had just been read in a burst"
            first, second = served.workers
            streams = {worker: await served.stream(worker) for worker in (first, second)}
            ids = {one["worker"]: one["request_id"] for one in (await served.get("/streams"))["streams"]}
            for worker, client in streams.items():
                status, said = await served.delete(f"/streams/{ids[worker]}")
                assert (status, said) == (200, {"cancelled": ids[worker], "stage": "decode"})
                data = b""
                while (part := await client.next_chunk()) is not None:
                    data = part
                assert b"operator" in data
            status, said = await served.delete(f"/streams/{ids[first]}")
            assert status == 404

            records = {record["request_id"]: record for record in await served.records()}
            cancels = [one for one in (await served.get("/cancels"))["cancels"] if one["reason"] == "operator"]
            assert [cancel["request_id"] for cancel in cancels] == [ids[first], ids[second]]
            for worker, cancel in zip((first, second), cancels, strict=True):
                record = records[ids[worker]]
                assert (record["outcome"], record["reason"]) == ("cancelled", "operator")
                assert record["cancel_upstream_ms"] == cancel["cancel_upstream_ms"]
                # The engine's count never falls: nothing is proved.
                assert (cancel["worker"], cancel["cancel_slot_ms"]) == (worker, None)
                assert "cancel_slot_ms" not in await served.get(f"/records/{ids[worker]}")
            await asyncio.sleep(1.3)
            seen = {one["request_id"]: one["unseen"] for one in (await served.get("/cancels"))["cancels"]}
            assert {seen[request_id] for request_id in ids.values()} <= {unseen, rests}
            assert await served.metric("tailrace_cancel_slot_unseen_total", reason="operator") == 2
            assert await served.metric("tailrace_cancel_upstream_seconds_count", reason="operator") == 2
            assert await served.metric("tailrace_upstream_connections", state="in_use") == 0

            os.kill(second, signal.SIGSTOP)
            try:
                status, said = await served.delete(f"/streams/{'0' * 24}")
                assert (status, said["error"]["place"]) == (400, f"worker {second}")
            finally:
                os.kill(second, signal.SIGCONT)

    run(test(), within=50)


@pytest.mark.needs("grpc")
def test_grpc_calls_of_all_workers_on_one_port(tmp_path: Path) -> None:
    async def test() -> None:
        go = asyncio.Event()
        slow: list[Any] = []

        async def answer(call: Any) -> None:
            message = await call.read()
            if b"slow" in message:
                slow.append(call)
                await go.wait()
            await call.send(whole("r1"))

        engine = GrpcEngine(answer)

        async def infer(address: str, model: str = "resnet") -> bytes:
            # A connection of its own each: the kernel spreads them over the workers.
            options = [*LARGE, ("grpc.use_local_subchannel_pool", 1)]
            async with aio.insecure_channel(address, options=options) as channel:
                return await channel.unary_unary(SERVICE + "ModelInfer")(ask(model, "r1"), wait_for_ready=True)

        await engine.start()
        async with contextlib.AsyncExitStack() as ends, ScriptedEngine(Engine().answer) as upstream:
            ends.push_async_callback(engine.die)  # one that is only let go would break a later test
            backends = [{"url": upstream.url, "grpc_url": engine.address}]
            async with fleet(tmp_path, upstream, backends=backends, grpc_listen="127.0.0.1:0") as served:
                address = served.ready["grpc"]
                assert not address.endswith(":0")
                assert await asyncio.gather(*(infer(address) for _ in range(12))) == [whole("r1")] * 12
                assert await served.metric("tailrace_requests_total", outcome="completed") == 12
                pending, held = [], set()
                async with asyncio.timeout(20):
                    while held != set(served.workers):
                        pending.append(asyncio.ensure_future(infer(address, "slow")))
                        while len(slow) < len(pending):  # noqa: ASYNC110
                            await asyncio.sleep(0.01)
                        held = {one["worker"] for one in (await served.get("/streams"))["streams"]}

                old = served.workers
                served.signal(signal.SIGUSR2)
                await served.heard("the workers were replaced")
                assert await asyncio.gather(*(infer(address) for _ in range(6))) == [whole("r1")] * 6
                health = await served.get("/healthz")
                left = {one["pid"]: one["in_flight"] for one in health["workers"] if one["pid"] in old}
                assert sum(left.values()) == len(pending), "what was here stays with the old workers"
                assert set(left) == set(old)
                go.set()
                assert await asyncio.gather(*pending) == [whole("r1")] * len(pending)
                for pid in old:
                    await until_gone(pid)
                served.rewrite(grpc_listen="127.0.0.1:1")
                served.signal(signal.SIGHUP)
                assert "grpc_listen" in await served.heard("was not reloaded")

    run(test(), within=50)


def test_sessions_and_uploads_outlive_the_replacement_of_their_worker(tmp_path: Path) -> None:
    got: list[bytes] = []

    async def answer(incoming: Incoming) -> None:
        if incoming.target.startswith("/v1/audio"):
            got.append(incoming.body)
            await incoming.reply({"text": "done"})
        else:
            await incoming.reply({}, 404)

    async def test() -> None:
        async with (
            aiohttp_engine(echo) as url,
            ScriptedEngine(answer) as upstream,
            fleet(tmp_path / "sessions", upstream, backends=[{"url": url}]) as sessions,
            fleet(tmp_path / "uploads", upstream) as uploads,
            aiohttp.ClientSession() as client,
            client.ws_connect(sessions.url + "/v1/realtime") as socket,
        ):
            await socket.send_str("before")
            assert await socket.receive_str() == "before"
            upload = await uploads.connect()
            head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: g\r\nContent-Type: audio/wav\r\n"
            await upload.send(head + b"Content-Length: 200000\r\n\r\n" + bytes(100_000))
            while not (await uploads.get("/streams"))["streams"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

            for served in (sessions, uploads):
                served.signal(signal.SIGUSR2)
            for served in (sessions, uploads):
                await served.heard("the workers were replaced")
            await socket.send_str("after")
            assert await socket.receive_str() == "after"
            await socket.close()
            await upload.send(bytes(100_000))
            reply = await upload.reply()
            assert (reply.status, reply.headers["connection"]) == (200, "close")
            assert [len(body) for body in got] == [200_000]
            for served in (sessions, uploads):
                for pid in served.workers:
                    await until_gone(pid)
                (record,) = await served.records()
                assert (record["outcome"], served.workers) == ("completed", served.ready["workers"])

    run(test(), within=50)
