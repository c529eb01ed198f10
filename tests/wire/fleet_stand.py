"""`tailrace serve --workers N` as a process of its own, with an engine whose answers the test holds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from tests.children import child_env
from tests.wire.client import RawClient, Reply, chat_body, request
from tests.wire.scripted import DONE, SSE_HEAD, Incoming, ScriptedEngine, chunk, finish, token, usage


class Engine:
    """Counts how many requests are in it, and holds its answers until the test lets them go."""

    def __init__(self) -> None:
        self.inside = 0
        self.peak = 0
        self.begun = 0
        self.go = asyncio.Event()

    async def answer(self, incoming: Incoming) -> None:
        if not incoming.target.startswith("/v1/"):
            await incoming.reply({}, 404)
            return
        self.inside += 1
        self.begun += 1
        self.peak = max(self.peak, self.inside)
        try:
            if incoming.json.get("stream"):
                await incoming.send(SSE_HEAD + chunk(token("one")))
                while not self.go.is_set():  # tokens go on: a silent engine would be timed out
                    await asyncio.sleep(0.1)
                    await incoming.chunks(token("more"))
                await incoming.chunks(finish(), usage(7, 2), DONE)
                await incoming.end()
            else:
                await self.go.wait()
                await incoming.completion()
        finally:
            self.inside -= 1


class Fleet:
    """The supervisor's process, and its files."""

    def __init__(self, process: asyncio.subprocess.Process, ready: dict[str, Any], config: Path) -> None:
        self.process, self.ready, self.config = process, ready, config
        self.url: str = ready["url"]
        self.admin: str = ready["admin"]
        self.workers: list[int] = ready.get("workers", [])
        self.said: list[str] = []
        self.clients: list[RawClient] = []
        self.tls: ssl.SSLContext | None = None
        """What our clients trust."""

    async def connect(self) -> RawClient:
        """A client; closed at the end at the latest."""
        client = await RawClient.connect(self.url, tls=self.tls)
        self.clients.append(client)
        return client

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def rewrite(self, **changes: Any) -> None:
        self.config.write_text(json.dumps({**json.loads(self.config.read_text()), **changes}))

    async def get(self, path: str) -> Any:
        async with aiohttp.ClientSession() as session, session.get(self.admin + path) as answer:
            body = await answer.read()
            return json.loads(body) if answer.content_type == "application/json" else body.decode()

    async def post(self, path: str, value: Any) -> tuple[int, Any]:
        async with aiohttp.ClientSession() as session, session.post(self.admin + path, json=value) as answer:
            return answer.status, await answer.json()

    async def delete(self, path: str) -> tuple[int, Any]:
        async with aiohttp.ClientSession() as session, session.delete(self.admin + path) as answer:
            return answer.status, await answer.json()

    async def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (await self.get("/records")).splitlines()]

    async def metric(self, name: str, **labels: str) -> float:
        samples = [sample for family in parse(await self.get("/metrics")) for sample in family.samples]
        wanted = set(labels.items())
        return sum(one.value for one in samples if one.name == name and wanted <= set(one.labels.items()))

    async def ask(self, data: bytes) -> Reply:
        client = await RawClient.connect(self.url, tls=self.tls)
        try:
            return await client.ask(data)
        finally:
            client.close()

    async def heard(self, words: str, within: float = 20.0) -> str:
        """A line of standard error."""
        async with asyncio.timeout(within):
            while not (found := [line for line in self.said if words in line]):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return found[0]

    async def until(self, what: Any, within: float = 20.0) -> None:
        async with asyncio.timeout(within):
            while not await what():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def in_worker(self, worker: int, data: bytes, *, begun: bool) -> RawClient:
        """A request in this worker, begun or waiting: the kernel chooses, so what lands elsewhere is taken back."""
        for _ in range(60):
            before = {one["request_id"] for one in (await self.get("/streams"))["streams"]}
            client = await self.connect()
            await client.send(data)
            if begun:
                head = await client.head()
                assert head.status == 200
                await client.next_chunk()
            mine: list[dict[str, Any]] = []
            while not mine:
                streams = (await self.get("/streams"))["streams"]
                mine = [one for one in streams if one["request_id"] not in before]
            if mine[0]["worker"] == worker:
                return client
            client.abort()
            gone = mine[0]["request_id"]
            while gone in {one["request_id"] for one in (await self.get("/streams"))["streams"]}:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        raise AssertionError("the kernel gave this worker nothing in 60 connections")

    async def stream(self, worker: int) -> RawClient:
        """A stream that has begun in this worker."""
        return await self.in_worker(worker, request(chat_body()), begun=True)


@asynccontextmanager
async def fleet(directory: Path, engine: ScriptedEngine, *, workers: int = 2, **config: Any) -> AsyncIterator[Fleet]:
    directory.mkdir(exist_ok=True)  # noqa: ASYNC240  (nobody waits meanwhile)
    file = directory / "tailrace.yaml"
    plain = {
        "listen": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "workers": workers,
        "backends": [{"url": engine.url}],
        "records": {"dir": str(directory / "records")},
        "budgets": {"queue": "20s", "first_token": "20s", "idle": "20s"},
        **config,
    }
    file.write_text(json.dumps(plain))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tailrace", "serve", "-c", str(file), "--json"),
        env=child_env(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    stderr = process.stderr
    line = await process.stdout.readline()
    if not line:
        pytest.fail((await stderr.read()).decode())
    out = Fleet(process, json.loads(line), file)

    async def listen() -> None:
        async for said in stderr:
            out.said.append(said.decode())

    listening = asyncio.ensure_future(listen())
    try:
        yield out
    finally:
        for client in out.clients:
            client.abort()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
        await listening
    assert not any("Traceback" in said for said in out.said), "".join(out.said)


def alive(pid: int) -> bool:
    """Whether the process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until_gone(pid: int, within: float = 10.0) -> None:
    async with asyncio.timeout(within):
        while alive(pid):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def ends_well(client: RawClient) -> bool:
    """Whether a stream comes to its own end."""
    data = b""
    try:
        while (part := await client.next_chunk()) is not None:
            data = part
    except (ConnectionError, asyncio.IncompleteReadError, ValueError):
        return False
    finally:
        client.close()
    return data.endswith(DONE)


async def until_inside(engine: Engine, count: int) -> None:
    async with asyncio.timeout(10):
        while engine.inside < count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
