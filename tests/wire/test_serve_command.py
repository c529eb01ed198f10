"""`tailrace serve` as a process: its ready line, its bad inputs, its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import tailrace
from tailrace.store.query import RecordStore
from tests.wire.client import RawClient, chat_body, request
from tests.wire.scripted import Incoming, ScriptedEngine, token
from tests.wire.stand import run

ENDS_WITHIN_S = 2.0
pytestmark = pytest.mark.long(reason="starts a whole process, several seconds on a busy machine")


def _env() -> dict[str, str]:
    root = str(Path(tailrace.__file__).parents[1])
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{inherited}" if inherited else root}


async def _start(*args: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tailrace",
        "serve",
        *args,
        env=_env(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


class Served:
    def __init__(self, process: asyncio.subprocess.Process, ready: dict[str, Any]) -> None:
        self.process, self.ready = process, ready
        self.url: str = ready["url"]
        self.admin: str = ready["admin"]

    async def ask(self, data: bytes) -> Any:
        client = await RawClient.connect(self.url)
        try:
            return await client.ask(data)
        finally:
            client.close()

    async def get(self, path: str) -> tuple[int, bytes]:
        async with aiohttp.ClientSession() as session, session.get(self.admin + path) as answer:
            return answer.status, await answer.read()

    async def stop(self, number: signal.Signals = signal.SIGINT) -> tuple[int, str, float]:
        """Exit code, stderr, seconds."""
        began = time.monotonic()
        self.process.send_signal(number)
        _, err = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, err.decode(), time.monotonic() - began


@asynccontextmanager
async def served(data_dir: Path, *args: str) -> AsyncIterator[Served]:
    ports = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    process = await _start(*ports, "--data-dir", str(data_dir), "--json", *args)
    try:
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line:
            assert process.stderr is not None
            pytest.fail((await process.stderr.read()).decode())
        yield Served(process, json.loads(line))
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()


async def _stream(incoming: Incoming) -> None:
    await incoming.stream()


def test_it_serves_records_and_ends(tmp_path: Path) -> None:
    async def test() -> None:
        async with ScriptedEngine(_stream) as engine, served(tmp_path, "--upstream", engine.url) as gateway:
            assert gateway.ready["ready"] is True
            assert gateway.ready["pid"] == gateway.process.pid
            assert gateway.ready["upstream_ok"] is True
            reply = await gateway.ask(request(chat_body()))
            assert reply.status == 200
            status, body = await gateway.get("/records")
            assert (status, len(body.splitlines())) == (200, 1)
            assert json.loads(body)["request_id"] == reply.headers["x-request-id"]
            status, page = await gateway.get("/")
            assert status == 200
            assert b"<html" in page.lower()
            status, metrics = await gateway.get("/metrics")
            assert b"tailrace_requests_total{" in metrics
            assert b'tailrace_backend_up{backend="default"} 1.0' in metrics
            assert (await gateway.get("/readyz"))[0] == 200
            for _ in range(200):
                health = json.loads((await gateway.get("/healthz"))[1])
                if health["store"]["acknowledged"] == 1:
                    break
                await asyncio.sleep(0.02)
            assert health["store"]["acknowledged"] == 1
            code, err, seconds = await gateway.stop()
            assert (code, "1 requests recorded" in err) == (0, True), err
            assert "Traceback" not in err
            assert seconds < ENDS_WITHIN_S
            stored = RecordStore(tmp_path).records()
            assert [record.request_id for record in stored] == [reply.headers["x-request-id"]]

    run(test(), within=50)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_under_load_ends_in_time_and_keeps_what_was_measured(tmp_path: Path, number: signal.Signals) -> None:
    async def script(incoming: Incoming) -> None:
        await incoming.sse(token())
        await incoming.until_gone(20)

    async def test() -> None:
        async with ScriptedEngine(script) as engine, served(tmp_path, "--upstream", engine.url) as gateway:
            clients = [await RawClient.connect(gateway.url) for _ in range(5)]
            for client in clients:
                await client.send(request(chat_body()))
            for client in clients:
                await client.head()
                assert await client.next_chunk() == token()
            code, err, seconds = await gateway.stop(number)
            assert code == 0, err
            assert "5 cut by the stop" in err
            assert seconds < ENDS_WITHIN_S
            for client in clients:
                last = await client.next_chunk()
                assert last is not None
                assert b"shutdown" in last
                client.close()
            stored = RecordStore(tmp_path).records()
            assert [(record.outcome.value, record.reason.value) for record in stored] == [("cancelled", "shutdown")] * 5

    run(test(), within=50)


def test_an_engine_that_is_away_is_said_and_served_all_the_same(tmp_path: Path) -> None:
    async def test() -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        async with served(tmp_path, "--upstream", f"http://127.0.0.1:{port}") as gateway:
            assert gateway.ready["upstream_ok"] is False
            status, body = await gateway.get("/readyz")
            assert (status, json.loads(body)["ready"]) == (503, False)
            assert (await gateway.ask(request(chat_body()))).status == 503
            code, err, _ = await gateway.stop()
            assert code == 0
            assert "warning" in err
            assert str(port) in err

    run(test(), within=50)


def test_kill_9_loses_no_acknowledged_record(tmp_path: Path) -> None:
    async def test() -> None:
        async with ScriptedEngine(_stream) as engine, served(tmp_path, "--upstream", engine.url) as gateway:
            for _ in range(20):
                await gateway.ask(request(chat_body()))
            acknowledged = 0
            for _ in range(200):
                acknowledged = json.loads((await gateway.get("/healthz"))[1])["store"]["acknowledged"]
                if acknowledged:
                    break
                await asyncio.sleep(0.01)
            gateway.process.kill()
            await gateway.process.communicate()
            assert acknowledged > 0
            assert len(RecordStore(tmp_path).records()) >= acknowledged

    run(test(), within=50)


def test_the_file_is_read_again_on_sighup(tmp_path: Path) -> None:
    file = tmp_path / "tailrace.yaml"

    async def test() -> None:
        async with ScriptedEngine(_stream) as engine:
            config = "backends: [{url: '%s'}]\nlanes: [{name: chat, running: %d}]\n"
            file.write_text(config % (engine.url, 5))
            async with served(tmp_path / "data", "-c", str(file)) as gateway:
                lanes = json.loads((await gateway.get("/lanes"))[1])["lanes"]
                assert lanes["chat"]["running_limit"] == 5
                file.write_text(config % (engine.url, 9))
                gateway.process.send_signal(signal.SIGHUP)
                for _ in range(100):
                    lanes = json.loads((await gateway.get("/lanes"))[1])["lanes"]
                    if lanes["chat"]["running_limit"] == 9:
                        break
                    await asyncio.sleep(0.02)
                assert lanes["chat"]["running_limit"] == 9
                file.write_text("lanez: []\n")
                gateway.process.send_signal(signal.SIGHUP)
                await asyncio.sleep(0.2)
                assert (await gateway.ask(request(chat_body()))).status == 200
                _, err, _ = await gateway.stop()
                assert "not reloaded" in err

    run(test(), within=50)


def _fails(*args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tailrace", "serve", *args],
        env=_env(),
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr.startswith("tailrace serve: ")
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    return done.stderr


UP = ("--upstream", "http://127.0.0.1:9")
FREE = ("--listen", "127.0.0.1:0")


@pytest.mark.parametrize(
    ("args", "remedy"),
    [
        ((), "--upstream"),
        (("--upstream", "localhost:8000"), "http://127.0.0.1:8000"),
        (("--upstream", "ftp://x"), "http://127.0.0.1:8000"),
        (("--upstream", "http://x:99999"), "http://127.0.0.1:8000"),
        (("--upstream", "http://[::1"), "http://127.0.0.1:8000"),
        (("--upstream", "http://a..b"), "http://127.0.0.1:8000"),
        (("--upstream", "http://a b"), "http://127.0.0.1:8000"),
        (("--upstream", "http://x/\u00fc"), "percent-encoded"),
        (("--upstream", "http://user:secret@x"), "api_key"),
        (("--upstream", "http://x?key=1"), "http://127.0.0.1:8000"),
        ((*UP, "--listen", "a..b:0"), "--listen"),
        ((*UP, "--listen", "8080"), "HOST:PORT"),
        ((*UP, *FREE, "--admin", "0.0.0.0:0"), "admin_token"),
        ((*UP, *FREE, "--engine", "vlm"), "vllm"),
        (("-c", "no-such-file.yaml"), "--upstream"),
    ],
)
def test_bad_input_is_one_sentence_with_its_remedy(tmp_path: Path, args: tuple[str, ...], remedy: str) -> None:
    assert remedy in _fails(*args, "--data-dir", str(tmp_path / "data"))


@pytest.mark.parametrize("option", ["--listen", "--admin"])
def test_a_port_in_use_is_named_with_the_remedy(tmp_path: Path, option: str) -> None:
    other = "--admin" if option == "--listen" else "--listen"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        text = _fails(*UP, "--data-dir", str(tmp_path), option, f"127.0.0.1:{port}", other, "127.0.0.1:0")
    assert f"port {port} is in use" in text
    assert option in text


def test_a_wrong_key_in_the_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("backends: [{url: 'http://127.0.0.1:9'}]\nlanez: []\n")
    assert "`lanes`" in _fails("-c", str(file))
